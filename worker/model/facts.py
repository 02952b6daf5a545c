"""Says what mlx is and what it computes on, as JSON: `python -m worker.model.facts`. For the doctor, whose
own process never imports mlx.
"""

import json
import sys
from importlib.metadata import version

from worker.model.backend import preload_blas


def main() -> None:
    """Compute something, and tell with what. Ends with a traceback where mlx does not work."""
    blas = preload_blas()
    import mlx.core as mx

    metal = mx.metal.is_available()
    gpu = mx.default_device() != mx.Device(mx.cpu, 0)
    facts = mx.device_info() if metal else {}
    mx.eval(mx.ones((2, 2)) @ mx.ones((2, 2)))
    told = {
        "mlx": version("mlx"),
        "mlx_lm": version("mlx-lm"),
        "backend": "metal" if metal else "cuda" if gpu else "cpu",
        "blas": blas,
        "working_set_bytes": int(facts.get("max_recommended_working_set_size", 0)),
    }
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()

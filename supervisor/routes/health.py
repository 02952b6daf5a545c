"""`GET /health`: whether the supervisor is alive, and what does not work. Never needs a model."""

from typing import Literal

import msgspec

from supervisor.workers.view import EngineView, WorkerView


class Health(msgspec.Struct, frozen=True):
    """`degraded` means alive, with the reasons why some requests will fail."""

    status: Literal["ok", "degraded"]
    reasons: tuple[str, ...] = ()


def health_of(engine: EngineView, trouble: str | None = None) -> Health:
    """What `engine` says about everybody's health; `trouble` is the state database's."""
    reasons = [reason for worker in engine.workers if (reason := _ailment(worker))]
    if engine.memory.pressure == "critical":
        reasons.append("the machine is short of memory: idle models leave, and loads wait")
    if trouble is not None:
        reasons.append(f"responses and conversations can't be kept: {trouble}")
    return Health("degraded" if reasons else "ok", tuple(reasons))


def _ailment(worker: WorkerView) -> str | None:
    ended = f" ({worker.last_exit.describe()})" if worker.last_exit else ""
    match worker.state:
        case "failed":
            return f"model {worker.id} failed{f': {worker.failure}' if worker.failure else ended}"
        case "restarting":
            return f"model {worker.id} is being restarted{ended}"
        case _:
            return None

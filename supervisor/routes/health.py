"""`GET /health`: whether the supervisor is alive, and what does not work. Never needs a model."""

from typing import Literal

import msgspec

from supervisor.workers.view import EngineView, WorkerView


class Health(msgspec.Struct, frozen=True):
    """`degraded` means alive, with the reasons why some requests will fail."""

    status: Literal["ok", "degraded"]
    reasons: tuple[str, ...] = ()


def health_of(engine: EngineView) -> Health:
    """What `engine` says about everybody's health."""
    reasons = tuple(reason for worker in engine.workers if (reason := _ailment(worker)))
    return Health("degraded" if reasons else "ok", reasons)


def _ailment(worker: WorkerView) -> str | None:
    ended = f" ({worker.last_exit.describe()})" if worker.last_exit else ""
    match worker.state:
        case "failed":
            return f"model {worker.id} failed{ended}"
        case "restarting":
            return f"model {worker.id} is being restarted{ended}"
        case _:
            return None

"""What a request is told that the residency policy refuses."""

from shared.errors import PublicError
from supervisor.catalog.catalog import ModelEntry
from supervisor.workers import failures
from supervisor.workers.actions import Why
from supervisor.workers.books import Books
from supervisor.workers.keeper import Failure
from supervisor.workers.residents import Residents


def refusal(
    entry: ModelEntry, why: Why, failure: Failure | None, residents: Residents, books: Books
) -> PublicError:
    """The error for a request for this model. `failure` is why its last load failed, if it did."""
    traits = books.traits(entry)
    match why:
        case Why.QUEUE_FULL:
            loads = residents.phase(entry.id) != "ready"
            return failures.queue_full(entry.id, traits.limit, retry_after_s=5 if loads else 1)
        case Why.CROWDED:
            return failures.crowded(residents.max_waiting)
        case Why.FAILED:
            assert failure is not None
            return failures.failed(entry.id, failure.reason, failure.last_lines)
        case Why.TOO_LARGE:
            return failures.too_large(entry.id, traits.cost_bytes, residents.budget_bytes)
        case Why.PINNED:
            pinned = [
                (model.traits.id, model.booked_bytes)
                for model in residents.residents()
                if model.traits.pinned
            ]
            return failures.beside_pinned(entry.id, traits.cost_bytes, residents.budget_bytes, pinned)
        case Why.STOPPING:
            return failures.stopping()

"""A hung worker told from a busy one: by a clock of our own."""

from shared.admin import Health
from shared.status import Memory
from supervisor.workers.watchdog import Watchdog


def health(*, running: int, steps: int) -> Health:
    return Health(
        state="ready",
        model="m",
        pid=1,
        generation=1,
        in_flight=running,
        running=running,
        queued=0,
        leases=0,
        steps=steps,
        memory=Memory(),
    )


def watchdog() -> Watchdog:
    return Watchdog(silence_s=10.0, stall_s=120.0, longest_s=2.0)


def test_silence_counts_up_to_its_limit() -> None:
    dog = watchdog()
    assert [dog.unanswered(1.0) for _ in range(9)] == [None] * 9
    assert dog.unanswered(1.0) == "it did not answer for 10 s"


def test_an_answer_ends_the_silence() -> None:
    dog = watchdog()
    for _ in range(9):
        dog.unanswered(1.0)
    dog.answered(health(running=0, steps=0), 1.0)
    assert dog.unanswered(1.0) is None


def test_a_machine_that_slept_says_nothing_about_the_worker() -> None:
    dog = watchdog()
    assert dog.unanswered(8 * 3600.0) is None
    assert dog.answered(health(running=1, steps=5), 8 * 3600.0) is None
    assert dog.answered(health(running=1, steps=5), 8 * 3600.0) is None


def test_rows_without_steps_are_a_stall() -> None:
    dog = watchdog()
    assert dog.answered(health(running=2, steps=7), 1.0) is None
    verdicts = [dog.answered(health(running=2, steps=7), 1.0) for _ in range(120)]
    assert verdicts[:-1] == [None] * 119
    assert verdicts[-1] == "2 requests were running and it made no step for 120 s"


def test_a_step_or_an_empty_batch_ends_the_stall() -> None:
    dog = watchdog()
    for number in range(1000):
        assert dog.answered(health(running=1, steps=number // 100), 1.0) is None
    for _ in range(1000):
        assert dog.answered(health(running=0, steps=9), 1.0) is None

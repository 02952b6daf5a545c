"""What a worker may take, changed while it serves."""

import pytest

from shared.errors import PublicError
from shared.launch import Options
from worker.engine.admission import Admission, Turn
from worker.engine.needs import Needs
from worker.engine.share import Share

MIB = 2**20
WEIGHTS = 1000 * MIB


class Line:
    """A worker's line, whose rows hold a MiB for each token."""

    def __init__(self, memory: int, budget: int | None) -> None:
        self.started: list[str] = []
        self.admission = Admission(rows=8, queue=8)
        options = Options(memory_bytes=memory, budget_bytes=budget)
        self.share = Share(
            self.admission,
            Needs(token_bytes=MIB),
            options,
            weights_bytes=WEIGHTS,
            working_set_bytes=0,
            keeps_prompts=True,
        )

    def ask(self, name: str, tokens: int) -> Turn:
        turn = Turn(lambda: self.started.append(name), lambda: tokens)
        self.admission.admit(turn)
        self.admission.ready(turn)
        return turn


def test_rows_wait_for_a_larger_share_and_run_when_it_comes() -> None:
    # 5 % are kept for what is computed: 512 MiB for rows.
    small, large = int((WEIGHTS + 512 * MIB) / 0.95) + MIB, int((WEIGHTS + 1024 * MIB) / 0.95) + MIB
    line = Line(small, budget=8 * large)
    line.ask("a", 512)
    line.ask("b", 512)
    assert line.started == ["a"]
    assert line.share.reserved_bytes == WEIGHTS + 512 * MIB
    line.share.limit(large)
    assert line.started == ["a", "b"]
    assert line.share.reserved_bytes == WEIGHTS + 1024 * MIB


def test_a_smaller_share_lets_run_what_runs_and_nothing_beside_it() -> None:
    large = int((WEIGHTS + 1024 * MIB) / 0.95) + MIB
    line = Line(large, budget=large)
    first = line.ask("a", 512)
    line.share.limit(WEIGHTS)
    line.ask("b", 256)
    assert line.started == ["a"]
    line.admission.leave(first)
    assert line.started == ["a", "b"], "one alone runs: it was promised nothing less than the budget"


def test_what_not_even_the_budget_has_room_for_is_refused() -> None:
    line = Line(2 * WEIGHTS, budget=4 * WEIGHTS)
    line.admission.check(2560)
    with pytest.raises(PublicError) as refused:
        line.admission.check(3072)
    assert refused.value.status == 507

"""What a worker may take, changed while it serves."""

import pytest

from shared.errors import PublicError
from shared.headers import HANDED_BACK
from shared.launch import Options
from worker.engine.admission import Admission
from worker.engine.needs import Needs, cap_for, room
from worker.engine.share import Share
from worker.engine.turns import Lease, Turn

MIB = 2**20
WEIGHTS = 1000 * MIB


class Line:
    """A worker's line, whose rows hold a MiB for each token unless told otherwise."""

    def __init__(self, memory: int, budget: int | None, *, token_bytes: int = MIB) -> None:
        self.started: list[str] = []
        self.refused: dict[str, list[PublicError]] = {}
        self.turns: dict[str, Turn] = {}
        self.admission = Admission(rows=8, queue=8)
        options = Options(memory_bytes=memory, budget_bytes=budget)
        self.share = Share(
            self.admission,
            Needs(token_bytes=token_bytes),
            options,
            weights_bytes=WEIGHTS,
            working_set_bytes=0,
            keeps_prompts=True,
        )

    def turn(self, name: str, tokens: int) -> Turn:
        def refuse(error: PublicError) -> None:
            self.refused.setdefault(name, []).append(error)
            self.admission.leave(self.turns[name])

        self.turns[name] = Turn(lambda: self.started.append(name), lambda: tokens, refuse=refuse)
        return self.turns[name]

    def ask(self, name: str, tokens: int) -> Turn:
        turn = self.turn(name, tokens)
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
    assert line.started == ["a"], "not even alone"


def cap(rows: int) -> int:
    """What must be allowed for rows of so many MiB."""
    return cap_for(rows * MIB, WEIGHTS)


def test_a_row_that_needs_more_than_the_share_asks_for_it_and_runs_when_it_is_given() -> None:
    line = Line(cap(512), budget=cap(4096))
    told: list[int] = []
    line.admission.on_want = lambda: told.append(line.share.wanted_bytes)
    line.ask("large", 1024)
    assert line.started == [] and line.share.wanted_bytes == cap(1024)
    # Nobody else has to wait for that.
    line.ask("small", 256)
    assert line.started == ["small"]
    line.share.limit(cap(1024) - MIB)
    assert line.share.wanted_bytes == cap(1024) and line.share.reserved_bytes == WEIGHTS + 256 * MIB
    line.share.limit(cap(1024))
    assert line.started == ["small"], "together they are more than there is"
    line.ask("late", 256)
    assert line.started == ["small"], "what was asked for is for the one that asked"
    line.admission.leave(line.turns["small"])
    assert line.started == ["small", "large"]
    assert line.share.wanted_bytes == 0 and line.share.reserved_bytes == WEIGHTS + 1024 * MIB
    assert told == [cap(1024), 0]


def test_who_asks_and_leaves_asks_no_more() -> None:
    line = Line(cap(512), budget=cap(4096))
    line.ask("large", 1024)
    line.ask("larger", 2048)
    assert line.share.wanted_bytes == cap(1024)
    line.admission.leave(line.turns["large"])
    assert line.share.wanted_bytes == cap(2048)
    line.admission.leave(line.turns["larger"])
    assert line.share.wanted_bytes == 0


def test_what_was_asked_for_and_never_will_be_there_is_refused() -> None:
    line = Line(cap(512), budget=cap(4096))
    line.ask("large", 1024)
    line.share.limit(cap(512), most_bytes=cap(768), pinned={"p": 3 * 2**30})
    (error,) = line.refused["large"]
    assert (error.status, error.code) == (507, "does_not_fit")
    assert error.message.startswith(
        "1024 tokens of prompt and answer take 1.0 GiB of memory, and there are 768.0 MiB for it beside the "
        "pinned models (p 3.0 GiB)."
    )
    assert line.share.wanted_bytes == 0
    with pytest.raises(PublicError, match="beside the pinned models"):
        line.admission.check(1024)
    line.admission.check(768)


def test_rows_that_need_more_are_given_back_while_others_run() -> None:
    line = Line(cap(512), budget=cap(4096))
    for number in range(3):
        line.ask(f"large {number}", 1024)
    line.ask("small", 256)
    line.share.limit(cap(512), back=True)
    line.ask("late", 1024)
    errors = [error for name in ("large 0", "large 1", "large 2", "late") for error in line.refused[name]]
    assert [(error.status, error.code) for error in errors] == [(503, "no_room")] * 4
    assert all((HANDED_BACK, b"1") in error.headers() for error in errors)
    assert line.started == ["small"] and line.admission.in_flight == 1 and line.share.wanted_bytes == 0
    line.share.limit(cap(512))
    line.admission.leave(line.turns["small"])
    line.ask("again", 1024)
    assert line.share.wanted_bytes == cap(1024), "it may wait again"


def test_the_rows_of_a_leases_holder_keep_to_the_share_too() -> None:
    line = Line(cap(512), budget=cap(4096))
    lease = Lease(lambda: line.started.append("lease"))
    line.admission.lease(lease)
    turns = [line.turn(f"own {number}", 256) for number in range(3)]
    for turn in turns:
        line.admission.run_under(lease, turn)
    line.ask("later", 256)
    assert line.started == ["lease", "own 0", "own 1"] and line.admission.queued == 2
    line.admission.leave(turns[0])
    assert line.started == ["lease", "own 0", "own 1", "own 2"]
    for turn in turns[1:]:
        line.admission.leave(turn)
    assert line.started[-1] == "own 2"
    line.admission.release(lease)
    assert line.started[-1] == "later"


def test_a_model_that_takes_more_than_there_is_answers_short_rows_when_it_has_everything() -> None:
    """An estimate may be too low, and it was loaded all the same."""
    line = Line(WEIGHTS // 4, budget=WEIGHTS // 2, token_bytes=MIB // 8)
    line.ask("short", 256)
    assert line.started == [] and line.share.wanted_bytes == WEIGHTS // 2
    line.share.limit(WEIGHTS // 2)
    assert line.started == ["short"]
    with pytest.raises(PublicError):
        line.admission.check(1024)


def test_without_anybody_to_ask_one_row_alone_runs() -> None:
    line = Line(cap(512), budget=None)
    line.ask("grown", 1024)
    assert line.started == ["grown"] and line.share.wanted_bytes == 0


@pytest.mark.parametrize("rows_bytes", [1, 255, 10**6 + 7, 2**35 + 1])
def test_what_is_asked_for_is_enough_and_not_more(rows_bytes: int) -> None:
    asked = cap_for(rows_bytes, WEIGHTS)

    def left(cap_bytes: int) -> int:
        return room(weights_bytes=WEIGHTS, working_set_bytes=0, cap_bytes=cap_bytes, least_bytes=0).kv_bytes

    assert left(asked) >= rows_bytes > left(asked - 2)


def test_what_not_even_the_budget_has_room_for_is_refused() -> None:
    line = Line(2 * WEIGHTS, budget=4 * WEIGHTS)
    line.admission.check(2560)
    with pytest.raises(PublicError) as refused:
        line.admission.check(3072)
    assert refused.value.status == 507

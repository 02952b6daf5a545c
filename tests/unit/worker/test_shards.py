"""What rank 0 tells is all that the others need to do the same: a leading and a following batch, in step."""

import socket
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import msgspec
import pytest

from shared.launch import Host, Shards
from tests.unit.worker.test_batch import GREEDY, TINY, alone, loaded, row
from worker.engine.prompt_cache import PromptCache
from worker.engine.reuse import Reuse
from worker.engine.rows import Row
from worker.shard import __main__ as follower
from worker.shard import group
from worker.shard.batch import Clock, FollowingBatch, FollowingRows, LeadingBatch, LeadingCache
from worker.shard.orders import Join, Order, Resize, Settle, Shrink, decode_order
from worker.shard.ranks import command

OPTIONS: dict[str, Any] = {"max_rows": 4, "prefill_step": 64}


class Pair:
    """Both in one process, on the whole model: sums over one rank change nothing, so the follower is given
    what the leader has chosen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, limit: int = 2**26) -> None:
        self.orders: list[Order] = []
        self.chosen: list[Any] = []
        self.seconds = 0.0
        model = loaded(TINY)
        clock, theirs = Clock(self.tick), Clock()
        self.cache = LeadingCache(limit, tell=self.tell, clock=clock)
        self.their_cache = PromptCache(limit, clock=theirs)
        self.their_clock = theirs
        self.leader = LeadingBatch(
            model.network, model.end_tokens, tell=self.tell, clock=clock, prompts=self.cache, **OPTIONS
        )
        self.follower = FollowingBatch(model.network, model.end_tokens, prompts=self.their_cache, **OPTIONS)
        monkeypatch.setattr(mx.distributed, "all_sum", self.all_sum)
        self.leading = True

    def tick(self) -> float:
        self.seconds += 1
        return self.seconds

    def tell(self, order: Order) -> None:
        self.orders.append(order)

    def all_sum(self, array: Any) -> Any:
        if self.leading:
            self.chosen.append(array)
            return array
        return self.chosen.pop(0)

    def follow(self) -> None:
        """Let the other do what was told, as it arrives."""
        self.leading = False
        for order in self.orders:
            arrived = decode_order(msgspec.json.encode(order))
            follower.obey(arrived, self.follower, self.their_cache, self.their_clock)
        self.orders.clear()
        self.leading = True
        assert not self.chosen
        assert self.states() == self.states(theirs=True)

    def states(self, *, theirs: bool = False) -> Any:
        batch = self.follower if theirs else self.leader
        cache = self.their_cache if theirs else self.cache
        return (
            len(batch),
            batch._generator._generation_batch.tokens,
            batch._generator._prompt_batch.tokens,
            [(entry.tokens.tolist(), entry.used_s) for entry in cache.entries()],
        )


def test_the_follower_does_all_that_the_leader_does(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(monkeypatch)
    leader = pair.leader
    said: dict[int, list[int]] = {}

    def step(times: int = 1) -> None:
        for _ in range(times):
            for output in leader.step():
                said.setdefault(output.row, []).append(output.token)
            leader.settle()
            pair.follow()

    leader.insert(row(3, tokens=20))
    step(3)
    leader.insert(row(6, tokens=10))
    leader.insert(Row(1, [40 + position for position in range(200)], 30, GREEDY))
    step(6)
    for number in (10, 11, 12):
        leader.insert(Row(number, [50] * 30, 5, GREEDY, family=9))
    step(2)
    assert leader.remove(6)
    # Taken out while nothing ran in between: what is kept of it must be there for the next on both sides.
    leader.settle()
    leader.insert(row(6, tokens=10))
    step(40)
    leader.forget(9)
    assert pair.cache.entries()
    pair.cache.shrink(pair.cache.nbytes // 2)
    pair.follow()
    leader.insert(Row(2, [40 + position for position in range(220)], 30, GREEDY))
    step(40)
    assert not len(leader)
    assert said[3] == alone(row(3, tokens=20))
    assert said[10] == said[11] == said[12]
    assert said[2] == alone(Row(2, [40 + position for position in range(220)], 30, GREEDY))
    assert pair.cache.counts.hits == pair.their_cache.counts.hits > 0


@pytest.mark.parametrize("limit", [2**26, 1])
def test_both_let_a_row_have_more_and_let_it_go_on_alike(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    pair = Pair(monkeypatch, limit)
    wanted = row(3, tokens=20)
    whole = len(wanted.prompt) + 20
    said: list[int] = []

    def run(row: Row, *, more_at: int = 0) -> None:
        pair.leader.insert(row)
        while len(pair.leader):
            said.extend(output.token for output in pair.leader.step())
            if more_at and len(said) == more_at:
                pair.leader.allow(row.id, len(wanted.prompt) + 11)
            pair.leader.settle()
            pair.follow()

    run(msgspec.structs.replace(wanted, max_tokens=6, whole=whole), more_at=4)
    assert len(said) == 11 and len(pair.their_cache) == 1, "it is kept for it, whatever else is"
    left = {"prompt": [*wanted.prompt, *said], "max_tokens": 20 - len(said), "said": len(said)}
    run(msgspec.structs.replace(wanted, whole=whole, **left))
    assert said == alone(wanted)
    assert pair.their_cache.counts.reused_tokens == pair.cache.counts.reused_tokens > len(wanted.prompt)


def test_both_keep_the_same_when_the_share_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the same state takes other bytes on the other rank, as with other layers it does."""
    pair = Pair(monkeypatch)
    monkeypatch.setattr(Reuse, "sizes", differently(pair, Reuse.sizes))
    leader = pair.leader

    def answer(number: int) -> None:
        leader.insert(Row(number, [40 + number] * 60, 3, GREEDY))
        while len(leader):
            leader.step()
            leader.settle()
            pair.follow()

    for number in range(4):
        answer(number)
    assert len(pair.cache) == 4
    pair.cache.resize(pair.cache.nbytes // 2)
    pair.follow()
    assert len(pair.cache) == 2 and pair.their_cache.limit_bytes == pair.cache.limit_bytes
    for number in range(4, 7):
        answer(number)
    assert len(pair.cache) == 2
    answer(5)
    pair.cache.resize(0)
    answer(6)
    assert not pair.their_cache.entries() and not pair.cache.entries()


def differently(pair: Pair, sizes: Callable[[Reuse], list[int]]) -> Callable[[Reuse], list[int]]:
    def told(reuse: Reuse) -> list[int]:
        return [size if pair.leading else 3 * size for size in sizes(reuse)]

    return told


def test_the_follower_takes_what_the_leader_drew(monkeypatch: pytest.MonkeyPatch) -> None:
    """It neither knows how tokens are chosen nor needs to: no processor, no seed, no grammar is told."""
    from worker.request import Sampling

    pair = Pair(monkeypatch)
    pair.leader.insert(Row(1, [60, 61, 62], 20, Sampling(temperature=1.5, repetition_penalty=1.3)))
    while len(pair.leader):
        pair.leader.step()
        pair.leader.settle()
        pair.follow()
    assert isinstance(pair.follower._generator._generation_batch, FollowingRows)


def test_a_failed_step_can_not_be_recovered_from(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(monkeypatch)
    with pytest.raises(RuntimeError, match="start anew"):
        pair.leader.reset()


def test_orders_survive_their_way() -> None:
    for order in (Join(), Shrink(1.5, 7), Settle(2.0, (3, 4)), Resize(2.5, 8)):
        assert decode_order(msgspec.json.encode(order)) == order


def test_other_machines_are_reached_by_ssh() -> None:
    here, there = command(Host("127.0.0.1")), command(Host("me@studio.local"))
    assert there[0] == "ssh" and there[-2] == "me@studio.local"
    assert there[there.index("--") + 1] == "me@studio.local"
    assert here[1:] == ["-m", "worker.shard"] and there[-1].endswith("-m worker.shard")


def test_ranks_listen_where_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        number = taken.getsockname()[1]
        # Others on this machine may have any of the next ones.
        numbers = iter([number, *range(50_000, 51_000)])
        drawn: list[int] = []

        def draw(below: int) -> int:
            drawn.append(next(numbers))
            return drawn[-1]

        monkeypatch.setattr(group, "_FIRST_PORT", 0)
        monkeypatch.setattr("secrets.randbelow", draw)
        hosts = (Host("127.0.0.1", ("127.0.0.1",)), Host("far", ("192.0.2.1",)))
        (here,), (far,) = group.choose_addresses(Shards(hosts))
    assert drawn[0] == number and len(drawn) >= 3
    assert here == f"127.0.0.1:{drawn[-2]}"
    assert far == f"192.0.2.1:{drawn[-1]}"

"""Memory readings and the feed of activity."""

import mlx.core as mx

from shared.activity import Dropped, MemoryReading
from shared.status import Memory
from worker.engine.activity import Feed
from worker.engine.memory import footprint_bytes, read_memory

MEGABYTES_16 = 16 * 2**20


def test_the_footprint_comes_from_the_probe_and_the_rest_from_mlx() -> None:
    before = read_memory(weights_bytes=1, kv_bytes=2, probe=lambda: 3, working_set=4)
    array = mx.zeros((MEGABYTES_16 // 4,), dtype=mx.float32) + 1
    mx.eval(array)
    after = read_memory(weights_bytes=1, kv_bytes=2, probe=lambda: 3, working_set=4)
    figures = (after.weights_bytes, after.kv_bytes, after.footprint_bytes, after.working_set_bytes)
    assert figures == (1, 2, 3, 4)
    assert after.active_bytes - before.active_bytes >= MEGABYTES_16
    assert after.peak_bytes >= after.active_bytes
    assert after.limit_bytes > 0
    assert bool(mx.all(array == 1))


def test_the_footprint_of_this_process_is_of_a_sane_size() -> None:
    assert 20 * 2**20 < footprint_bytes() < 2**40


async def test_a_slow_listener_misses_the_oldest_lines_and_is_told_how_many() -> None:
    feed = Feed()
    slow, quick = feed.subscribe(), feed.subscribe()
    for number in range(1030):
        feed.say(MemoryReading(float(number), Memory()))
        if number == 0:
            assert len(await quick.take(1)) == 1
    lines = await slow.take(1)
    assert lines[0] == Dropped(6)
    assert len(lines) == 1 + 1024
    last = lines[-1]
    assert isinstance(last, MemoryReading) and last.at == 1029
    assert await slow.take(0.01) == []
    feed.unsubscribe(slow)
    feed.unsubscribe(quick)
    assert not feed.heard


async def test_what_was_said_before_anybody_listened_is_told_to_the_first_who_does() -> None:
    """The first requests after a load were answered before the supervisor listened: their tokens were missing
    in the log, in their timelines and in the counters."""
    feed = Feed()
    feed.say(MemoryReading(1.0, Memory()))
    first, second = feed.subscribe(), feed.subscribe()
    feed.say(MemoryReading(2.0, Memory()))
    assert [line.at for line in await first.take(1) if isinstance(line, MemoryReading)] == [1.0, 2.0]
    assert [line.at for line in await second.take(1) if isinstance(line, MemoryReading)] == [2.0]
    # A listener that comes back after its connection broke has missed nothing either.
    feed.unsubscribe(first)
    feed.unsubscribe(second)
    feed.say(MemoryReading(3.0, Memory()))
    assert len(await feed.subscribe().take(1)) == 1

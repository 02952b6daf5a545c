"""What is done about the machine's mood, with a machine that tests play."""

import asyncio

from supervisor.system.pressure import Level
from supervisor.telemetry.events import Events
from supervisor.workers.mood import Mood


class Pool:
    """Hears of pressure."""

    def __init__(self) -> None:
        self.needed = 0
        self.heard: asyncio.Queue[Level] = asyncio.Queue()

    def press(self, level: Level) -> None:
        self.heard.put_nowait(level)


class Machine:
    """A level that tests set, and an assertion that counts."""

    def __init__(self) -> None:
        self.level: Level | None = None
        self.held = asyncio.Event()
        self.closed = False

    def source(self) -> Level | None:
        return self.level

    def take(self) -> None:
        self.held.set()

    def release(self) -> None:
        self.held.clear()

    def close(self) -> None:
        self.closed = True


async def test_pressure_is_told_as_long_as_it_lasts_and_calm_is_not() -> None:
    machine, pool = Machine(), Pool()
    mood = Mood(pool, Events(), source=machine.source, assertion=machine, interval_s=0.01)
    mood.start()
    try:
        machine.level = Level.CRITICAL
        assert await pool.heard.get() == Level.CRITICAL
        # Again and again: workers that come to rest meanwhile give back what they can as well.
        assert await pool.heard.get() == Level.CRITICAL
        assert not machine.held.is_set()
        pool.needed = 1
        await asyncio.wait_for(machine.held.wait(), 20)
    finally:
        mood.close()
    assert machine.closed


async def test_a_calm_machine_is_left_alone() -> None:
    machine, pool = Machine(), Pool()
    mood = Mood(pool, Events(), source=machine.source, assertion=machine, interval_s=0.001)
    mood.start()
    pool.needed = 1
    await asyncio.wait_for(machine.held.wait(), 20)
    mood.close()
    assert pool.heard.empty()

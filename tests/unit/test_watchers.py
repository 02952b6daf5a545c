"""Whoever watches events sees each, or how many were missed."""

from supervisor.telemetry.events import Events
from supervisor.telemetry.watchers import Watcher


async def test_events_come_in_order_and_inner_ones_stay_inside() -> None:
    events = Events()
    events.emit("worker.starting", model="before")
    watcher = Watcher(events)
    events.emit("worker.ready", model="a")
    events.emit("library.error", message="/a/path")
    events.emit("download.failed", repo="b")
    taken, missed = await watcher.take(timeout_s=1)
    assert ([event.kind for event in taken], missed) == (["worker.ready", "download.failed"], 0)
    assert await watcher.take(timeout_s=0.01) == ([], 0)
    watcher.close()
    events.emit("worker.ready", model="c")
    assert await watcher.take(timeout_s=0.01) == ([], 0)


async def test_a_slow_watcher_is_told_how_much_it_missed() -> None:
    events = Events()
    watcher = Watcher(events)
    for number in range(1500):
        events.emit("worker.ready", pid=number)
    taken, missed = await watcher.take(timeout_s=1)
    assert [event.fields["pid"] for event in taken] == list(range(500, 1500))
    assert missed == 500
    events.emit("worker.ready", pid=1)
    assert (await watcher.take(timeout_s=1))[1] == 0

"""What is counted for `GET /metrics`."""

from shared.activity import FirstToken, RequestFinished
from supervisor.telemetry.events import Events
from supervisor.telemetry.tally import Histogram, Tally


def test_a_value_on_a_bound_is_within_it() -> None:
    histogram = Histogram((1, 2))
    for value in (0.5, 1, 1.5, 2, 3):
        histogram.observe(value)
    histogram.observe(9, times=2)
    assert histogram.cumulative() == [("1.0", 2), ("2.0", 4), ("+Inf", 7)]
    assert histogram.total == 26


def test_workers_and_events_are_counted_by_model() -> None:
    tally, events = Tally(), Events()
    events.subscribe(tally.take)
    events.emit("worker.ready", model="a", load_s=1.5)
    events.emit("worker.ready", model="a", pid=1)  # a lease has ended
    events.emit("worker.died", model="a")
    events.emit("worker.stopping", model="a", reason="idle")
    events.emit("download.failed", repo="org/name")
    assert tally.load_s["a"].cumulative()[-1] == ("+Inf", 1)
    assert (tally.deaths, tally.unloads, tally.downloads) == ({"a": 1}, {("a", "idle"): 1}, {"failed": 1})


def test_tokens_and_their_times() -> None:
    tally = Tally()
    tally.hear("a", FirstToken("1", 0, queued_s=0.1, ttft_s=0.3))
    for tps in (20.0, None):
        tally.hear("a", RequestFinished("1", 0, "stop", 10, 4, 21, total_s=2, decode_tps=tps))
    assert (tally.prompt_tokens["a"], tally.cached_tokens["a"], tally.completion_tokens["a"]) == (20, 8, 42)
    assert ("0.5", 1) in tally.ttft_s["a"].cumulative() and ("0.2", 0) in tally.ttft_s["a"].cumulative()
    assert tally.between_tokens_s["a"].cumulative()[-1] == ("+Inf", 20)
    assert round(tally.between_tokens_s["a"].total, 6) == 1.0

"""What became of each of the last requests, and when."""

import time
from typing import Any

import msgspec

from shared.activity import FirstToken, RequestFinished, RequestStarted
from supervisor.telemetry.events import Event, Events
from supervisor.telemetry.timelines import KEPT, Timelines


def watched() -> tuple[Timelines, list[Event]]:
    events, seen = Events(), list[Event]()
    events.subscribe(seen.append)
    return Timelines(events), seen


def worked(timelines: Timelines, name: str, at: float, **started: Any) -> None:
    """What a worker tells of a whole request: prepared, admitted, first and last token."""
    timelines.hear("m", RequestStarted("r1", at, "chat", 7, request_id=name, **started))
    timelines.hear("m", FirstToken("r1", at + 0.3, queued_s=0.1, ttft_s=0.3))
    finished = RequestFinished("r1", at + 1, "stop", 7, 3, 9, total_s=1.0)
    timelines.hear("m", finished)


async def test_a_request_from_its_coming_to_its_end() -> None:
    timelines, seen = watched()
    came = time.monotonic()
    mark = timelines.begin("a", "/v1/messages", came)
    mark.parsed("m", "ready")
    mark.placed()
    worked(timelines, "a", came + 1)
    assert not seen, "the answer is not over"
    timelines.end(mark, 200)
    line = timelines.find("a")
    assert line is not None and line.parsed_ms is not None and line.placed_ms is not None
    assert 0 <= line.parsed_ms <= line.placed_ms < 900
    assert (line.prepared_ms, line.admitted_ms) == (1000, 1100)
    assert (line.first_token_ms, line.last_token_ms) == (1300, 2000)
    assert (line.tokens_in, line.tokens_cached, line.tokens_out, line.ended) == (7, 3, 9, "stop")
    (event,) = seen
    assert event.kind == "request.finished"
    assert (event.fields["request"], event.fields["status"], event.fields["tokens_out"]) == ("a", 200, 9)


async def test_the_event_says_what_the_timeline_shows() -> None:
    timelines, seen = watched()
    for name, ended in (("whole", True), ("bare", False)):
        mark = timelines.begin(name, "/v1/messages", time.monotonic())
        if ended:
            mark.parsed("m", "ready")
            mark.placed()
            worked(timelines, name, time.monotonic())
        timelines.end(mark, 200)
    timelines.close()
    for event in seen:
        shown = msgspec.to_builtins(timelines.find(str(event.fields["request"])))
        told = {**event.fields, "id": event.fields["request"], "received_at": shown["received_at"]}
        told.pop("request")
        assert told == shown
    assert len(seen) == 2


async def test_what_the_worker_tells_may_come_after_the_end() -> None:
    timelines, seen = watched()
    mark = timelines.begin("a", "/v1/messages", time.monotonic())
    timelines.end(mark, 200)
    assert not seen
    worked(timelines, "a", time.monotonic())
    assert [event.fields["tokens_out"] for event in seen] == [9]
    timelines.close()
    assert len(seen) == 1, "it is told once"


async def test_what_no_worker_saw_is_told_as_far_as_it_came() -> None:
    timelines, seen = watched()
    timelines.end(timelines.begin("a", "/v1/messages", time.monotonic()), 404)
    timelines.close()
    assert [event.fields["status"] for event in seen] == [404]
    assert "model" not in seen[0].fields


async def test_a_thousand_are_kept_and_a_name_finds_its_last() -> None:
    timelines, _ = watched()
    for number in range(KEPT + 1):
        timelines.begin(str(number), "/v1/messages", 0.0)
    assert timelines.find("0") is None and timelines.find("1") is not None
    timelines.begin("1", "/v1/completions", 0.0)
    again = timelines.find("1")
    assert again is not None and again.route == "/v1/completions"
    assert timelines.find("2") is not None


async def test_requests_of_others_are_no_concern() -> None:
    timelines, seen = watched()
    worked(timelines, "unknown", 0.0)
    timelines.hear("m", RequestStarted("r2", 0.0, "memory", 3))
    assert not seen


async def test_nothing_is_kept_of_requests_whose_worker_was_killed() -> None:
    """A killed worker never tells of the end of what it had: each such request stayed for good."""
    timelines, seen = watched()
    for number in range(2 * KEPT):
        mark = timelines.begin(str(number), "/v1/messages", 0.0)
        timelines.hear("m", RequestStarted(f"r{number}", 1.0, "chat", 7, request_id=mark.id))
        timelines.end(mark, 502)
    timelines.close()
    assert len(seen) == 2 * KEPT
    assert len(timelines._running) <= KEPT, "of those that are to be found by name, for a late word of them"
    for number in range(KEPT):
        timelines.begin(f"next {number}", "/v1/messages", 0.0)
    assert not timelines._running


async def test_one_whose_first_worker_died_is_told_of_by_its_second() -> None:
    timelines, seen = watched()
    mark = timelines.begin("a", "/v1/messages", 0.0)
    timelines.hear("m", RequestStarted("first", 1.0, "chat", 7, request_id="a"))
    worked(timelines, "a", 2.0)
    assert not timelines._running
    timelines.hear("m", RequestFinished("first", 9.0, "failed", 7, 0, 1, total_s=8.0))
    timelines.end(mark, 200)
    assert [event.fields["ended"] for event in seen] == ["stop"]


async def test_a_request_that_outlasts_a_thousand_others_is_heard_of_to_its_end() -> None:
    timelines, seen = watched()
    mark = timelines.begin("a", "/v1/messages", time.monotonic())
    timelines.hear("m", RequestStarted("r1", 1.0, "chat", 7, request_id="a"))
    for number in range(KEPT):
        timelines.begin(str(number), "/v1/messages", 0.0)
    timelines.hear("m", RequestFinished("r1", 2.0, "length", 7, 0, 9, total_s=1.0))
    timelines.end(mark, 200)
    assert [(event.fields["tokens_out"], event.fields["ended"]) for event in seen] == [(9, "length")]
    assert not timelines._running

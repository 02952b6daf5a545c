"""What happened, as lines: escaped, counted when lost, never in the way."""

import asyncio
import contextlib
import gc
import json
import logging
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.telemetry.appendfile import AppendFile, LogLimits, older
from supervisor.telemetry.events import Event, Events, Field
from supervisor.telemetry.lines import log_line, terminal_line
from supervisor.telemetry.logs import LogFile, Logs

NASTY = "evil\r\n2026-01-01 info forged\x1b[2J\x9b31m\u202e\u2028\x00"


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def log(tmp_path: Path, events: Events) -> Iterator[Path]:
    path = tmp_path / "supervisor.log"
    logs = Logs(path, events)
    yield path
    logs.close()


def test_subscribers_get_every_event_in_order_until_they_leave(events: Events) -> None:
    seen: list[str] = []
    leave = events.subscribe(lambda event: seen.append(event.kind))
    events.subscribe(lambda event: seen.append(event.kind.upper()))
    events.emit("a.b", model="m")
    leave()
    events.emit("c.d")
    assert seen == ["a.b", "A.B", "C.D"]


def test_a_line_has_time_level_event_and_fields(log: Path, events: Events) -> None:
    events.emit("worker.ready", model="qwen3-8b", pid=4711, load_s=2.0625, spare=True, exit=None)
    events.emit("worker.crashed", level="error", reason="out of memory", line='said "no" \\ =', empty="")
    first, second = log.read_text().splitlines()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info worker\.ready "
        r"model=qwen3-8b pid=4711 load_s=2\.0625 spare=true",
        first,
    )
    assert second.endswith(
        r"""Z error worker.crashed reason="out of memory" line="said \"no\" \\ =" empty="" """.rstrip()
    )
    assert os.stat(log).st_mode & 0o777 == 0o600


def test_control_characters_are_escaped(log: Path, events: Events) -> None:
    """Fault 38: CR, LF and ANSI in what clients send neither forge lines nor act on a terminal."""
    fields: dict[str, Any] = {"path": NASTY, NASTY: NASTY}
    events.emit("request.refused", **fields)
    text = log.read_text()
    assert text.count("\n") == 1
    assert text[:-1].isprintable()
    assert r"evil\r\n2026" in text
    assert r"\x1b[2J" in text


@given(st.text(), st.text())
def test_no_text_breaks_out_of_its_line(name: str, value: str) -> None:
    line = log_line(Event(0.0, "a.b", "info", {name: value})).decode()
    assert line.startswith("1970-01-01T00:00:00.000Z info a.b ")
    assert line[:-1].isprintable()
    assert line[-1] == "\n"


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({}, ""),
        ({"a": "b", "n": 3, "s": 0.1234567891}, " a=b n=3 s=0.123457"),
        ({"a": "b c", "n": 3}, ' a="b c" n=3'),
        ({"a": "", "b": "x" * 201}, f' a="" b={"x" * 201}'),
        ({"a": True, "b": False, "c": None, "d": 1}, " a=true b=false d=1"),
        ({"a": 1e300, "b": float("inf"), "c": -0.0, "d": 10**30}, f" a=1e+300 b=inf c=-0 d={10**30}"),
        ({"100%": "100%", "b": "%s"}, " 100%=100% b=%s"),
        ({"a b": 1, "c": "\n"}, ' "a b"=1 c="\\n"'),
    ],
)
def test_a_line_has_every_field_as_it_is(fields: dict[str, Field], line: str) -> None:
    """Whether its shape was known or not."""
    for _ in range(2):
        assert log_line(Event(0.0, "a.b", "info", fields)).decode() == (
            f"1970-01-01T00:00:00.000Z info a.b{line}\n"
        )


def test_a_giant_text_is_cut(log: Path, events: Events) -> None:
    events.emit("request.refused", model="x" * 10**6)
    assert log.stat().st_size < 5000


LIMITED = """
import resource, sys
from pathlib import Path
from supervisor.telemetry.events import Events
from supervisor.telemetry.logs import Logs
events = Events()
logs = Logs(Path(sys.argv[1]), events)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (250, hard))
for number in range(20):
    events.emit("line", number=number)
print(logs.dropped)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
events.emit("line", number=20)
events.emit("line", number=21)
print(logs.dropped)
logs.close()
"""


def test_a_full_disk_drops_lines_and_counts_them(tmp_path: Path) -> None:
    """Fault 16. A file size limit makes the same half-written line and errors as a full disk."""
    log = tmp_path / "supervisor.log"
    ran = subprocess.run(
        [sys.executable, "-c", LIMITED, str(log)], capture_output=True, text=True, check=True
    )
    before, after = map(int, ran.stdout.split())
    assert 10 < before < 20
    assert after == before
    lines = log.read_text().splitlines()
    whole = [int(match[1]) for line in lines if (match := re.search(r"Z info line number=(\d+)$", line))]
    assert whole == [*range(20 - before), 20, 21]
    assert any(line.endswith(f"Z warning log.dropped lines={before}") for line in lines)


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path, events: Events) -> None:
    """Fault 16. A missing folder stands for a read-only one: root may write into those."""
    folder = tmp_path / "logs"
    logs = Logs(folder / "supervisor.log", events)
    events.emit("one")
    events.emit("two")
    assert logs.dropped == 2 and events.lost_lines == {"": 2}
    folder.mkdir()
    logs.file._file.next_try_s = 0.0
    events.emit("three")
    logs.close()
    text = (folder / "supervisor.log").read_text()
    assert "log.dropped lines=2" in text
    assert " three" in text


def test_a_symlink_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to(tmp_path / "elsewhere")
    file = LogFile(tmp_path / "log")
    file.write(Event(0.0, "a", "info", {}))
    assert file.dropped == 1
    assert not (tmp_path / "elsewhere").exists()


def test_nothing_is_written_after_the_end(log: Path, events: Events) -> None:
    logs = Logs(log, events)
    logs.close()
    before = log.read_text()
    logs.file.write(Event(0.0, "late", "info", {}))
    assert log.read_text() == before


def test_what_libraries_warn_of_is_an_event(
    log: Path, events: Events, capfd: pytest.CaptureFixture[str]
) -> None:
    logging.getLogger("uvicorn.error").info("started")
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    text = log.read_text()
    assert text.count("\n") == 1
    assert 'warning library.warning logger=uvicorn.error message="Invalid HTTP request received."' in text
    assert capfd.readouterr() == ("", "")


def test_what_an_exception_says_stays_out_of_the_log(log: Path, events: Events) -> None:
    """An exception's text may quote a prompt; its type and place tell enough."""

    async def fail() -> None:
        raise ValueError("the secret prompt")

    async def forget_a_task() -> None:
        await asyncio.wait([asyncio.create_task(fail())])

    asyncio.run(forget_a_task())
    gc.collect()
    try:
        raise KeyError("the secret prompt")
    except KeyError:
        logging.getLogger("uvicorn.error").exception("Exception in ASGI application\n")
    text = log.read_text()
    assert "secret" not in text
    assert 'message="Task exception was never retrieved" error=ValueError' in text
    assert 'message="Exception in ASGI application" error=KeyError place=test_logs.py:' in text


# The terminal.


def read_terminal(descriptor: int, until: str, timeout_s: float = 10.0) -> str:
    text = ""
    end_s = time.monotonic() + timeout_s
    while until not in text:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, end_s - time.monotonic()))
        assert ready, f"waited for {until!r}, got {text!r}"
        text += os.read(descriptor, 4096).decode()
    return text


def test_a_terminal_gets_short_lines(tmp_path: Path, events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        logs = Logs(tmp_path / "log", events, terminal=terminal)
        events.emit("something.dull", model="qwen3-8b")
        events.emit("worker.ready", model="qwen3-8b", pid=1, load_s=2.06)
        events.emit("something.odd", level="error", model="\x1b[2J", wait_s=90.0, size_bytes=2**31)
        text = read_terminal(ours, "GiB")
        logs.close()
    os.close(ours)
    assert "dull" not in text
    assert re.search(r"\d\d:\d\d:\d\d qwen3-8b: ready after 2\.1s\r\n", text)
    assert "something.odd model=\\x1b[2J wait_s=1m 30s size_bytes=2.0 GiB" in text
    assert "\x1b[31m" in text


def test_a_terminal_that_is_held_up_holds_up_nobody(tmp_path: Path, events: Events) -> None:
    """Ctrl-S, or a person who scrolls back: the terminal takes nothing, the service goes on."""
    ours, theirs = pty.openpty()
    terminal = os.fdopen(theirs, "w")
    logs = Logs(tmp_path / "log", events, terminal=terminal)
    started_s = time.monotonic()
    for number in range(3000):
        events.emit("something.odd", level="warning", number=number, filler="x" * 100)
    assert time.monotonic() - started_s < 5
    assert (tmp_path / "log").read_text().count("\n") == 3000
    logs.close()
    os.close(ours)  # ends the writer: its terminal is gone
    assert logs.terminal is not None
    logs.terminal._thread.join(10)
    assert not logs.terminal._thread.is_alive()
    with contextlib.suppress(OSError):
        terminal.close()


def test_a_pipe_gets_no_short_lines(tmp_path: Path, events: Events) -> None:
    with (tmp_path / "piped").open("w") as piped:
        logs = Logs(tmp_path / "log", events, terminal=piped)
        events.emit("something.odd", level="error")
        logs.close()
    assert (tmp_path / "piped").read_text() == ""


@pytest.mark.parametrize(
    ("event", "shown"),
    [
        (Event(0.0, "worker.starting", "info", {"model": "m", "generation": 1}), "m: loading"),
        (Event(0.0, "worker.ready", "info", {"model": "m", "load_s": 75.0}), "m: ready after 1m 15s"),
        (Event(0.0, "worker.ready", "info", {"model": "m", "pid": 1}), "m: ready"),
        (Event(0.0, "worker.died", "warning", {"model": "m", "how": "killed"}), "m: died: killed"),
        (Event(0.0, "worker.died", "warning", {"model": "m"}), "worker.died model=m"),
        (Event(0.0, "worker.gone", "info", {"model": "{load_s}"}), "{load_s}: unloaded"),
        (Event(0.0, "worker.draining", "info", {"model": "m"}), None),
    ],
)
def test_what_a_person_reads(event: Event, shown: str | None) -> None:
    line = terminal_line(event, colour=False)
    assert (line and line.partition(" ")[2]) == shown


def test_no_colour_without_a_colour_terminal() -> None:
    line = terminal_line(Event(0.0, "odd", "error", {}), colour=False)
    assert line is not None
    assert "\x1b" not in line


def test_a_full_log_begins_anew_and_keeps_every_line(tmp_path: Path, events: Events) -> None:
    path = tmp_path / "supervisor.log"
    logs = Logs(path, events, limits=LogLimits(size_bytes=1000, keep=50))
    for number in range(200):
        events.emit("line", number=number)
    logs.close()
    files = [path, *(older(path, number) for number in range(1, 40) if older(path, number).exists())]
    assert len(files) > 5
    assert all(file.stat().st_size <= 1000 and file.stat().st_mode & 0o777 == 0o600 for file in files)
    text = "".join(file.read_text() for file in reversed(files))
    assert re.findall(r"number=(\d+)", text) == [str(number) for number in range(200)]


def test_only_so_many_full_logs_are_kept(tmp_path: Path, events: Events) -> None:
    path = tmp_path / "supervisor.log"
    for keep, names in (
        (2, ["supervisor.log", "supervisor.log.1", "supervisor.log.2"]),
        (0, ["supervisor.log"]),
    ):
        logs = Logs(path, events, limits=LogLimits(size_bytes=300, keep=keep))
        for number in range(100):
            events.emit("line", number=number)
        logs.close()
        assert sorted(file.name for file in tmp_path.iterdir()) == names
        assert path.read_text().endswith("number=99\n")
        for file in tmp_path.iterdir():
            file.unlink()


def test_a_log_that_two_write_to_is_put_aside_once(tmp_path: Path) -> None:
    """A worker that leaves and the next of its model: each line is there, in one of the files."""
    path = tmp_path / "worker.log"
    limits = LogLimits(size_bytes=400, keep=100)
    first, second = AppendFile(path, limits), AppendFile(path, limits)
    for number in range(60):
        line = b"%03d %s\n" % (number, b"x" * 20)
        assert (first if number % 2 else second).append(line) == len(line)
    first.close()
    second.close()
    lines = b"".join(file.read_bytes() for file in tmp_path.iterdir()).splitlines()
    assert sorted(int(line[:3]) for line in lines) == list(range(60))


def test_a_line_longer_than_the_limit_is_written_whole(tmp_path: Path) -> None:
    file = AppendFile(tmp_path / "log", LogLimits(size_bytes=100, keep=3))
    assert file.append(b"x" * 500 + b"\n") == 501
    assert file.append(b"y\n") == 2
    file.close()
    assert (tmp_path / "log").read_bytes() == b"y\n"
    assert older(tmp_path / "log", 1).stat().st_size == 501


def test_json_lines_are_objects_and_break_nothing(tmp_path: Path, events: Events) -> None:
    path = tmp_path / "supervisor.log"
    logs = Logs(path, events, json=True)
    events.emit("request.refused", level="warning", path=NASTY, pid=7, ok=True, nothing=None, time="mine")
    logs.close()
    (line,) = path.read_bytes().splitlines()
    record = json.loads(line)
    assert record.pop("time").endswith("Z")
    assert record == {"level": "warning", "event": "request.refused", "path": NASTY, "pid": 7, "ok": True}


# Lines of finished requests, which are gathered.


def finished(events: Events, *numbers: int) -> None:
    for number in numbers:
        events.emit("request.finished", request=str(number))


async def test_lines_of_requests_are_written_soon_and_in_order(log: Path, events: Events) -> None:
    finished(events, 1, 2)
    assert log.read_text() == "", "they wait for each other"
    async with asyncio.timeout(20):
        while not log.read_text():  # noqa: ASYNC110  # nobody tells when a file was written
            await asyncio.sleep(0.02)
    finished(events, 3)
    events.emit("worker.ready", model="m")
    finished(events, 4)
    lines = log.read_text().splitlines()
    assert [line.partition(" info ")[2] for line in lines] == [
        "request.finished request=1",
        "request.finished request=2",
        "request.finished request=3",
        "worker.ready model=m",
    ]


async def test_an_error_and_the_end_leave_no_line_behind(tmp_path: Path, events: Events) -> None:
    path = tmp_path / "supervisor.log"
    logs = Logs(path, events)
    finished(events, 1)
    logging.getLogger("asyncio").error("a task failed")
    assert path.read_text().count("\n") == 2
    finished(events, 2)
    logs.close()
    assert path.read_text().endswith("request=2\n")


async def test_many_lines_do_not_wait(log: Path, events: Events) -> None:
    finished(events, *range(1000))
    assert log.read_text().count("\n") > 500


def test_without_a_loop_nothing_waits(log: Path, events: Events) -> None:
    finished(events, 1)
    assert log.read_text().endswith("request=1\n")


async def test_gathered_lines_that_are_lost_are_counted_each(tmp_path: Path, events: Events) -> None:
    folder = tmp_path / "logs"
    logs = Logs(folder / "supervisor.log", events)
    finished(events, 1, 2, 3)
    events.emit("worker.ready", model="m")
    assert logs.dropped == 4 and events.lost_lines == {"": 4}
    folder.mkdir()
    logs.file._file.next_try_s = 0.0
    finished(events, 4)
    logs.close()
    first, second = (folder / "supervisor.log").read_text().splitlines()
    assert first.endswith("log.dropped lines=4") and second.endswith("request=4")

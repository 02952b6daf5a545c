"""The end of logs, and what comes next."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from supervisor.system.tail import Tail
from supervisor.telemetry.appendfile import older


def test_the_last_lines_of_each_log_that_is_there(tmp_path: Path) -> None:
    one, two = tmp_path / "one.log", tmp_path / "two.log"
    one.write_bytes(b"".join(f"line {number}\r\n".encode() for number in range(100_000)))
    two.write_bytes(b"only\nhalf \xff")
    tail = Tail([one, tmp_path / "absent.log", two])
    assert list(tail.last(2)) == [
        ("one", "line 99998"),
        ("one", "line 99999"),
        ("two", "only"),
        ("two", "half �"),
    ]
    assert list(tail.last(0)) == []
    assert len(list(Tail([one]).last(50_000))) == 50_000


def test_what_is_written_next_is_followed_through_rotation_and_cutting(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("old\n")

    def append(text: str) -> None:
        with log.open("a") as file:
            file.write(text)

    steps: Iterator[Callable[[], object]] = iter(
        (
            lambda: append("a "),
            lambda: append("whole line\n"),
            lambda: log.rename(tmp_path / "a.log.1"),
            lambda: log.write_text("new file\n"),
            lambda: log.write_text("cut\n"),
            log.unlink,
            lambda: log.write_text("back\n"),
        )
    )

    def sleep(_duration_s: float) -> None:
        next(steps)()

    tail = Tail([log], sleep=sleep)
    assert list(tail.last(1)) == [("a", "old")]
    lines = list(itertools.islice(tail.follow(), 4))
    assert [line for _, line in lines] == ["a whole line", "new file", "cut", "back"]


def test_what_was_written_since_a_moment_also_in_full_logs(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    older(log, 2).write_text("2026-01-01T00:00:00.000Z one\n2026-01-02T00:00:00.000Z two\n")
    older(log, 1).write_text("2026-01-03T00:00:00.000Z three\n  of three\n")
    log.write_text('{"time":"2026-01-04T00:00:00.000Z","event":"four"}\n')
    found = [line for _, line in Tail([log]).since("2026-01-02T00:00:00.000Z")]
    assert [line.split()[-1] for line in found[:3]] == ["two", "three", "three"]
    assert found[2:] == ["  of three", '{"time":"2026-01-04T00:00:00.000Z","event":"four"}']
    assert [line for _, line in Tail([log]).last(2)] == ["  of three", found[-1]]

"""What workers write: lines off a pipe, a log, a tail."""

import asyncio
import os
from pathlib import Path

from supervisor.telemetry.appendfile import AppendFile
from supervisor.workers.output import LONGEST_LINE_BYTES, TAIL_LINES, LineReader, Output


class Pipe:
    """A pipe whose reading end a LineReader owns."""

    def __init__(self) -> None:
        reading, self.end = os.pipe()
        self.lines: list[bytes] = []
        self.came = asyncio.Event()
        self.reader = LineReader(reading, self._take)

    def _take(self, lines: list[bytes]) -> None:
        self.lines += lines
        self.came.set()

    def close(self) -> None:
        os.close(self.end)
        self.reader.close()


async def test_lines_come_whole_however_they_are_written() -> None:
    pipe = Pipe()
    for piece in (b"on", b"e\ntw", b"o\n\nthree"):
        os.write(pipe.end, piece)
        pipe.reader.drain()
    assert pipe.lines == [b"one", b"two", b""]
    pipe.close()
    assert pipe.lines[-1] == b"three"


async def test_lines_come_by_themselves() -> None:
    pipe = Pipe()
    os.write(pipe.end, b"hello\n")
    await pipe.came.wait()
    assert pipe.lines == [b"hello"]
    pipe.close()


async def test_the_end_is_noticed() -> None:
    pipe = Pipe()
    os.close(pipe.end)
    pipe.reader.drain()
    assert pipe.reader.at_end
    pipe.reader.close()


async def test_a_line_without_end_is_taken_in_pieces() -> None:
    pipe = Pipe()
    for _ in range(8):
        os.write(pipe.end, b"x" * LONGEST_LINE_BYTES)
        pipe.reader.drain()
    assert {len(line) for line in pipe.lines} == {LONGEST_LINE_BYTES}
    pipe.close()
    assert sum(map(len, pipe.lines)) == 8 * LONGEST_LINE_BYTES


def test_the_log_gets_what_a_spare_wrote_before_it_had_one(tmp_path: Path) -> None:
    output = Output()
    output.stderr([b"before"])
    output.attach(AppendFile(tmp_path / "log"), 4711)
    output.stdout([b"after"])
    output.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["4711 before", "4711 after"]
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


def test_the_tail_is_short_and_of_stderr_only() -> None:
    output = Output()
    output.stdout([b"noise"])
    output.stderr([b"%d" % number for number in range(100)])
    assert output.tail == tuple(str(number) for number in range(100 - TAIL_LINES, 100))


def test_what_acts_on_a_terminal_is_escaped(tmp_path: Path) -> None:
    output = Output()
    output.attach(AppendFile(tmp_path / "log"), 1)
    output.stderr([b"\x1b[2Jred\x07 \xff", b" 10%|#\r 50%|##\r100%|###"])
    output.close()
    assert output.tail == ("\\x1b[2Jred\\x07 �", "100%|###")
    assert "\x1b" not in (tmp_path / "log").read_text()


def test_a_log_that_is_a_symlink_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "log").symlink_to(tmp_path / "victim")
    output = Output()
    lost: list[int] = []
    output.attach(AppendFile(tmp_path / "log"), 1, lost.append)
    output.stdout([b"one", b"two"])
    assert output.dropped == 2 and lost == [2] and not (tmp_path / "victim").exists()

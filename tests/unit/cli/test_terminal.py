"""What verbs print into a pipe and on a terminal."""

import contextlib
import json
import os
import pty
import subprocess
import sys

import pytest

from supervisor.cli.terminal import say, say_json, say_table

NASTY = "a\x1b[2J\r\x9b\u202e"
TABLE = f"""
from supervisor.cli.terminal import say_table
say_table(("model", "state", "in flight"), [("[red]x", "ready", "1"), ({NASTY!r}, "failed", "22")],
          right=("in flight",), styles=["good", "bad"])
"""


def test_a_pipe_gets_plain_columns(capsys: pytest.CaptureFixture[str]) -> None:
    say_table(
        ("model", "in flight"),
        [("a", "1"), ("long name", "22")],
        right=("in flight",),
        styles=["good", "bad"],
    )
    assert capsys.readouterr().out == "MODEL      IN FLIGHT\na                  1\nlong name         22\n"


def test_nothing_that_acts_on_a_terminal_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    say(NASTY)
    say_table(("model",), [(f"{NASTY}\n",)])
    assert set(capsys.readouterr().out) & set("\x1b\r\x9b\u202e") == set()


def test_json_is_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    say_json({"model": NASTY, "name": "ü"})
    out = capsys.readouterr().out
    assert json.loads(out) == {"model": NASTY, "name": "ü"}
    assert out.isascii()
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("term", "more", "coloured"),
    [("xterm-256color", {}, True), ("dumb", {}, False), ("xterm-256color", {"NO_COLOR": "1"}, False)],
)
def test_a_terminal_gets_colour_if_it_has_any(term: str, more: dict[str, str], coloured: bool) -> None:
    ours, theirs = pty.openpty()
    environ = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | more
    subprocess.run(
        [sys.executable, "-c", TABLE],
        stdout=theirs,
        check=True,
        env={**environ, "TERM": term, "COLUMNS": "80"},
    )
    os.close(theirs)
    text = ""
    with open(ours, "rb", buffering=0) as terminal, contextlib.suppress(OSError):
        # It comes in pieces; on Linux its end is an error.
        while piece := terminal.read(65536):
            text += piece.decode()
    assert "[red]x" in text, "a name was read as markup"
    assert ("\x1b[32mready" in text) == coloured
    assert ("\x1b" in text) == coloured
    assert "\x1b[2J" not in text

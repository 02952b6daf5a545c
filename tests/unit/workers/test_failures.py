"""What clients are told: enough to act on, nothing about this machine."""

import pytest

from supervisor.workers import failures
from supervisor.workers.exits import exit_of


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no such file: /home/me/.cache/models/a/config.json", "no such file: config.json"),
        ("can't read '/srv/My.Models/a/': denied", "can't read 'a': denied"),
        ("~/models/x.gguf is broken", "x.gguf is broken"),
        ("shape (3/4) of 1/2", "shape (3/4) of 1/2"),
        ("ratio 3/4, see docs", "ratio 3/4, see docs"),
        ("model org/name is unknown", "model org/name is unknown"),
    ],
)
def test_folders_are_taken_out_of_paths(text: str, shown: str) -> None:
    assert failures.public(text) == shown


def test_a_traceback_is_told_by_its_last_line() -> None:
    lines = (
        "Traceback (most recent call last):",
        '  File "/home/me/worker/model.py", line 3, in load',
        "    return read(path)",
        "ValueError: unknown type Q4_K in /home/me/models/a.gguf",
    )
    error = failures.failed("a", "exit code 1 while loading", lines)
    assert error.status == 502 and error.code == "engine_unavailable"
    assert "ValueError: unknown type Q4_K in a.gguf" in error.message
    for hidden in ("Traceback", "model.py", "/home", "return"):
        assert hidden not in error.message


def test_what_a_load_said_itself_is_told_once_and_not_to_be_tried_again() -> None:
    """The reason came twice, and `retry-after: 1` beside `it is not tried again`."""
    reason = "the tokenizer can't be read: EOF at line 2"
    lines = (f"ERROR worker: the model could not be loaded: {reason}",)
    error = failures.failed("a b", reason, lines)
    assert error.message == (
        f"Model 'a b' can't be loaded: {reason}. It is not tried again until someone loads it "
        "(mlx-supervisor load 'a b') or its settings change."
    )
    assert not [name for name, _ in error.headers() if name == b"retry-after"]
    assert not [
        name for name, _ in failures.broken("a", "no config.json").headers() if name == b"retry-after"
    ]


def test_a_death_is_told_with_its_last_line() -> None:
    ended = exit_of(-11, "ready", cause=None, lived_s=3.0, last_lines=("first", "out of bounds"))
    error = failures.unavailable("a", "restarting", ended)
    assert error.message == (
        "Model 'a' stopped working: killed by SIGSEGV. State now: restarting; try again. "
        "Last log line: out of bounds"
    )


def test_an_exit_is_shown_without_folders_and_all_its_lines() -> None:
    ended = exit_of(1, "loading", cause="no /srv/models/a", lived_s=3.0, last_lines=("one", "in /srv/b.py"))
    shown = failures.shown(ended)
    assert (shown.cause, shown.last_lines) == ("no a", ("in b.py",))
    assert shown.code == 1


def test_a_full_queue_says_when_to_come_again() -> None:
    error = failures.queue_full("a", 72, 1.0)
    assert (b"retry-after", b"1") in error.headers()

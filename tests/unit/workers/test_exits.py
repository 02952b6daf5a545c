"""Ends of processes in words."""

import pytest

from supervisor.workers.exits import Exit, Moment, exit_of


@pytest.mark.parametrize(
    ("returncode", "during", "cause", "words"),
    [
        (3, "ready", None, "exit code 3"),
        (1, "loading", None, "exit code 1 while loading"),
        (-9, "ready", None, "killed by SIGKILL"),
        (-9, "loading", None, "killed by SIGKILL while loading: it may not fit into memory"),
        (-15, "loading", None, "killed by SIGTERM while loading"),
        (-9, "ready", "it did not answer for 10 s", "killed by SIGKILL: it did not answer for 10 s"),
        (-250, "ready", None, "killed by signal 250"),
    ],
)
def test_an_exit_is_told(returncode: int, during: Moment, cause: str | None, words: str) -> None:
    assert exit_of(returncode, during, cause=cause, lived_s=1.0, last_lines=()).describe() == words


def test_what_could_not_be_started_is_told() -> None:
    ended = Exit(during="loading", cause="Too many open files")
    assert ended.describe() == "it could not be started: Too many open files"

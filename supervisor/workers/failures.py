"""What a client is told when no worker can answer it: a sentence that says what happened and what to do."""

import re
import shlex
from collections.abc import Sequence
from typing import Final

import msgspec

from shared.errors import PublicError
from shared.sizes import format_size
from supervisor.workers.exits import Exit

_PATH: Final = re.compile(r"(?<![\w.])~?(?:/[^\s/'\":,;()]+)*/([^\s/'\":,;()]+)/?")
_LINES: Final = 3
_LONGEST: Final = 300


def unavailable(model_id: str, state: str, ended: Exit | None) -> PublicError:
    """502: the worker died, or does not answer, while it had the request."""
    if ended is None:
        return _unavailable(f"Model {model_id!r} does not answer (state: {state}); try again.")
    return _unavailable(
        f"Model {model_id!r} stopped working: {public(ended.describe())}. State now: {state}; try again."
        + last_words(ended.last_lines, lines=1)
    )


def failed(model_id: str, reason: str, lines: Sequence[str]) -> PublicError:
    """502: the model's load failed, and it is not tried again by itself."""
    # What it said itself is among its last lines as well.
    told = "" if any(reason in line for line in lines) else last_words(lines)
    return _unavailable(
        f"Model {model_id!r} can't be loaded: {public(reason)}. It is not tried again until someone loads it "
        f"(mlx-supervisor load {shlex.quote(model_id)}) or its settings change.{told}",
        again=False,
    )


def broken(model_id: str, problem: str) -> PublicError:
    """502: something is wrong with the model's files, so that no load is tried."""
    return _unavailable(f"Model {model_id!r} can't be loaded: {public(problem)}.", again=False)


def queue_full(model_id: str, limit: int, retry_after_s: float) -> PublicError:
    """429: as many requests as its settings allow run or wait already."""
    return PublicError(
        429,
        "queue_full",
        f"Model {model_id!r} has {limit} requests running or waiting, which is its limit; try again later.",
        retry_after_s=retry_after_s,
    )


def crowded(limit: int) -> PublicError:
    """429: as many requests as the settings allow wait already, over all models."""
    return PublicError(
        429,
        "queue_full",
        f"{limit} requests wait already, which is the limit (memory.max_waiting); try again later.",
        retry_after_s=5,
    )


def too_large(model_id: str, needs_bytes: int, budget_bytes: int) -> PublicError:
    """507: it would not fit even alone."""
    return PublicError(
        507,
        "does_not_fit",
        f"Model {model_id!r} needs {format_size(needs_bytes)}, and all models together may take "
        f"{format_size(budget_bytes)}. Take a smaller one, lower its context, or raise memory.budget.",
    )


def beside_pinned(
    model_id: str, needs_bytes: int, budget_bytes: int, holders: Sequence[tuple[str, int]]
) -> PublicError:
    """507: pinned models hold what it would need, and they never leave by themselves."""
    held = ", ".join(f"{name} {format_size(size)}" for name, size in holders)
    return PublicError(
        507,
        "does_not_fit",
        f"Model {model_id!r} needs {format_size(needs_bytes)} of {format_size(budget_bytes)}, and pinned "
        f"models stay loaded ({held}). Unload or unpin one, or raise memory.budget.",
    )


def stopping() -> PublicError:
    """503: the supervisor is ending."""
    return PublicError(503, "stopping", "The server is stopping; try again later.", retry_after_s=10)


def last_words(stderr: Sequence[str], *, lines: int = _LINES) -> str:
    """` Last log lines: ...` for an error body, without tracebacks and folders; empty if it said nothing."""
    # The indented lines of a traceback quote our source; the line after them says what it was.
    telling = [line for line in stderr if not line.startswith((" ", "Traceback ", "During handling"))]
    if not telling:
        return ""
    shown = " | ".join(public(line.strip())[:_LONGEST] for line in telling[-lines:])
    return f" Last log line{'s' if lines > 1 else ''}: {shown}"


def shown(ended: Exit) -> Exit:
    """`ended` as anyone may see it: with its last line alone, and no folders."""
    return msgspec.structs.replace(
        ended,
        cause=public(ended.cause) if ended.cause is not None else None,
        last_lines=tuple(public(line) for line in ended.last_lines[-1:]),
    )


def public(text: str) -> str:
    """`text` with folders taken out of its paths: they say more about this machine than anyone needs."""
    return _PATH.sub(r"\1", text)


def _unavailable(message: str, *, again: bool = True) -> PublicError:
    """`again` says whether another try may end otherwise."""
    return PublicError(502, "engine_unavailable", message, retry_after_s=1 if again else None)

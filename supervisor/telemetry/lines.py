"""An event as a line: for the log file, and shorter for a person who watches."""

import functools
import json
import re
import time
from typing import Final

from shared.sizes import format_duration, format_size
from supervisor.telemetry.events import Event, Field

_LONGEST_TEXT: Final = 4000
"""Characters of one text in a log line."""
_SHORT_ESCAPES: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_PLAIN_WORD: Final = re.compile(r"[!#-<>-\[\]-~]{1,200}")
"""Most words: ASCII without anything that wants quotes."""
_PLAIN_WORDS: Final = re.compile(rf"{_PLAIN_WORD.pattern}(?: {_PLAIN_WORD.pattern})*")

_FORMATS: Final[dict[type, str]] = {str: "%s", int: "%d", float: "%.6g"}
"""As `_shown` has them."""


def log_line(event: Event) -> bytes:
    """`2026-03-01T09:30:00.125Z info worker.ready model=qwen3-8b pid=4711`, with its line end.

    UTC. Texts with anything but plain characters are in quotes, and everything that could act on a
    terminal or begin a new line is escaped.
    """
    # Every request makes such a line, and one like the other.
    values = tuple(event.fields.values())
    shape = _shape(event.level, event.kind, tuple(event.fields), tuple(map(type, values)))
    if shape is not None:
        texts = [value for value in values if isinstance(value, str)]
        joined = " ".join(texts)
        if not texts or (_PLAIN_WORDS.fullmatch(joined) and joined.count(" ") == len(texts) - 1):
            return (shape % (timestamp(event.at), *values)).encode("ascii")
    words = [timestamp(event.at), event.level, _word(event.kind)]
    words += [f"{_word(name)}={_shown(value)}" for name, value in event.fields.items() if value is not None]
    return (" ".join(words) + "\n").encode("utf-8", "backslashreplace")


@functools.lru_cache(maxsize=256)
def _shape(level: str, kind: str, names: tuple[str, ...], types: tuple[type, ...]) -> str | None:
    """What lines have in common whose fields have the same names and types, for the `%` operator: with the
    time and the values, of which texts must be plain words. None where that is not all."""
    if not all(_PLAIN_WORD.fullmatch(word) and "%" not in word for word in (level, kind, *names)):
        return None
    if not _FORMATS.keys() >= set(types):
        return None
    fields = [f" {name}={_FORMATS[of]}" for name, of in zip(names, types, strict=True)]
    return f"%s {level} {kind}{''.join(fields)}\n"


def json_line(event: Event) -> bytes:
    """`{"time":"2026-03-01T09:30:00.125Z","level":"info","event":"worker.ready","model":"qwen3-8b"}`.

    With its line end. Everything beyond ASCII is escaped, as JSON does it. A field that has the name of one
    of the three first is left out.
    """
    record: dict[str, Field] = {"time": timestamp(event.at), "level": event.level, "event": event.kind}
    for name, value in event.fields.items():
        if value is not None:
            record.setdefault(name, value[:_LONGEST_TEXT] if isinstance(value, str) else value)
    return (json.dumps(record, separators=(",", ":")) + "\n").encode("ascii")


def timestamp(at: float) -> str:
    """Seconds since 1970 as `2026-03-01T09:30:00.125Z`."""
    return _timestamp(int(at * 1000))


@functools.lru_cache(maxsize=8)
def _timestamp(at_ms: int) -> str:
    # Many are told of at once.
    seconds, thousandths = divmod(at_ms, 1000)
    return f"{_clock(seconds)}.{thousandths:03d}Z"


@functools.lru_cache(maxsize=8)
def _clock(seconds: int) -> str:
    # Lines of one second have the most of it in common.
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def escaped(text: str) -> str:
    """`text` without anything that acts on a terminal: control, format and line-breaking characters."""
    return "".join(character if character.isprintable() else _escape(character) for character in text)


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return _SHORT_ESCAPES.get(character) or f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _shown(value: Field) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return _word(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _word(text: str) -> str:
    if _PLAIN_WORD.fullmatch(text):
        return text
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]}… ({len(text)} characters)"
    if text and text.isprintable() and not any(sign in text for sign in ' "=\\'):
        return text
    inside = escaped(text.replace("\\", "\\\\").replace('"', '\\"'))
    return f'"{inside}"'


# What a terminal shows of events, warnings among them. Durations and sizes come formatted; of several
# sentences the first counts whose fields are all there.
_SENTENCES: Final[dict[str, tuple[str, ...]]] = {
    "worker.starting": ("{model}: loading",),
    "worker.ready": ("{model}: ready after {load_s}", "{model}: ready"),
    "worker.leased": ("{model}: leased",),
    "worker.died": ("{model}: died: {how}",),
    "worker.failed": ("{model}: given up: {reason}; to try again: mlx-supervisor load {model}",),
    "worker.gone": ("{model}: unloaded",),
    "worker.asks": ("{model}: a row needs {wanted_bytes} and may take {share_bytes}; it waits for {behind}",),
    "worker.cuts": (
        "{model}: an answer ends at what there is room for in {share_bytes}: it and one of another model "
        "needed each other's",
    ),
    "model.too_large": (
        "{model}: needs {needs_bytes} and can't be loaded: all models together may take {budget_bytes} "
        "(memory.budget)",
    ),
    "model.needs_more": ("{model}: was killed while it loaded; from now on it counts for {needs_bytes}",),
    "preload.no_room": ("{model}: not loaded at the start: it needs {needs_bytes} beside the others",),
    "memory.pressure": ("memory pressure: {pressure}",),
    "lease.granted": ("the machine is leased to {holder}",),
    "lease.held": ("the machine is held by {holder}",),
    "lease.ended": ("the machine is given back by {holder} after {held_s}",),
    "download.planned": ("{repo}: downloading {total_bytes}, {there_bytes} of it are there",),
    "download.finished": ("{repo}: downloaded, {total_bytes}",),
    "download.failed": ("{repo}: not downloaded: {reason}",),
    "download.cancelled": ("{repo}: download cancelled",),
    "supervisor.stopping": ("stopping",),
}
_COLOURS: Final = {"info": "", "warning": "\x1b[33m", "error": "\x1b[31m"}
_PLAIN: Final = "\x1b[0m"


def terminal_line(event: Event, *, colour: bool) -> str | None:
    """What a person at the terminal wants to know of the event; None when that is nothing.

    Warnings and errors are always shown, other events where there is a sentence for them.
    """
    fields = {name: _told(name, value) for name, value in event.fields.items() if value is not None}
    text = next(
        filter(None, (_filled(sentence, fields) for sentence in _SENTENCES.get(event.kind, ()))), None
    )
    if text is None:
        if event.level == "info":
            return None
        text = " ".join([event.kind, *(f"{name}={value}" for name, value in fields.items())])
    clock = time.strftime("%H:%M:%S", time.localtime(event.at))
    before = _COLOURS[event.level] if colour else ""
    return f"{clock} {before}{escaped(text)}{_PLAIN if before else ''}"


def _filled(sentence: str, fields: dict[str, str]) -> str | None:
    try:
        return sentence.format_map(fields)
    except KeyError:
        return None


def _told(name: str, value: Field) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if name.endswith("_s"):
            return format_duration(value)
        if name.endswith("_bytes"):
            return format_size(int(value))
    return _shown(value) if not isinstance(value, str) else value

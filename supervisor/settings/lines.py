"""On which line of a TOML text a key is. `tomllib` reads values and forgets where they were."""

import re
import tomllib
from collections.abc import Callable
from typing import Final

KeyPath = tuple[str, ...]

_BLANK: Final = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_STRING: Final = re.compile(
    r'"""(?:[^\\]|\\[\s\S])*?"{3,5}'
    r"|'''[\s\S]*?'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'"
)
_SCALAR: Final = re.compile(r"[^\n#,\]}]*")


def key_lines(text: str) -> dict[KeyPath, int]:
    """The first line, from 1, of every table and key in `text`, which tomllib has accepted.

    Tables that are only implied (`[a.b]` implies `a`) count as well. Elements of an array of tables
    share the path of the array.
    """
    scanner = _Scanner(text)
    scanner.document()
    return scanner.lines


def line_of(lines: dict[KeyPath, int], path: KeyPath) -> int | None:
    """The line of `path`, or of the nearest table around it; None when none is in the text."""
    for length in range(len(path), 0, -1):
        if (line := lines.get(path[:length])) is not None:
            return line
    return None


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._counted_to = 0
        self._line = 1
        self.lines: dict[KeyPath, int] = {}

    def document(self) -> None:
        table: KeyPath = ()
        while True:
            self._skip(_BLANK)
            if self._at >= len(self._text):
                return
            if self._peek("["):
                double = self._text.startswith("[[", self._at)
                self._at += 2 if double else 1
                table = self._key(())
                self._at += 2 if double else 1
            else:
                self._pair(table)

    def _pair(self, table: KeyPath) -> None:
        path = self._key(table)
        self._at += 1  # the "="
        self._value(path)

    def _key(self, table: KeyPath) -> KeyPath:
        """Read a dotted key, note its line, stop at the sign after it."""
        path = table
        while True:
            self._skip(_BLANK)
            line = self._line_here()
            quoted = _STRING.match(self._text, self._at)
            found = quoted or _BARE.match(self._text, self._at)
            if found is None:
                raise ValueError(f"line {line}: not a TOML key")
            self._at = found.end()
            part = tomllib.loads(f"k = {found[0]}")["k"] if quoted else found[0]
            path = (*path, part)
            self.lines.setdefault(path, line)
            self._skip(_BLANK)
            if not self._peek("."):
                return path
            self._at += 1

    def _value(self, path: KeyPath) -> None:
        self._skip(_BLANK)
        if self._peek("["):
            self._items("]", lambda: self._value(path))
        elif self._peek("{"):
            self._items("}", lambda: self._pair(path))
        elif string := _STRING.match(self._text, self._at):
            self._at = string.end()
        else:
            self._skip(_SCALAR)

    def _items(self, closing: str, read: Callable[[], None]) -> None:
        self._at += 1
        while True:
            self._skip(_BLANK)
            if self._peek(","):
                self._at += 1
            elif self._peek(closing):
                self._at += 1
                return
            else:
                read()

    def _peek(self, sign: str) -> bool:
        return self._text.startswith(sign, self._at)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        if match := pattern.match(self._text, self._at):
            self._at = match.end()

    def _line_here(self) -> int:
        self._line += self._text.count("\n", self._counted_to, self._at)
        self._counted_to = self._at
        return self._line

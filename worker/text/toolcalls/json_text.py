"""Follows one JSON value while it is being written.

What comes out is valid JSON as far as it goes, so that it can be streamed at once. One mistake that models
make is put right on the way: control characters inside a string are escaped.
"""

import json
import re
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]*')
_DIGITS: Final = re.compile(r"[-+.0-9eE]*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_LITERALS: Final = {"t": "true", "f": "false", "n": "null"}
_DEEPEST: Final = 256


class JsonError(ValueError):
    """Text that is not JSON; the message says what was found."""


class _Expect(Enum):
    VALUE = auto()
    FIRST_ITEM = auto()  # a value or the end of the array
    FIRST_KEY = auto()  # a key or the end of the object
    KEY = auto()
    COLON = auto()
    NEXT = auto()  # a comma or the end of the container
    STRING = auto()  # the rest of a string
    ESCAPE = auto()  # what follows a backslash
    HEX = auto()  # digits of \uXXXX
    NUMBER = auto()
    LITERAL = auto()


class JsonScanner:
    """One value. `spell` turns what stands for a sentinel token back into its letters."""

    def __init__(self, spell: Callable[[str], str] = str) -> None:
        self.done = False
        self.error: JsonError | None = None
        self._spell = spell
        self._expect = _Expect.VALUE
        self._open: list[str] = []
        self._key = False
        self._rest = ""  # of a literal, or the digits of a number
        self._hex = 0

    def feed(self, text: str) -> tuple[str, int]:
        """Take what belongs to the value; the JSON it brings, and how many characters were taken.

        Once `done` or after an `error` nothing more is taken. Only a number does not end by itself: it is
        done at the first character that is not part of it.
        """
        out: list[str] = []
        at = 0
        while at < len(text) and not self.done and self.error is None:
            try:
                at = self._step(text, at, out)
            except JsonError as error:
                # Not raised: what came before it counts, however the text was cut into pieces.
                self.error = error
        return "".join(out), at

    def _step(self, text: str, at: int, out: list[str]) -> int:
        match self._expect:
            case _Expect.STRING:
                return self._string(text, at, out)
            case _Expect.ESCAPE:
                return self._escape(text[at], at, out)
            case _Expect.HEX:
                return self._hexadecimal(text[at], at, out)
            case _Expect.NUMBER:
                return self._number(text, at, out)
            case _Expect.LITERAL:
                return self._literal(text[at], at, out)
            case _:
                return self._structure(text, at, out)

    def _structure(self, text: str, at: int, out: list[str]) -> int:
        match = _SPACE.match(text, at)
        assert match is not None
        if match.end() > at:
            out.append(match[0])
            return match.end()
        character = text[at]
        match self._expect, character:
            case (_Expect.FIRST_KEY, "}") | (_Expect.FIRST_ITEM, "]"):
                self._close(character)
            case (_Expect.NEXT, "}" | "]"):
                self._close(character)
            case _Expect.NEXT, ",":
                self._expect = _Expect.KEY if self._open[-1] == "{" else _Expect.VALUE
            case ((_Expect.FIRST_KEY | _Expect.KEY), '"'):
                self._key = True
                self._expect = _Expect.STRING
            case _Expect.COLON, ":":
                self._expect = _Expect.VALUE
            case ((_Expect.VALUE | _Expect.FIRST_ITEM), _):
                return self._value(character, at, out)
            case _:
                raise JsonError(f"{self._spell(character)!r} is not what JSON goes on with here")
        out.append(character)
        return at + 1

    def _value(self, character: str, at: int, out: list[str]) -> int:
        if character in "{[":
            if len(self._open) >= _DEEPEST:
                raise JsonError("the value is nested too deeply")
            self._open.append(character)
            self._expect = _Expect.FIRST_KEY if character == "{" else _Expect.FIRST_ITEM
        elif character == '"':
            self._key = False
            self._expect = _Expect.STRING
        elif character in _LITERALS:
            self._rest = _LITERALS[character][1:]
            self._expect = _Expect.LITERAL
        elif character in "-0123456789":
            self._rest = ""
            self._expect = _Expect.NUMBER
            return at
        else:
            raise JsonError(f"{self._spell(character)!r} does not begin a JSON value")
        out.append(character)
        return at + 1

    def _string(self, text: str, at: int, out: list[str]) -> int:
        match = _PLAIN.match(text, at)
        assert match is not None
        if match.end() > at:
            out.append(match[0])
            return match.end()
        character = text[at]
        if character == '"':
            out.append(character)
            if self._key:
                self._expect = _Expect.COLON
            else:
                self._complete()
        elif character == "\\":
            # Held back until the whole escape is there: a piece never ends inside one.
            self._expect = _Expect.ESCAPE
        else:
            out.append(dumps(self._spell(character))[1:-1])
        return at + 1

    def _escape(self, character: str, at: int, out: list[str]) -> int:
        if character == "u":
            self._rest = "\\u"
            self._expect = _Expect.HEX
        elif character in '"\\/bfnrt':
            out.append("\\" + character)
            self._expect = _Expect.STRING
        elif character == "'":
            # Python's habit; JSON has no such escape.
            out.append(character)
            self._expect = _Expect.STRING
        else:
            raise JsonError(f"JSON has no escape \\{self._spell(character)}")
        return at + 1

    def _hexadecimal(self, character: str, at: int, out: list[str]) -> int:
        if character not in "0123456789abcdefABCDEF":
            raise JsonError(f"{self._spell(character)!r} is not a hexadecimal digit")
        self._rest += character
        if len(self._rest) == 6:
            out.append(self._rest)
            self._expect = _Expect.STRING
        return at + 1

    def _number(self, text: str, at: int, out: list[str]) -> int:
        match = _DIGITS.match(text, at)
        assert match is not None
        self._rest += match[0]
        out.append(match[0])
        if match.end() < len(text):
            if not _NUMBER.fullmatch(self._rest):
                raise JsonError(f"{self._rest} is not a number")
            self._complete()
        return match.end()

    def _literal(self, character: str, at: int, out: list[str]) -> int:
        if character != self._rest[0]:
            raise JsonError(f"{self._spell(character)!r} is not what JSON goes on with here")
        out.append(character)
        self._rest = self._rest[1:]
        if not self._rest:
            self._complete()
        return at + 1

    def _close(self, character: str) -> None:
        if self._open.pop() + character not in ("{}", "[]"):
            raise JsonError(f"{character!r} closes nothing")
        self._complete()

    def _complete(self) -> None:
        self._expect = _Expect.NEXT
        self.done = not self._open


def dumps(value: object) -> str:
    """JSON as it is written in arguments. Raises ValueError for numbers that JSON lacks."""
    # Not orjson: models write integers that 64 bits can't hold.
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def well_formed(text: str) -> str:
    """The text with two halves of a character joined, and a half without the other replaced.

    JSON and Python write characters beyond U+FFFF as two escapes, and models write one of them alone.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

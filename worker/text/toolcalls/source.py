"""Text as it comes, read by a parser that is written as if all of it were there.

A parser is a generator: it takes text from the source and yields whenever it needs more. So parsers are
straight-line code, and what they find does not depend on how the text was cut into pieces.
"""

import re
from collections.abc import Callable, Generator, Sequence
from typing import Final, TypeVar

from worker.text.sentinels import Sentinels
from worker.text.toolcalls.json_text import JsonScanner

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A parser, or a part of one, with what it finds."""

SPACE: Final = " \t\r\n"


class Malformed(Exception):  # noqa: N818  # a finding about the model's text, not an error of ours
    """Raised by a parser for markup that it can't make sense of; the message says why."""


class NotACall(Malformed):
    """Raised for what only looked like a call: it is content, and nothing is wrong with it."""


class Ended(Exception):  # noqa: N818  # likewise
    """Raised in a parser that wants more when the text is over."""


class Source:
    """Text that arrives in pieces. `kept` has what was taken since it was last set to a list."""

    def __init__(self, sentinels: Sentinels) -> None:
        self._sentinels = sentinels
        self._text = ""  # arrived and not taken
        self._over = False
        self._whole = False  # all is there: its end is an end, and not where a reply broke off
        self._kept: list[str] | None = None

    def feed(self, text: str) -> None:
        self._text += text

    def end(self, *, whole: bool = False) -> None:
        """Nothing more will come. A `whole` text was complete; a reply may have broken off anywhere."""
        self._over = True
        self._whole = whole

    def rest(self) -> str:
        """What has arrived and was not taken."""
        return self._text

    def spell(self, text: str) -> str:
        """As the model wrote it."""
        return self._sentinels.decode(text)

    def take(self, count: int) -> str:
        """The next characters, which are known to be there."""
        taken, self._text = self._text[:count], self._text[count:]
        if self._kept is not None:
            self._kept.append(taken)
        return taken

    def give_back(self, text: str) -> None:
        """Put back what was taken last."""
        self._text = text + self._text
        if self._kept:
            self._kept.pop()

    def more(self) -> Steps[None]:
        """Wait for more text. Raises Ended when none will come."""
        before = len(self._text)
        while len(self._text) == before:
            if self._over:
                raise Ended
            yield

    def peek(self, count: int = 1) -> Steps[str]:
        """The next characters, left where they are; fewer only at the end of the reply."""
        while len(self._text) < count and not self._over:
            yield
        return self._text[:count]

    def space(self) -> Steps[None]:
        """Skip white space; the end of the reply is fine too."""
        while True:
            bare = self._text.lstrip(SPACE)
            self.take(len(self._text) - len(bare))
            if bare or self._over:
                return
            yield

    def next_is(self, *literals: str) -> Steps[str | None]:
        """The first of `literals` that comes next, left where it is; None when none does.

        Raises Ended when the text is over before that can be told.
        """
        while True:
            for literal in literals:
                if self._text.startswith(literal):
                    return literal
            if self._whole or not any(literal.startswith(self._text) for literal in literals):
                return None
            yield from self.more()

    def accept(self, *literals: str) -> Steps[str | None]:
        """Take the first of `literals` that comes next; None when none does."""
        found = yield from self.next_is(*literals)
        return self.take(len(found)) if found is not None else None

    def expect(self, *literals: str) -> Steps[str]:
        """Take one of `literals`, which must come next."""
        taken = yield from self.accept(*literals)
        if taken is None:
            raise Malformed(f"expected {' or '.join(map(repr, map(self.spell, literals)))}")
        return taken

    def until(self, *ends: str, most: int | None = None) -> Steps[tuple[str, str]]:
        """The text up to the first of `ends`, and that end, which is taken too.

        With `most`, more characters than that before the end are Malformed.
        """
        pattern = re.compile("|".join(map(re.escape, ends)))
        longest = max(map(len, ends))
        searched = 0
        while True:
            match = pattern.search(self._text, searched)
            position = match.start() if match else len(self._text) - longest
            if most is not None and position > most:
                raise Malformed(f"no {' or '.join(map(repr, map(self.spell, ends)))} where one belongs")
            if match:
                text = self.take(match.start())
                return text, self.take(len(match[0]))
            searched = max(0, len(self._text) - longest + 1)
            yield from self.more()

    def matching(self, pattern: re.Pattern[str]) -> Steps[str]:
        """The longest text of characters that each match `pattern`.

        Raises Ended when the text is over before another character.
        """
        length = 0
        while True:
            while length < len(self._text) and pattern.match(self._text[length]):
                length += 1
            if length < len(self._text) or self._whole:
                return self.take(length)
            yield from self.more()

    def stream_until(
        self, ends: Sequence[str], say: Callable[[str], None], *, hold: str = ""
    ) -> Steps[tuple[str, str]]:
        """Say the text up to the first of `ends` as it comes; the end is taken.

        Characters of `hold` are said only once others follow. Those before the end are returned instead,
        with that end.
        """
        pattern = re.compile("|".join(map(re.escape, ends)))
        while True:
            match = pattern.search(self._text)
            sure = match.start() if match else len(self._text) - partial(self._text, ends)
            shown = self._text[:sure].rstrip(hold) if hold else self._text[:sure]
            if shown:
                say(self.take(len(shown)))
            if match:
                return self.take(sure - len(shown)), self.take(len(match[0]))
            yield from self.more()

    def json(self, say: Callable[[str], None]) -> Steps[None]:
        """One JSON value, said as it comes."""
        scanner = JsonScanner(self.spell)
        while True:
            said, taken = scanner.feed(self._text)
            self.take(taken)
            if said:
                say(said)
            if scanner.error is not None:
                raise Malformed(str(scanner.error))
            if scanner.done:
                return
            yield from self.more()


def partial(text: str, markers: Sequence[str]) -> int:
    """How many characters at the end of `text` may be the beginning of one of `markers`."""
    longest = min(max(map(len, markers)) - 1, len(text))
    for length in range(longest, 0, -1):
        tail = text[-length:]
        if any(marker.startswith(tail) for marker in markers):
            return length
    return 0


def run_whole(parser: Callable[[Source], Steps[T]], text: str) -> T | None:
    """What `parser` finds in text that is complete; None when it does not parse to its end."""
    source = Source(Sentinels({}, ()))
    source.feed(text)
    source.end(whole=True)
    steps = parser(source)
    try:
        while True:
            next(steps)
    except StopIteration as stop:
        return None if source.rest() else stop.value
    except (Malformed, Ended):
        return None

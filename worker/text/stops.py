"""Stop sequences on decoded text, whatever the token and chunk boundaries."""

from collections.abc import Sequence


class _Pattern:
    """One stop sequence and how much of it the text seen so far ends with (Knuth-Morris-Pratt)."""

    __slots__ = ("_failure", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        # failure[i]: length of the longest proper border of text[: i + 1].
        self._failure = [0] * len(text)
        border = 0
        for index in range(1, len(text)):
            while border and text[index] != text[border]:
                border = self._failure[border - 1]
            if text[index] == text[border]:
                border += 1
            self._failure[index] = border

    def advance(self, character: str) -> bool:
        """Take one character; True when it completes the sequence."""
        matched = self.matched
        while matched and self.text[matched] != character:
            matched = self._failure[matched - 1]
        if self.text[matched] == character:
            matched += 1
        self.matched = matched
        return matched == len(self.text)


class Stops:
    """Finds the first stop sequence to be completed and never lets a part of one through.

    Text that may be the beginning of a stop sequence is held back until the next character decides.
    What comes out does not depend on how the text was cut into pieces.
    """

    __slots__ = ("_held", "_patterns")

    def __init__(self, stops: Sequence[str]) -> None:
        self._patterns = [_Pattern(stop) for stop in stops if stop]
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Take more text. Returns the text that is safe to show, and the stop sequence once one is complete.

        Of several completed by the same character the longest counts. Nothing may be pushed after a match.
        """
        if not self._patterns:
            return text, None
        for index, character in enumerate(text):
            complete: _Pattern | None = None
            for pattern in self._patterns:
                if pattern.advance(character) and (
                    complete is None or len(pattern.text) > len(complete.text)
                ):
                    complete = pattern
            if complete is not None:
                seen = self._held + text[: index + 1]
                self._held = ""
                return seen[: len(seen) - len(complete.text)], complete.text
        seen = self._held + text
        safe = len(seen) - max(pattern.matched for pattern in self._patterns)
        self._held = seen[safe:]
        return seen[:safe], None

    def flush(self) -> str:
        """The text held back, once it is known that nothing follows, or nothing that goes on with it."""
        held, self._held = self._held, ""
        for pattern in self._patterns:
            pattern.matched = 0
        return held

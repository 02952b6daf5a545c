"""What one row may say next: anything, one token, or what its grammar allows."""

from typing import Any, Final

import numpy as np
from llguidance import LLMatcher

from worker.engine.constraint_gate import Gate
from worker.engine.constraint_tokens import Bits, Vocabulary

_GAP: Final = 2
"""Tokens of white space that may stand between thinking and what the grammar is about."""


class Matcher:
    """A grammar's state for one row."""

    def __init__(self, state: LLMatcher) -> None:
        self.state = state

    @property
    def failure(self) -> str | None:
        """Why the grammar can't go on, when it can't: a limit of the parser was reached."""
        return self.state.get_error().partition("\n")[0] if self.state.is_error() else None

    def allows(self, token: int) -> bool:
        return bool(self.state.validate_tokens([token]))

    def consume(self, token: int) -> None:
        self.state.consume_token(token)

    @property
    def accepting(self) -> bool:
        """Whether what was said is complete as it stands."""
        return bool(self.state.is_accepting())

    @property
    def complete(self) -> bool:
        """Whether nothing more can be said."""
        return bool(self.state.is_stopped())


class Control:
    """One row's. It sees every token of the row, in order, and says what may come next.

    A grammar counts from the first token on, or from the end of the thinking; `gate` is None for a model or a
    request without thinking.
    """

    def __init__(self, vocabulary: Vocabulary, *, matcher: Matcher | None = None, gate: Gate | None = None) -> None:
        self.vocabulary = vocabulary
        self.matcher = matcher
        self.gate = gate
        self.started = False
        """Whether the row was asked for its first token."""
        self._begun = gate is None or not gate.open
        self._undecided = gate is not None and not gate.open and matcher is not None
        self._gap = 0

    @property
    def failure(self) -> str | None:
        """Why the row can't go on, when it can't."""
        return self.matcher.failure if self.matcher else None

    @property
    def forced(self) -> int | None:
        """The only token that may come next, if there is just one by force."""
        return self.gate.forced if self.gate else None

    @property
    def masked(self) -> bool:
        """Whether the grammar decides what may come next."""
        return self.matcher is not None and (self.gate is None or not self.gate.open)

    @property
    def also(self) -> Bits | None:
        """What may come next beside what the grammar allows."""
        if self._undecided and self.gate:
            return self.vocabulary.bits(self.gate.opening)
        if self._gap:
            return self.vocabulary.space_bits
        return None

    def advance(self, token: int) -> None:
        """The row said `token`."""
        gate = self.gate
        if gate is None:
            if self.matcher is not None:
                self.matcher.consume(token)
            return
        was_open = gate.open
        gate.advance(token)
        if was_open or gate.open:
            if was_open and not gate.open:
                self._gap = _GAP
            self._undecided = False
        elif gate.forced is None and self.matcher is not None:
            self._after_thinking(token)

    def _after_thinking(self, token: int) -> None:
        assert self.matcher is not None
        if self._gap and not self.matcher.allows(token) and token in self.vocabulary.spaces:
            self._gap -= 1
            return
        self._gap = 0
        self._undecided = False
        self.matcher.consume(token)

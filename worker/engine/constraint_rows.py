"""What one row may say next: anything, one token, or what its grammar allows."""

from typing import Any, Final

from llguidance import LLMatcher

from worker.engine.constraint_masks import Masks
from worker.engine.constraint_tokens import Bits
from worker.text.thinking_gate import Gate

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


class Control:
    """One row's. It sees every token of the row, in order, and says what may come next.

    Of the engine's thread alone, but for `failure`.

    A grammar counts from the first token on, or from the end of the thinking; `gate` is None for a model or a
    request without thinking. A grammar that `spans` the reply has the thinking in it.
    """

    def __init__(
        self,
        masks: Masks,
        *,
        matcher: Matcher | None = None,
        gate: Gate | None = None,
        spans: bool = False,
    ) -> None:
        self.masks = masks
        """Those of the model, which fills the masks of all its rows together."""
        self.failure: str | None = None
        """Why the row can't go on, when it can't; it then ends by itself. Whoever reads it must not touch the
        grammar's state: that is of the engine's thread, which may be at work on it."""
        self._started = False
        self._vocabulary = masks.vocabulary
        self._matcher = matcher
        self._gate = gate
        self._spans = spans
        # Whether the first token may still open a block of thinking.
        self._undecided = gate is not None and not gate.open and matcher is not None and not spans
        self._gap = 0

    def note_failure(self) -> None:
        """Look whether the grammar has failed, at a token or at the mask for the next one."""
        if self._matcher is not None:
            self.failure = self._matcher.failure

    @property
    def accepting(self) -> bool:
        """Whether what the row said fulfils its grammar; True without one."""
        return self._matcher is None or self._matcher.accepting

    @property
    def forced(self) -> int | None:
        """The only token that may come next, if there is just one by force."""
        return self._gate.forced if self._gate else None

    @property
    def thinking(self) -> bool:
        """Whether the row thinks now and its grammar waits."""
        return self._gate is not None and self._gate.open and not self._spans

    @property
    def matcher(self) -> LLMatcher | None:
        """The grammar that decides what may come next, if one does."""
        return None if self._matcher is None or self.thinking else self._matcher.state

    @property
    def must_not_end(self) -> bool:
        """Whether anything may come next but the end: the grammar is still to come."""
        return self._matcher is not None and self.thinking

    @property
    def also(self) -> Bits | None:
        """What may come next beside what the grammar allows."""
        if self._undecided and self._gate:
            return self._vocabulary.bits(self._gate.opening[:1])
        return self._vocabulary.space_bits if self._gap else None

    @property
    def bound(self) -> bool:
        """Whether the row may not just say anything."""
        return self.forced is not None or self.matcher is not None or self.must_not_end

    def begin(self) -> None:
        """The row begins to decode, or goes on: what it is computed on first was followed before."""
        self._started = False

    def follow(self, token: int) -> None:
        """The engine computes on `token`: the end of the prompt first, then what the row said."""
        if self._started:
            self.advance(token)
        self._started = True

    def __call__(self, tokens: Any, logits: Any) -> Any:
        """As a logits processor of a generator that knows nothing of controls. Waits for the last token."""
        self.follow(int(tokens[-1].item()))
        bits = self.masks.fill([self])
        return logits if bits is None else self.masks.apply(logits, bits)

    def advance(self, token: int) -> None:
        """The row said `token`."""
        gate, matcher = self._gate, self._matcher
        was_open = gate is not None and gate.open
        if gate is not None:
            gate.advance(token)
        if matcher is None:
            return
        if gate is None or self._spans:
            self._consume(matcher, token)
        elif was_open or gate.open:
            self._undecided = False
            self._gap = 0 if gate.open else _GAP
        elif gate.forced is None:
            self._outside(token, matcher, gate)

    def _outside(self, token: int, matcher: Matcher, gate: Gate) -> None:
        """A token that is not of the thinking."""
        if (self._undecided or self._gap) and not matcher.allows(token):
            if self._undecided:
                # The first of several tokens that open a block: the others follow by force.
                self._undecided = False
                gate.force(gate.opening[1:])
                return
            if token in self._vocabulary.spaces:
                self._gap -= 1
                return
        self._undecided = False
        self._gap = 0
        self._consume(matcher, token)

    def _consume(self, matcher: Matcher, token: int) -> None:
        matcher.consume(token)
        self.note_failure()

"""How a model marks its thinking, and whether a prompt ends inside of it."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from shared.model_files import THINKING_PAIRS

# Markers of several tokens, and the tokens they are made of.
_ATOMS: Final = {
    "<|channel>thought": ("<|channel>", "<channel|>"),  # Gemma 4
    "<|open|>think<|sep|>": ("<|open|>", "<|close|>", "<|sep|>"),  # Kimi K3
}


_ARGUMENTS: Final = ("enable_thinking", "thinking", "reasoning_effort")
"""The names that templates have for it."""


def thinking_arguments(thinking: bool | str) -> dict[str, Any]:
    """Template arguments that say whether to think; a text is how much, in OpenAI's words for it."""
    if thinking in (False, "none"):
        return {"enable_thinking": False, "thinking": False}
    effort = {} if thinking is True else {"reasoning_effort": thinking}
    return {"enable_thinking": True, "thinking": True, **effort}


def says_thinking(arguments: Mapping[str, Any]) -> bool:
    """Whether template arguments say anything about it."""
    return any(name in arguments for name in _ARGUMENTS)


class Thinking(msgspec.Struct, frozen=True):
    """Markers around thinking, as they are written."""

    start: str
    end: str

    @property
    def atoms(self) -> tuple[str, ...]:
        """The parts of the markers that may be tokens."""
        return _ATOMS.get(self.start, (self.start, self.end))

    @property
    def closings(self) -> tuple[str, ...]:
        """What to say to end a block in the middle: the first for the first time, the last from then on."""
        return (f"\n{self.end}\n\n" if self.end.startswith("</") else self.end,)

    def open_after(self, prompt: str) -> bool:
        """Whether a prompt with this text ends inside a block that it began.

        Only its very end counts: markers elsewhere are history, or words of the user.
        """
        return prompt.rstrip().endswith(self.start)

    def over_after(self, prompt: str) -> bool:
        """Whether a prompt with this text ends with a block that is closed, so that none will follow."""
        return prompt.rstrip().endswith(self.end)


def select_thinking(tokenizer: Any, template: str) -> Thinking | None:
    """The markers of a model; None when it has none.

    `tokenizer` is mlx-lm's wrapper, whose findings count first. Templates can have the markers too where the
    vocabulary does not: such models write them in letters.
    """
    if getattr(tokenizer, "has_thinking", False):
        return Thinking(tokenizer.think_start, tokenizer.think_end)
    vocabulary = tokenizer.get_vocab()
    for start, end in THINKING_PAIRS:
        if start in vocabulary and end in vocabulary:
            return Thinking(start, end)
    for start, end in THINKING_PAIRS:
        if end in template:
            return Thinking(start, end)
    return None

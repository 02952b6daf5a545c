"""One validated request for a completion, whatever wire format it came in."""

from typing import Any, Literal

import msgspec

from shared.launch import Sampling as SamplingDefaults

Role = Literal["system", "developer", "user", "assistant", "tool", "function"]

GREEDY_BELOW = 1e-4
"""A lower temperature overflows half precision when logits are divided by it, and picks the best anyway."""


class ToolCall(msgspec.Struct, frozen=True):
    """A call the model made earlier in the conversation."""

    name: str
    arguments: Any
    """The parsed JSON object; the client's text where it does not parse."""
    id: str | None = None


class Message(msgspec.Struct, frozen=True):
    """One turn of a conversation. Content parts are joined already."""

    role: Role
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


class Asked(msgspec.Struct, frozen=True):
    """How the client wants tokens chosen; None leaves it to the model's settings."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None


class Sampling(msgspec.Struct, frozen=True):
    """How tokens of one row are chosen, with every default resolved.

    temperature 0 takes the likeliest token; top_p 1, top_k 0 and min_p 0 filter nothing.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW or self.top_p == 0 or self.top_k == 1


class Request(msgspec.Struct, frozen=True):
    """What to complete and how. Lengths are tokens."""

    messages: tuple[Message, ...]
    sampling: Asked = Asked()
    max_tokens: int | None = None
    """None is until the model ends or the context does."""
    stops: tuple[str, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    template_arguments: dict[str, Any] = {}


def resolve(asked: Asked, *defaults: SamplingDefaults) -> Sampling:
    """Take each value from the request, then from the first of `defaults` that has it."""

    def pick(name: str, last: float) -> Any:
        for source in (asked, *defaults):
            value = getattr(source, name)
            if value is not None:
                return value
        return last

    return Sampling(
        temperature=pick("temperature", 1.0),
        top_p=pick("top_p", 1.0),
        top_k=pick("top_k", 0),
        min_p=pick("min_p", 0.0),
        seed=asked.seed,
    )

"""One validated request for a completion, whatever wire format it came in."""

from typing import Any, Final, Literal

import msgspec

from shared.launch import Sampling as SamplingDefaults
from worker.text.grammar.spec import Spec

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
    reasoning: str | None = None
    """What the model thought before it said this."""


class Asked(msgspec.Struct, frozen=True):
    """How the client wants tokens chosen; None leaves it to the model's settings."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    repetition_penalty: float | None = None
    repetition_context_size: int | None = None
    presence_penalty: float | None = None
    presence_context_size: int | None = None
    frequency_penalty: float | None = None
    frequency_context_size: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token ids and what is added to their logits."""


class Sampling(msgspec.Struct, frozen=True):
    """How tokens of one row are chosen, with every default resolved.

    temperature 0 takes the likeliest token; top_p 1, top_k 0, min_p 0 and xtc_probability 0 filter nothing;
    repetition_penalty 1 and the other penalties 0 change nothing. The penalties look at so many of the last
    tokens, of prompt and answer together, as their context size says.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repetition_penalty: float = 1.0
    repetition_context_size: int = 20
    presence_penalty: float = 0.0
    presence_context_size: int = 20
    frequency_penalty: float = 0.0
    frequency_context_size: int = 20
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW or self.top_p == 0 or self.top_k == 1


class Request(msgspec.Struct, frozen=True):
    """What to complete and how. Lengths are tokens."""

    messages: tuple[Message, ...] = ()
    """The conversation to answer; empty when `prompt` is what to complete."""
    prompt: str | tuple[int, ...] | None = None
    """A text to go on with, or its token ids, without any template."""
    sampling: Asked = Asked()
    max_tokens: int | None = None
    """None is until the model ends or the context does."""
    min_tokens: int = 0
    """The answer does not end by itself before it has so many."""
    ignore_eos: bool = False
    """The model's own end tokens end nothing."""
    stops: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    """Token ids that end the answer, beside the model's own."""
    n: int = 1
    """Answers wanted; those after the first have seeds made of the request's."""
    logprobs: int | None = None
    """Alternatives to tell for each token, beside its own log probability; None tells neither."""
    adapter: str | None = None
    """The name of the adapter to answer with; None is none."""
    session: str | None = None
    """Names the conversation, so that its state is kept in preference."""
    marked_turns: int | None = None
    """So many messages end with the last place that the client wants kept; None tells of none."""
    prefill: str = ""
    """What the answer to the conversation begins with already; only what follows is answered."""
    tools: tuple[dict[str, Any], ...] = ()
    """The functions it may call."""
    calls: Literal["auto", "required"] = "auto"
    named_tool: str | None = None
    """The function that must be called, when one is required."""
    one_call: bool = False
    """The answer ends with its first call."""
    structure: Spec | None = None
    """What the answer has to look like."""
    max_reasoning_tokens: int | None = None
    """Thinking is ended after so many tokens; None leaves it to the model."""
    template_arguments: dict[str, Any] = {}


def resolve(asked: Asked, *defaults: SamplingDefaults) -> Sampling:
    """Take each value from the request, then from the first of `defaults` that has it."""

    def pick(name: str, last: float) -> Any:
        for source in (asked, *defaults):
            value = getattr(source, name)
            if value is not None:
                return value
        return last

    values = {name: pick(name, last) for name, last in _LAST.items()}
    return Sampling(**values, seed=asked.seed, logit_bias=asked.logit_bias)


_LAST: Final[dict[str, float]] = {
    name: getattr(Sampling(), name)
    for name in Sampling.__struct_fields__
    if name not in ("seed", "logit_bias")
}

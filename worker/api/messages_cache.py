"""What `cache_control` marks, and the token counts that tell of it.

Source: Anthropic's API reference, "Prompt caching": of a prompt, `cache_read_input_tokens` were found,
`cache_creation_input_tokens` are new in the cache up to the last mark, and `input_tokens` are the rest. Here
every prompt is kept, marked or not, and as long as there is room, whatever `ttl` says.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol

from worker.api.messages_content import Block, InputMessage, TextBlock, ToolResultBlock, turns_of
from worker.text.events import Usage

Control = dict[str, Any]
_END: Final = -1
_SYSTEM: Final = -2


class Marked(Protocol):
    """A tool, as far as this is concerned."""

    @property
    def cache_control(self) -> Control | None: ...


class Mark(NamedTuple):
    """The last place that is marked: the end of this message, or else one of those above."""

    message: int
    ttl: Literal["5m", "1h"]


def last_mark(
    whole: Control | None,
    messages: Sequence[InputMessage],
    system: str | Sequence[TextBlock] | None,
    tools: Sequence[Marked] | None,
) -> Mark | None:
    """`whole` is the mark on the request itself, which stands for its end."""
    if whole is not None:
        return Mark(_END, _ttl(whole))
    for index in reversed(range(len(messages))):
        content = messages[index].content
        found = None if isinstance(content, str) else _in_blocks(content)
        if found is not None:
            return Mark(_END if index == len(messages) - 1 else index, _ttl(found))
    texts = () if system is None or isinstance(system, str) else system
    # Templates put tools into the system prompt.
    for part in (*reversed(texts), *reversed(tools or ())):
        if part.cache_control is not None:
            return Mark(_SYSTEM, _ttl(part.cache_control))
    return None


def _in_blocks(blocks: Sequence[Block]) -> Control | None:
    for block in reversed(blocks):
        own: Control | None = getattr(block, "cache_control", None)
        if own is None and isinstance(block, ToolResultBlock) and isinstance(block.content, list):
            parts = (getattr(part, "cache_control", None) for part in reversed(block.content))
            own = next(filter(None, parts), None)
        if own is not None:
            return own
    return None


def _ttl(control: Control) -> Literal["5m", "1h"]:
    return "1h" if control.get("ttl") == "1h" else "5m"


def turns_to(
    mark: Mark | None,
    system: str | Sequence[TextBlock] | None,
    messages: Sequence[InputMessage],
    turns: int,
) -> int | None:
    """How many of our messages, of which there are `turns`, end with the mark; None when there is none."""
    if mark is None or mark.message == _END:
        return None if mark is None else turns
    return turns_of(system, () if mark.message == _SYSTEM else messages[: mark.message + 1])


def usage_object(usage: Usage, written: int = 0, mark: Mark | None = None) -> dict[str, Any]:
    """`written` tokens up to the mark are new in the cache. Source: Anthropic's API reference, "Usage"."""
    hour = mark is not None and mark.ttl == "1h"
    return {
        "input_tokens": usage.prompt - usage.cached - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": usage.cached,
        "cache_creation": {
            "ephemeral_5m_input_tokens": 0 if hour else written,
            "ephemeral_1h_input_tokens": written if hour else 0,
        },
        "output_tokens": usage.completion,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
        "server_tool_use": None,
        "service_tier": "standard",
        "inference_geo": None,
    }

"""The conversation of an Anthropic request: roles and content blocks to our messages.

Source: Anthropic's API reference, "Create a Message": the blocks of `messages` and `system`.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from shared.errors import PublicError, invalid
from worker.request import Message, ToolCall

_BETWEEN_BLOCKS: Final = "\n\n"
_BILLING: Final = "x-anthropic-billing-header:"
"""Claude Code begins the system prompt with a line of its own book-keeping, which differs every time: no
prompt would ever be found in the cache again."""


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    text: str
    cache_control: dict[str, Any] | None = None


class ImageBlock(msgspec.Struct, frozen=True, tag_field="type", tag="image"):
    source: dict[str, Any]
    cache_control: dict[str, Any] | None = None


class DocumentSource(msgspec.Struct, frozen=True):
    type: str
    data: str | None = None
    content: str | list["TextBlock | ImageBlock"] | None = None


class DocumentBlock(msgspec.Struct, frozen=True, tag_field="type", tag="document"):
    source: DocumentSource
    title: str | None = None
    context: str | None = None
    cache_control: dict[str, Any] | None = None


class SearchResultBlock(msgspec.Struct, frozen=True, tag_field="type", tag="search_result"):
    source: str
    title: str
    content: list[TextBlock]
    cache_control: dict[str, Any] | None = None


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class RedactedThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="redacted_thinking"):
    data: str


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]
    cache_control: dict[str, Any] | None = None


class ToolReferenceBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_reference"):
    tool_name: str


class ToolResultBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_result"):
    tool_use_id: str
    content: (
        str | list[TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock] | None
    ) = None
    is_error: bool | None = None
    cache_control: dict[str, Any] | None = None


Shown = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock
"""What is read as text, or refused."""
Block = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
)


class InputMessage(msgspec.Struct, frozen=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


def conversation(
    system: str | Sequence[TextBlock] | None, messages: Sequence[InputMessage]
) -> tuple[tuple[Message, ...], str]:
    """Our messages, and the text that the answer goes on from: the last message, if it is the assistant's.

    Raises PublicError 400 naming the field.
    """
    turns = _Turns()
    if system:
        turns.system(system)
    prefill = ""
    for index, message in enumerate(messages):
        param = f"messages[{index}]"
        if message.role == "user":
            turns.user(message.content, f"{param}.content")
        elif message.role == "system":
            turns.system(_system_text(message.content, f"{param}.content"))
        elif index == len(messages) - 1:
            prefill = _prefill(message.content, f"{param}.content")
        else:
            turns.assistant(message.content, f"{param}.content")
    if not turns.messages:
        raise invalid("`messages` must have a message that is to be answered.", param="messages")
    return tuple(turns.messages), prefill


def turns_of(system: str | Sequence[TextBlock] | None, messages: Sequence[InputMessage]) -> int:
    """How many of our messages these become, which others follow."""
    ours, _ = conversation(system, [*messages, InputMessage("user", "more")])
    return len(ours) - 1


class _Turns:
    """Our messages as they grow; remembers the calls that results may answer."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._calls: dict[str, str] = {}

    def system(self, content: str | Sequence[TextBlock]) -> None:
        texts = [content] if isinstance(content, str) else [block.text for block in content]
        text = _BETWEEN_BLOCKS.join(text for text in texts if text and not text.startswith(_BILLING))
        if text:
            self.messages.append(Message("system", text))

    def user(self, content: str | Sequence[Block], param: str) -> None:
        if isinstance(content, str):
            if not content:
                raise _empty(param)
            self.messages.append(Message("user", content))
            return
        texts: list[str] = []
        for index, block in enumerate(content):
            place = f"{param}[{index}]"
            match block:
                case ToolResultBlock():
                    self._result(block, place)
                case ThinkingBlock() | RedactedThinkingBlock() | ToolUseBlock():
                    raise _misplaced(block, place, "assistant")
                case _:
                    texts.append(shown_text(block, place))
        if texts:
            self.messages.append(Message("user", _BETWEEN_BLOCKS.join(texts)))
        elif not content:
            raise _empty(param)

    def _result(self, block: ToolResultBlock, param: str) -> None:
        name = self._calls.get(block.tool_use_id)
        if name is None:
            raise invalid(
                f"`{param}.tool_use_id` is {block.tool_use_id[:80]!r}, and no `tool_use` block before it has "
                "that id.",
                param=f"{param}.tool_use_id",
            )
        content = block.content
        if isinstance(content, list):
            content = _BETWEEN_BLOCKS.join(
                shown_text(part, f"{param}.content[{index}]") for index, part in enumerate(content)
            )
        text = content or ""
        if block.is_error and not text.lower().startswith("error"):
            text = f"Error: {text}"
        self.messages.append(Message("tool", text, name=name, tool_call_id=block.tool_use_id))

    def assistant(self, content: str | Sequence[Block], param: str) -> None:
        if isinstance(content, str):
            self.messages.append(Message("assistant", content))
            return
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[ToolCall] = []
        for index, block in enumerate(content):
            match block:
                case TextBlock():
                    texts.append(block.text)
                case ThinkingBlock():
                    thoughts.append(block.thinking)
                case RedactedThinkingBlock():
                    # Encrypted for another model: nothing in it can be read.
                    pass
                case ToolUseBlock():
                    self._calls[block.id] = block.name
                    calls.append(ToolCall(block.name, block.input, block.id))
                case _:
                    raise _misplaced(block, f"{param}[{index}]", "user")
        reasoning = "".join(thoughts) or None
        self.messages.append(
            Message("assistant", "".join(texts), tool_calls=tuple(calls), reasoning=reasoning)
        )


def shown_text(block: Shown, param: str) -> str:
    """What a model reads of `block`. Raises PublicError 400 for what is no text."""
    match block:
        case TextBlock():
            return block.text
        case ImageBlock():
            raise _unread("images", f"{param}.type")
        case ToolReferenceBlock():
            return block.tool_name
        case SearchResultBlock():
            texts = [block.title, block.source, *(part.text for part in block.content)]
            return "\n".join(filter(None, texts))
        case DocumentBlock():
            texts = [block.title or "", block.context or "", _document_text(block.source, f"{param}.source")]
            return "\n".join(filter(None, texts))


def _document_text(source: DocumentSource, param: str) -> str:
    match source.type:
        case "text":
            if source.data is None:
                raise _missing(f"{param}.data")
            return source.data
        case "content":
            if source.content is None:
                raise _missing(f"{param}.content")
            if isinstance(source.content, str):
                return source.content
            return _BETWEEN_BLOCKS.join(
                shown_text(part, f"{param}.content[{index}]") for index, part in enumerate(source.content)
            )
    raise _unread("documents that are not text", f"{param}.type")


def _system_text(content: str | Sequence[Block], param: str) -> str | list[TextBlock]:
    if isinstance(content, str):
        return content
    texts = []
    for index, block in enumerate(content):
        if not isinstance(block, TextBlock):
            raise invalid(
                f"`{param}[{index}].type` must be text in a system message.", param=f"{param}[{index}].type"
            )
        texts.append(block)
    return texts


def _prefill(content: str | Sequence[Block], param: str) -> str:
    """The beginning of the answer, which the model goes on from."""
    if isinstance(content, str):
        return content
    texts = []
    for index, block in enumerate(content):
        match block:
            case TextBlock():
                texts.append(block.text)
            case ThinkingBlock() | RedactedThinkingBlock():
                pass
            case ToolUseBlock():
                raise invalid(
                    f"`{param}[{index}]` has no `tool_result`: a message with the results of all calls must "
                    "follow.",
                    param=f"{param}[{index}]",
                )
            case _:
                raise _misplaced(block, f"{param}[{index}]", "user")
    return "".join(texts)


def _kind(block: msgspec.Struct) -> str:
    return str(block.__struct_config__.tag)


def _misplaced(block: msgspec.Struct, param: str, role: str) -> PublicError:
    return invalid(
        f"`{param}.type` is {_kind(block)}, which only messages of the {role} may have.",
        param=f"{param}.type",
    )


def _unread(what: str, param: str) -> PublicError:
    return invalid(
        f"`{param}`: this model takes text only, no {what}.", param=param, code="unsupported_value"
    )


def _missing(param: str) -> PublicError:
    return invalid(f"`{param}` is required.", param=param, code="missing_required_parameter")


def _empty(param: str) -> PublicError:
    return invalid(f"`{param}` must not be empty.", param=param)

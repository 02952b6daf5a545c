"""The messages of a chat request, held against the official schema, and what they are to us.

Source: OpenAI's specification, `ChatCompletionRequestMessage`; `reasoning_content` and `reasoning` are what
open models' clients send back of an earlier answer's thinking.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from shared.errors import invalid
from worker.api.validation import given
from worker.request import Message, ToolCall


class CacheBreakpoint(msgspec.Struct, frozen=True):
    """Accepted: the prompt cache finds by itself where prompts part."""

    mode: Literal["explicit"]


class TextPart(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    text: str
    prompt_cache_breakpoint: CacheBreakpoint | UnsetType = UNSET


class RefusalPart(msgspec.Struct, frozen=True, tag_field="type", tag="refusal"):
    refusal: str


class ImagePart(msgspec.Struct, frozen=True, tag_field="type", tag="image_url"):
    image_url: Any = None


class AudioPart(msgspec.Struct, frozen=True, tag_field="type", tag="input_audio"):
    input_audio: Any = None


class FilePart(msgspec.Struct, frozen=True, tag_field="type", tag="file"):
    file: Any = None


Part = TextPart | RefusalPart | ImagePart | AudioPart | FilePart
Texts = str | Annotated[list[TextPart], Meta(min_length=1)]


class WireFunction(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class WireToolCall(msgspec.Struct, frozen=True, tag_field="type", tag="function"):
    id: str
    function: WireFunction


class AudioReference(msgspec.Struct, frozen=True):
    id: str


class DeveloperMessage(msgspec.Struct, frozen=True, tag_field="role", tag="developer"):
    content: Texts
    name: str | UnsetType = UNSET


class SystemMessage(msgspec.Struct, frozen=True, tag_field="role", tag="system"):
    content: Texts
    name: str | UnsetType = UNSET


class UserMessage(msgspec.Struct, frozen=True, tag_field="role", tag="user"):
    content: str | Annotated[list[TextPart | ImagePart | AudioPart | FilePart], Meta(min_length=1)]
    name: str | UnsetType = UNSET


class AssistantMessage(msgspec.Struct, frozen=True, tag_field="role", tag="assistant"):
    content: str | Annotated[list[TextPart | RefusalPart], Meta(min_length=1)] | None = None
    refusal: str | None = None
    name: str | UnsetType = UNSET
    audio: AudioReference | None = None
    tool_calls: list[WireToolCall] | UnsetType = UNSET
    function_call: WireFunction | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class ToolMessage(msgspec.Struct, frozen=True, tag_field="role", tag="tool"):
    content: Texts
    tool_call_id: str
    name: str | None = None


class FunctionMessage(msgspec.Struct, frozen=True, tag_field="role", tag="function"):
    content: str | None
    name: str


WireMessage = (
    DeveloperMessage | SystemMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage
)
_UNREAD: Final = {"image_url": "images", "input_audio": "audio", "file": "files"}


def is_of_functions(message: WireMessage) -> bool:
    """Whether it calls or answers as it was done before there were tools."""
    if isinstance(message, AssistantMessage):
        return message.function_call is not None
    return isinstance(message, FunctionMessage)


def check_results(messages: Sequence[WireMessage]) -> None:
    """Raises PublicError 400 for the result of a call that nobody made."""
    called: set[str] = set()
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            called.update(call.id for call in given(message.tool_calls) or ())
        elif isinstance(message, ToolMessage) and message.tool_call_id not in called:
            param = f"messages[{index}].tool_call_id"
            raise invalid(
                f"`{param}` is {message.tool_call_id[:80]!r}, and no message before it has a tool call with "
                "that id.",
                param=param,
            )


def message_of(wire: WireMessage, param: str) -> Message:
    """`wire`, which is at `param` in the body. Raises PublicError 400 for what is no text."""
    match wire:
        case DeveloperMessage() | SystemMessage() | UserMessage():
            role = wire.__struct_config__.tag
            text = _text(wire.content, f"{param}.content")
            return Message(role, text, name=given(wire.name))  # type: ignore[arg-type]  # tags are roles
        case ToolMessage():
            text = _text(wire.content, f"{param}.content")
            return Message("tool", text, name=wire.name, tool_call_id=wire.tool_call_id)
        case FunctionMessage():
            return Message("function", wire.content or "", name=wire.name)
        case AssistantMessage():
            return _assistant(wire, param)


def _assistant(wire: AssistantMessage, param: str) -> Message:
    calls = [
        ToolCall(call.function.name, parsed_arguments(call.function.arguments), call.id)
        for call in given(wire.tool_calls) or ()
    ]
    if wire.function_call is not None:
        function = wire.function_call
        calls.append(ToolCall(function.name, parsed_arguments(function.arguments)))
    said = wire.content if wire.content is not None else wire.refusal
    return Message(
        "assistant",
        _text(said, f"{param}.content"),
        name=given(wire.name),
        tool_calls=tuple(calls),
        reasoning=wire.reasoning_content or wire.reasoning or None,
    )


def _text(content: str | Sequence[Part] | None, param: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for index, part in enumerate(content):
        match part:
            case TextPart():
                texts.append(part.text)
            case RefusalPart():
                texts.append(part.refusal)
            case _:
                what = _UNREAD[str(part.__struct_config__.tag)]
                raise invalid(
                    f"`{param}[{index}]`: this model reads text only, no {what}.",
                    param=f"{param}[{index}].type",
                    code="unsupported_value",
                )
    return "".join(texts)


def parsed_arguments(arguments: str | dict[str, Any]) -> Any:
    """Templates want the parsed object; what is not JSON stays the text it is."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments

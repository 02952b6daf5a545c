"""Items: what a request to the Responses API puts in, and what an answer is made of.

An item is kept as the JSON object it is; its struct is what is read of it.
"""

import secrets
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from shared.errors import PublicError, invalid
from shared.validation import convert

Item = dict[str, Any]
Status = Literal["in_progress", "completed", "incomplete"]

_MAX_TEXT: Final = 10_485_760
_Text = Annotated[str, Meta(max_length=_MAX_TEXT)]
_CallId = Annotated[str, Meta(min_length=1, max_length=64)]


class CacheBreakpoint(msgspec.Struct, frozen=True):
    """Accepted: the prompt cache finds by itself where prompts part."""

    mode: Literal["explicit"]


class InputText(msgspec.Struct, frozen=True, tag_field="type", tag="input_text"):
    text: _Text
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class OutputText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    text: str
    annotations: list[dict[str, Any]] = []
    logprobs: list[dict[str, Any]] = []


class PlainText(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Not OpenAI's in a request, but what clients send that know chat completions better."""

    text: str


class RefusalText(msgspec.Struct, frozen=True, tag_field="type", tag="refusal"):
    refusal: str


class InputImage(msgspec.Struct, frozen=True, tag_field="type", tag="input_image"):
    detail: Literal["low", "high", "auto", "original"] | None = None
    image_url: str | None = None
    file_id: str | None = None


class InputFile(msgspec.Struct, frozen=True, tag_field="type", tag="input_file"):
    file_id: str | None = None
    filename: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    detail: Literal["auto", "low", "high"] | None = None


class InputAudio(msgspec.Struct, frozen=True, tag_field="type", tag="input_audio"):
    pass


Part = InputText | OutputText | PlainText | RefusalText | InputImage | InputFile | InputAudio


class SummaryText(msgspec.Struct, frozen=True, tag_field="type", tag="summary_text"):
    text: str


class ReasoningText(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    text: str


class MessageItem(msgspec.Struct, frozen=True):
    """Somebody's turn, or the model's own."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part]
    id: str | None = None
    status: Status | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class FunctionCall(msgspec.Struct, frozen=True):
    """A call that the model made. `arguments` is the JSON text as it wrote it."""

    call_id: str
    name: str
    arguments: str
    namespace: str | None = None
    id: str | None = None
    status: Status | None = None
    caller: dict[str, Any] | None = None


class FunctionCallOutput(msgspec.Struct, frozen=True):
    """What the call with this id gave."""

    output: _Text | list[Part]
    call_id: _CallId
    id: str | None = None
    status: Status | None = None
    name: str | None = None
    namespace: str | None = None
    caller: dict[str, Any] | None = None


class ReasoningItem(msgspec.Struct, frozen=True):
    """What the model thought."""

    summary: list[SummaryText]
    id: str | None = None
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None
    status: Status | None = None


class ItemReference(msgspec.Struct, frozen=True):
    """Stands for the kept item with this id."""

    id: str


class Compaction(msgspec.Struct, frozen=True):
    """Stands for the items that `POST /v1/responses/compact` condensed."""

    encrypted_content: Annotated[str, Meta(max_length=2 * _MAX_TEXT)]
    id: str | None = None


Parsed = MessageItem | FunctionCall | FunctionCallOutput | ReasoningItem | ItemReference | Compaction

_KINDS: Final[dict[str, type[Parsed]]] = {
    "message": MessageItem,
    "function_call": FunctionCall,
    "function_call_output": FunctionCallOutput,
    "reasoning": ReasoningItem,
    "item_reference": ItemReference,
    "compaction": Compaction,
}
_PREFIXES: Final = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
    "compaction": "cmp",
}


def new_id(prefix: str) -> str:
    """A fresh id, `prefix_` and 48 hex digits."""
    return f"{prefix}_{secrets.token_hex(24)}"


def item_id(kind: str) -> str:
    """A fresh id for an item of this type."""
    return new_id(_PREFIXES[kind])


def kind_of(item: Item) -> str:
    """The item's type; those that may leave it out are told by their other fields."""
    kind = item.get("type")
    if kind is None:
        return "item_reference" if "id" in item and "role" not in item else "message"
    return str(kind)


def parse_item(item: Item, param: str) -> Parsed:
    """What is read of `item`, which is at `param`. Raises PublicError 400 naming the field."""
    kind = item.get("type")
    if not isinstance(kind, str | None):
        raise invalid(f"`{param}.type` is text.", param=f"{param}.type", code="invalid_type")
    known = _KINDS.get(kind_of(item))
    if known is None:
        raise invalid(
            f"`{param}.type` {str(kind)[:60]!r} is not supported; this server knows {', '.join(_KINDS)}.",
            param=f"{param}.type",
            code="unsupported_value",
        )
    return convert(item, known, param)


def input_items(value: str | Sequence[Item]) -> list[Item]:
    """The `input` of a request as items, each with its type."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    return [item if item.get("type") else {"type": kind_of(item), **_typeless(item)} for item in value]


def kept_item(item: Item) -> Item:
    """An item of an input as it is kept and shown: with an id, a status, and its text as a content part."""
    kind = kind_of(item)
    kept = {**item, "type": kind, "id": item.get("id") or item_id(kind)}
    if kind == "message":
        content = item["content"]
        if isinstance(content, str):
            kept["content"] = [_text_part(item["role"], content)]
        elif item["role"] == "assistant":
            kept["content"] = [_whole_part(part) for part in content]
    if kind in ("message", "function_call", "function_call_output"):
        kept["status"] = item.get("status") or "completed"
    return kept


def _typeless(item: Item) -> Item:
    return {name: value for name, value in item.items() if name != "type"}


def _text_part(role: str, text: str) -> Item:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}


def _whole_part(part: Item) -> Item:
    """With what an answer's part always has."""
    if part["type"] in ("output_text", "text", "input_text"):
        return {"annotations": [], "logprobs": [], **part, "type": "output_text"}
    return part


def missing_item(item_id: str, param: str) -> PublicError:
    """404 for an item that is not kept."""
    return PublicError(404, "item_not_found", f"Item with id '{item_id[:80]}' not found.", param=param)

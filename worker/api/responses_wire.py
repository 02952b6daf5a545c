"""How a request to the Responses API becomes a Request.

Its items are finer than a chat's turns: what the model thought, said and called in one turn are several.
Source: OpenAI's API reference, "Create a model response".
"""

from collections.abc import Sequence
from typing import Any, Final

import orjson

from shared.errors import PublicError, invalid
from shared.responses.asked import JsonObjectFormat, JsonSchemaFormat, ResponsesAsked, missing_input
from shared.responses.items import (
    Compaction,
    FunctionCall,
    FunctionCallOutput,
    InputAudio,
    InputFile,
    InputImage,
    Item,
    ItemReference,
    MessageItem,
    Part,
    ReasoningItem,
    RefusalText,
    missing_item,
    parse_item,
)
from shared.responses.sealed import unseal
from shared.responses.tools import Calling
from worker.api.chat_messages import parsed_arguments
from worker.api.sampling_wire import SamplingFields, request_fields
from worker.api.validation import check_range
from worker.request import Message, Request, ToolCall
from worker.text.grammar.spec import Spec
from worker.text.template import check_arguments
from worker.text.thinking import thinking_arguments

SUMMARY_LEAD: Final = "What was said before this, in short:\n\n"
"""Before what a compaction item stands for."""


class Extras(SamplingFields, frozen=True, kw_only=True):
    """What requests may say here beyond OpenAI's fields, under the same names as in chat completions."""

    max_reasoning_tokens: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None


def to_request(asked: ResponsesAsked, extras: Extras, *, history: int = 0) -> Request:
    """The request in our own words. Raises PublicError 400 naming the field.

    `history` items of the input are not the client's of this time: errors count without them.
    """
    chosen = request_fields(extras)
    check_range(extras.max_reasoning_tokens, "max_reasoning_tokens", 0, float("inf"))
    check_arguments(extras.chat_template_kwargs or {}, "chat_template_kwargs")
    calling = asked.calling
    effort = asked.reasoning.effort if asked.reasoning else None
    return Request(
        messages=_messages(asked, history),
        max_tokens=asked.max_output_tokens,
        logprobs=asked.logprobs,
        tools=calling.chat_shapes(),
        calls=calling.calls,
        named_tool=calling.named,
        # Whoever names a function wants one call of it.
        one_call=asked.parallel_tool_calls is False or calling.named is not None,
        structure=_structure(asked),
        # Some templates think whatever they are told.
        max_reasoning_tokens=0 if effort == "none" else extras.max_reasoning_tokens,
        template_arguments={
            **({} if effort is None else thinking_arguments(effort)),
            **(extras.chat_template_kwargs or {}),
        },
        **{**chosen, "n": 1, "session": chosen["session"] or asked.conversation_id},
    )


def _structure(asked: ResponsesAsked) -> Spec | None:
    wanted = asked.text.format
    if isinstance(wanted, JsonSchemaFormat):
        schema = orjson.dumps(wanted.schema).decode()
        return Spec("json_schema", schema, bool(wanted.strict), "text.format.schema")
    return Spec("json_object", param="text.format") if isinstance(wanted, JsonObjectFormat) else None


def _messages(asked: ResponsesAsked, history: int) -> tuple[Message, ...]:
    turns = _Turns(asked.calling)
    if asked.instructions:
        turns.add(Message("developer", asked.instructions))
    items = asked.items
    if not items:
        raise missing_input()
    for index, item in enumerate(items):
        turns.take(item, f"input[{index - history}]" if index >= history else "input")
    return turns.whole()


class _Turns:
    """The conversation as it grows. What the model did before somebody else spoke is one turn."""

    def __init__(self, calling: Calling) -> None:
        self._calling = calling
        self._messages: list[Message] = []
        self._names: dict[str, str] = {}
        """Of the functions that were called, by the calls' ids."""
        self._reasoning = ""
        self._said: list[str] = []
        self._calls: list[ToolCall] = []

    def take(self, item: Item, param: str) -> None:
        match parse_item(item, param):
            case MessageItem("assistant", content):
                if self._said or self._calls:
                    self._end_turn()
                self._said.append(_text(content, f"{param}.content"))
            case MessageItem(role, content):
                self.add(Message(role, _text(content, f"{param}.content")))
            case ReasoningItem() as reasoning:
                if self._said or self._calls:
                    self._end_turn()
                self._reasoning += _thought(reasoning)
            case FunctionCall(call_id, name, arguments, namespace):
                name = self._calling.told(name, namespace)
                self._names[call_id] = name
                self._calls.append(ToolCall(name, parsed_arguments(arguments), call_id))
            case FunctionCallOutput(output, call_id):
                self.add(self._result(output, call_id, param))
            case Compaction(encrypted_content):
                self.add(Message("developer", SUMMARY_LEAD + _unsealed(encrypted_content, param)))
            case ItemReference(item_id):
                raise missing_item(item_id, f"{param}.id")

    def add(self, message: Message) -> None:
        """Somebody else's turn."""
        self._end_turn()
        self._messages.append(message)

    def whole(self) -> tuple[Message, ...]:
        self._end_turn()
        return tuple(self._messages)

    def _end_turn(self) -> None:
        if self._said or self._calls:
            self._messages.append(
                Message(
                    "assistant",
                    "".join(self._said),
                    tool_calls=tuple(self._calls),
                    reasoning=self._reasoning or None,
                )
            )
        # Thoughts that led to nothing are in no template.
        self._reasoning, self._said, self._calls = "", [], []

    def _result(self, output: str | list[Part], call_id: str, param: str) -> Message:
        if call_id not in self._names:
            raise invalid(
                f"No function call with the call_id {call_id!r} comes before its output.",
                param=f"{param}.call_id",
            )
        text = _text(output, f"{param}.output")
        return Message("tool", text, name=self._names[call_id], tool_call_id=call_id)


def _text(content: str | Sequence[Part], param: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        match part:
            case InputImage() | InputFile() | InputAudio():
                raise _no_such_input(part, f"{param}[{index}]")
            case RefusalText(refusal):
                texts.append(refusal)
            case _:
                texts.append(part.text)
    return "".join(texts)


def _no_such_input(part: InputImage | InputFile | InputAudio, param: str) -> PublicError:
    kind = type(part).__name__.removeprefix("Input").lower()
    return invalid(
        f"`{param}` is an {kind}, and this model reads text only."
        if kind[0] in "aeiou"
        else f"`{param}` is a {kind}, and this model reads text only.",
        param=f"{param}.type",
        code="unsupported_value",
    )


def _thought(item: ReasoningItem) -> str:
    """The thinking itself where there is any, else what is told of it."""
    if item.content:
        return "".join(part.text for part in item.content)
    if item.encrypted_content and (text := unseal(item.encrypted_content)) is not None:
        return text
    return "\n\n".join(part.text for part in item.summary)


def _unsealed(sealed: str, param: str) -> str:
    text = unseal(sealed)
    if text is None:
        param += ".encrypted_content"
        raise invalid(f"`{param}` is not what this server's compaction gave.", param=param)
    return text

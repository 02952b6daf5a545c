"""The body of `POST /v1/chat/completions`, and how it becomes a Request.

Sources: OpenAI's API reference, "Create chat completion"; vLLM's documentation for the `guided_` fields,
`structured_outputs` and `chat_template_kwargs`. Unknown fields are ignored.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from shared.errors import invalid
from shared.launch import Effort
from worker.api.accepted_wire import AcceptedFields, check_accepted
from worker.api.chat_messages import WireMessage, check_results, is_of_functions, message_of
from worker.api.functions_wire import calling_functions, paired
from worker.api.sampling_wire import MAX_ALTERNATIVES, request_fields
from worker.api.structure_wire import structure_of
from worker.api.tools_wire import Calling, calling
from worker.api.validation import check_range, convert, given
from worker.request import Request
from worker.text.template import check_arguments
from worker.text.thinking import thinking_arguments


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False
    include_obfuscation: bool = False
    """Accepted: what comes is as long as it is."""


class ChatAsked(AcceptedFields, frozen=True, kw_only=True):
    messages: list[WireMessage]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: dict[str, Any] | UnsetType = UNSET
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | UnsetType = UNSET
    tool_choice: str | dict[str, Any] | UnsetType = UNSET
    parallel_tool_calls: bool | UnsetType = UNSET
    functions: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=128)] | UnsetType = UNSET
    function_call: str | dict[str, Any] | UnsetType = UNSET
    reasoning_effort: Effort | Literal["none"] | None = None
    max_reasoning_tokens: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def calls_functions(self) -> bool:
        """Whether calls are `function_call`, as they were before there were tools."""
        return self.functions is not UNSET

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


def to_request(asked: ChatAsked) -> Request:
    """The request in our own words. Raises PublicError 400 naming the field."""
    if not asked.messages:
        raise invalid("`messages` must have at least one message.", param="messages")
    check_accepted(asked)
    _check_shapes(asked)
    check_results(asked.messages)
    chosen = request_fields(asked)
    check_range(asked.max_tokens, "max_tokens", 1, float("inf"))
    check_range(asked.max_completion_tokens, "max_completion_tokens", 1, float("inf"))
    check_range(asked.max_reasoning_tokens, "max_reasoning_tokens", 0, float("inf"))
    check_arguments(asked.chat_template_kwargs or {}, "chat_template_kwargs")
    tools = _calling(asked)
    messages = tuple(message_of(message, f"messages[{i}]") for i, message in enumerate(asked.messages))
    if any(map(is_of_functions, asked.messages)):
        messages = paired(messages)
    return Request(
        messages=messages,
        max_tokens=asked.max_completion_tokens or asked.max_tokens,
        logprobs=_alternatives(asked),
        tools=tools.tools,
        calls=tools.calls,
        named_tool=tools.named,
        # Whoever names a function wants one call of it.
        one_call=asked.parallel_tool_calls is False or tools.named is not None or asked.calls_functions,
        structure=structure_of(asked),
        # Some templates think whatever they are told.
        max_reasoning_tokens=0 if asked.reasoning_effort == "none" else asked.max_reasoning_tokens,
        template_arguments={
            **({} if asked.reasoning_effort is None else thinking_arguments(asked.reasoning_effort)),
            **(asked.chat_template_kwargs or {}),
        },
        **chosen,
    )


def _calling(asked: ChatAsked) -> Calling:
    if not asked.calls_functions:
        return calling(given(asked.tools), _choice(asked.tool_choice))
    if asked.tools is not UNSET:
        raise invalid("`functions` is the older name of `tools`; send one of them.", param="functions")
    return calling_functions(given(asked.functions), _choice(asked.function_call))


class OfficialFunction(msgspec.Struct, frozen=True):
    name: str
    description: str | UnsetType = UNSET
    parameters: dict[str, Any] | UnsetType = UNSET
    strict: bool | None = None


class OfficialTool(msgspec.Struct, frozen=True, tag_field="type", tag="function"):
    function: OfficialFunction


class OfficialSchema(msgspec.Struct, frozen=True):
    name: str
    description: str | UnsetType = UNSET
    schema: dict[str, Any] | UnsetType = UNSET
    strict: bool | None = None


class OfficialFormat(msgspec.Struct, frozen=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: OfficialSchema | UnsetType = UNSET


def _check_shapes(asked: ChatAsked) -> None:
    """Hold what is read further down, by parts that other APIs share, against the official schema."""
    for index, tool in enumerate(given(asked.tools) or ()):
        if tool.get("type") == "custom":
            raise invalid(
                f"`tools[{index}].type` can't be custom: a call has arguments as a JSON schema has them.",
                param=f"tools[{index}].type",
                code="unsupported_value",
            )
        convert(tool, OfficialTool, f"tools[{index}]")
    for index, function in enumerate(given(asked.functions) or ()):
        convert(function, OfficialFunction, f"functions[{index}]")
    if asked.response_format is not UNSET:
        convert(asked.response_format, OfficialFormat, "response_format")


def _choice(choice: str | dict[str, Any] | UnsetType) -> str | dict[str, Any] | None:
    return None if choice is UNSET else choice


def _alternatives(asked: ChatAsked) -> int | None:
    check_range(asked.top_logprobs, "top_logprobs", 0, MAX_ALTERNATIVES)
    if asked.top_logprobs and not asked.logprobs:
        raise invalid("`top_logprobs` needs `logprobs` to be true.", param="top_logprobs")
    return asked.top_logprobs or 0 if asked.logprobs else None

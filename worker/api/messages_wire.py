"""The bodies of `POST /v1/messages` and `POST /v1/messages/count_tokens`, and how they become a Request.

Source: Anthropic's API reference, "Create a Message" and "Count tokens in a Message". Unknown fields are
ignored, as are those that say how to bill and where to run; whatever would change the answer is done or
refused.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from shared.errors import PublicError, invalid
from worker.api.messages_cache import Mark, last_mark, turns_to
from worker.api.messages_content import InputMessage, TextBlock, conversation
from worker.api.sampling_wire import stops_of
from worker.api.tools_wire import Calling, calling
from worker.api.validation import check_range
from worker.request import Asked, Request
from worker.text.grammar.spec import Spec, spec_of

LEAST_BUDGET_TOKENS: Final = 1024
MAX_MESSAGES: Final = 100_000
_TOOLS: Final = "only tools of your own are supported, none that run on a server or come with the API"
_COMES_WITH_THE_API: Final = re.compile("[a-z_]+_20[0-9]{6}")
"""How Anthropic names the types of such tools: `web_search_20250305`, `bash_20250124`."""


class Metadata(msgspec.Struct, frozen=True):
    user_id: str | None = None


class ThinkingConfig(msgspec.Struct, frozen=True):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class WireTool(msgspec.Struct, frozen=True):
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class OutputFormat(msgspec.Struct, frozen=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, frozen=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountAsked(msgspec.Struct, frozen=True, kw_only=True):
    """What makes the prompt."""

    messages: list[InputMessage]
    system: str | list[TextBlock] | None = None
    tools: list[WireTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """Where `output_config.format` was before."""
    cache_control: dict[str, Any] | None = None
    mcp_servers: list[Any] | None = None


class MessagesAsked(CountAsked, frozen=True, kw_only=True):
    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: Metadata | None = None
    service_tier: str | None = None
    thread: dict[str, Any] | None = None
    adapter: str | None = None
    """Our own: a LoRA adapter of the model's."""

    @property
    def shows_thinking(self) -> bool:
        """Whether the text of thinking is wanted, or only that there was some."""
        return self.thinking is None or self.thinking.display != "omitted"


def to_request(asked: MessagesAsked) -> Request:
    """The request in our own words. Raises PublicError 400 naming the field."""
    # 0 asks to compute and keep the prompt: one token is made, and not told.
    check_range(asked.max_tokens, "max_tokens", 0, float("inf"))
    check_range(asked.temperature, "temperature", 0, 1)
    check_range(asked.top_p, "top_p", 0, 1)
    check_range(asked.top_k, "top_k", 0, 2**31)
    if asked.thread is not None:
        raise _unthreaded()
    thinking = asked.thinking
    if thinking is not None and thinking.budget_tokens is not None and thinking.type == "enabled":
        check_range(thinking.budget_tokens, "thinking.budget_tokens", LEAST_BUDGET_TOKENS, float("inf"))
        if thinking.budget_tokens >= asked.max_tokens:
            raise invalid(
                f"`max_tokens` ({asked.max_tokens}) must be greater than `thinking.budget_tokens` "
                f"({thinking.budget_tokens}).",
                param="max_tokens",
            )
    return msgspec.structs.replace(
        prompt_of(asked),
        sampling=Asked(temperature=asked.temperature, top_p=asked.top_p, top_k=asked.top_k),
        max_tokens=max(1, asked.max_tokens),
        stops=stops_of(asked.stop_sequences, "stop_sequences"),
        adapter=asked.adapter,
    )


def _unthreaded() -> PublicError:
    """In the words by which Anthropic's SDK knows that it has to send the whole conversation each time."""
    return PublicError(
        400,
        "unsupported_value",
        "`thread` is not supported: no messages are kept here; send the whole conversation.",
        param="thread",
        details={"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
    )


def prompt_of(asked: CountAsked) -> Request:
    """As much of the request as decides over its prompt. Raises PublicError 400 naming the field."""
    if not 0 < len(asked.messages) <= MAX_MESSAGES:
        raise invalid(f"`messages` must have 1 to {MAX_MESSAGES} messages.", param="messages")
    if asked.mcp_servers:
        raise invalid(
            "`mcp_servers` are not called from here; connect to them yourself and pass their `tools`.",
            param="mcp_servers",
            code="unsupported_value",
        )
    messages, prefill = conversation(asked.system, asked.messages)
    tools = _calling(asked.tools or (), asked.tool_choice)
    choice = asked.tool_choice
    mark = mark_of(asked)
    structure = _structure(asked)
    thinking = _thinking(asked.thinking)
    effort = None if asked.output_config is None else asked.output_config.effort
    if prefill:
        if asked.thinking is not None and asked.thinking.type != "disabled":
            raise invalid(
                "The last message may not be the assistant's while thinking is enabled.", param="messages"
            )
        if structure is not None or tools.calls == "required":
            raise invalid(
                "The last message may not be the assistant's when a tool or format is required.",
                param="messages",
            )
        # What the assistant already says is no thinking.
        thinking = _NO_THINKING
    return Request(
        messages=messages,
        prefill=prefill,
        tools=tools.tools,
        calls=tools.calls,
        named_tool=tools.named,
        one_call=tools.named is not None or bool(choice and choice.disable_parallel_tool_use),
        structure=structure,
        marked_turns=turns_to(mark, asked.system, asked.messages, len(messages)),
        max_reasoning_tokens=_budget(asked.thinking),
        template_arguments={**thinking, **({"reasoning_effort": effort} if effort else {})},
    )


def mark_of(asked: CountAsked) -> Mark | None:
    """The last place that `cache_control` marks."""
    return last_mark(asked.cache_control, asked.messages, asked.system, asked.tools)


_NO_THINKING: Final[dict[str, Any]] = {"enable_thinking": False, "thinking": False}


def _thinking(config: ThinkingConfig | None) -> dict[str, Any]:
    """Template arguments under the names that templates have for it; nothing leaves it to the model."""
    if config is None:
        return {}
    if config.type == "enabled" and config.budget_tokens is None:
        raise invalid(
            "`thinking.budget_tokens` is required.",
            param="thinking.budget_tokens",
            code="missing_required_parameter",
        )
    return _NO_THINKING if config.type == "disabled" else {"enable_thinking": True, "thinking": True}


def _budget(config: ThinkingConfig | None) -> int | None:
    if config is None:
        return None
    # Some templates think whatever they are told.
    return 0 if config.type == "disabled" else config.budget_tokens


def _structure(asked: CountAsked) -> Spec | None:
    config = asked.output_config.format if asked.output_config is not None else None
    if config is not None and asked.output_format is not None:
        raise invalid(
            "`output_format` and `output_config.format` are the same; give one.", param="output_format"
        )
    chosen, param = (config, "output_config.format") if config else (asked.output_format, "output_format")
    if chosen is None:
        return None
    named = {"name": "output", "schema": chosen.schema, "strict": True}
    spec = spec_of({"response_format": {"type": "json_schema", "json_schema": named}})
    return None if spec is None else msgspec.structs.replace(spec, param=f"{param}.schema")


def left_out(asked: CountAsked) -> str | None:
    """The value of a `Warning` header about tools that the model was not given."""
    names = [
        f"tools[{index}] ({tool.type})" for index, tool in enumerate(asked.tools or ()) if _is_theirs(tool)
    ]
    return f'299 - "left out: {", ".join(names)}; {_TOOLS}"' if names else None


def _is_theirs(tool: WireTool) -> bool:
    return tool.type is not None and _COMES_WITH_THE_API.fullmatch(tool.type) is not None


def _calling(tools: Sequence[WireTool], choice: ToolChoice | None) -> Calling:
    """Tools that come with the API are left out where there are others, as nothing is said against an answer
    without them; alone, they are what the request is about, and it is refused."""
    alone = all(map(_is_theirs, tools))
    ours = [(index, tool) for index, tool in enumerate(tools) if alone or not _is_theirs(tool)]
    known = [_function(tool, f"tools[{index}]") for index, tool in ours]
    return calling(known, _choice(choice, [tool.name for _, tool in ours]))


def _choice(choice: ToolChoice | None, names: Sequence[str]) -> str | Mapping[str, Any] | None:
    if choice is None:
        return None
    match choice.type:
        case "any":
            return "required"
        case "tool":
            if choice.name is None:
                raise invalid(
                    "`tool_choice.name` is required.",
                    param="tool_choice.name",
                    code="missing_required_parameter",
                )
            if choice.name not in names:
                raise invalid(f"`tools` has no tool named {choice.name[:80]!r}.", param="tool_choice.name")
            return {"type": "function", "function": {"name": choice.name}}
    return choice.type


def _function(tool: WireTool, param: str) -> dict[str, Any]:
    """The tool as templates and grammars want it."""
    if tool.type not in (None, "custom"):
        raise invalid(
            f"`{param}.type` can't be {tool.type[:40]!r}: {_TOOLS}.",
            param=f"{param}.type",
            code="unsupported_value",
        )
    if not 0 < len(tool.name) <= _MAX_NAME_CHARACTERS:
        raise invalid(
            f"`{param}.name` must have 1 to {_MAX_NAME_CHARACTERS} characters.", param=f"{param}.name"
        )
    if tool.input_schema is None:
        raise invalid(
            f"`{param}.input_schema` is required.",
            param=f"{param}.input_schema",
            code="missing_required_parameter",
        )
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    return {"type": "function", "function": function}


_MAX_NAME_CHARACTERS: Final = 128

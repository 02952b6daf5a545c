"""`functions`, `function_call` and the turns that belong to them: tools as OpenAI's API had them first.

Source: OpenAI's API reference, "Create chat completion", its deprecated fields. They become tools, a choice
and calls of today, one call for each answer; errors name `functions[0]` where they would name a tool.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from shared.errors import PublicError, invalid
from worker.api.tools_wire import Calling, calling
from worker.request import Message

_TOOL: Final = re.compile(r"tools\[(\d+)\](\.function)?")
_CALL_ID: Final = "call{:05d}"
"""Nine letters and digits, which is what the strictest templates want of an id."""


def calling_functions(
    functions: Sequence[dict[str, Any]] | None, choice: str | dict[str, Any] | None
) -> Calling:
    """What both fields say together. Raises PublicError 400 naming them."""
    try:
        return calling(
            None if functions is None else [{"type": "function", "function": entry} for entry in functions],
            _choice(choice),
        )
    except PublicError as error:
        raise in_functions(error) from None


def _choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    if choice in (None, "none", "auto"):
        return choice
    if isinstance(choice, dict) and isinstance(choice.get("name"), str):
        return {"type": "function", "function": choice}
    raise invalid(
        '`function_call` must be none, auto or a function such as {"name": "f"}.',
        param="function_call",
        code="unsupported_value",
    )


def in_functions(error: PublicError) -> PublicError:
    """`error`, naming the fields that the client sent instead of the tools that were made of them."""
    return PublicError(
        error.status,
        error.code,
        _in_functions(error.message),
        param=None if error.param is None else _in_functions(error.param),
        retry_after_s=error.retry_after_s,
        headers=error.extra_headers,
    )


def _in_functions(text: str) -> str:
    text = text.replace("tool_choice.function", "function_call").replace("tool_choice", "function_call")
    return _TOOL.sub(r"functions[\1]", text).replace("`tools`", "`functions`")


def paired(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The conversation with ids for calls that have none, and what `function` turns answer to them.

    Templates know turns of the role `tool`; few know `function`.
    """
    paired = []
    last: str | None = None
    for number, message in enumerate(messages):
        if message.role == "assistant" and len(message.tool_calls) == 1:
            (call,) = message.tool_calls
            last = call.id or _CALL_ID.format(number)
            message = msgspec.structs.replace(message, tool_calls=(msgspec.structs.replace(call, id=last),))
        elif message.role == "function":
            message = msgspec.structs.replace(message, role="tool", tool_call_id=last)
        paired.append(message)
    return tuple(paired)

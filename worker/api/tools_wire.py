"""`tools` and `tool_choice` of a chat request.

Source: OpenAI's API reference, "Create chat completion".
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from shared.errors import invalid

MAX_TOOLS: Final = 512
_MAX_NAME_CHARACTERS: Final = 256
_CHOICES: Final = "`tool_choice` must be none, auto, required, a function or allowed_tools."


class Calling(msgspec.Struct, frozen=True):
    """Which tools there are, and whether one must be called."""

    tools: tuple[dict[str, Any], ...] = ()
    calls: Literal["auto", "required"] = "auto"
    named: str | None = None
    """The function that must be called."""


def calling(tools: Sequence[dict[str, Any]] | None, choice: str | Mapping[str, Any] | None) -> Calling:
    """What both fields say together; no tools when none may be called. Raises PublicError 400."""
    known = _checked(tools or ())
    match choice:
        case None | "auto":
            return Calling(known)
        case "none":
            return Calling()
        case "required":
            return _required(known)
        case Mapping():
            match choice.get("type"):
                case "function":
                    name = _name(choice.get("function"), "tool_choice.function")
                    _only([name], known, "tool_choice.function.name")
                    return Calling(known, "required", name)
                case "allowed_tools":
                    return _allowed(known, choice.get("allowed_tools"))
            raise invalid(_CHOICES, param="tool_choice.type", code="unsupported_value")
    raise invalid(_CHOICES, param="tool_choice", code="unsupported_value")


def _required(tools: tuple[dict[str, Any], ...]) -> Calling:
    if not tools:
        raise invalid("A call can't be required without `tools`.", param="tool_choice")
    return Calling(tools, "required")


def _allowed(tools: tuple[dict[str, Any], ...], allowed: Any) -> Calling:
    param = "tool_choice.allowed_tools"
    listed = allowed.get("tools") if isinstance(allowed, Mapping) else None
    if not isinstance(listed, list) or allowed.get("mode") not in ("auto", "required"):
        raise invalid("`allowed_tools` has a `mode`, auto or required, and a list of `tools`.", param=param)
    names = [
        _name(tool.get("function") if isinstance(tool, Mapping) else None, f"{param}.tools[{index}].function")
        for index, tool in enumerate(listed)
    ]
    chosen = _only(names, tools, f"{param}.tools")
    return _required(chosen) if allowed["mode"] == "required" else Calling(chosen)


def _only(names: Sequence[str], tools: tuple[dict[str, Any], ...], param: str) -> tuple[dict[str, Any], ...]:
    there = [tool["function"]["name"] for tool in tools]
    for name in names:
        if name not in there:
            raise invalid(f"`tools` has no function named {name[:80]!r}.", param=param)
    return tuple(tool for tool in tools if tool["function"]["name"] in names)


def _checked(tools: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    if len(tools) > MAX_TOOLS:
        raise invalid(f"`tools` may have {MAX_TOOLS} tools, not {len(tools)}.", param="tools")
    for index, tool in enumerate(tools):
        param = f"tools[{index}]"
        if tool.get("type", "function") != "function":
            raise invalid(
                f"`{param}.type` must be function.", param=f"{param}.type", code="unsupported_value"
            )
        function = tool.get("function")
        _name(function, f"{param}.function")
        assert isinstance(function, Mapping)
        if not isinstance(function.get("parameters"), dict | None):
            raise invalid(
                f"`{param}.function.parameters` is a JSON schema.", param=f"{param}.function.parameters"
            )
        if not isinstance(function.get("description"), str | None):
            raise invalid(f"`{param}.function.description` is text.", param=f"{param}.function.description")
    return tuple(tools)


def _name(function: Any, param: str) -> str:
    if not isinstance(function, Mapping):
        raise invalid(f"`{param}` is required.", param=param, code="missing_required_parameter")
    name = function.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME_CHARACTERS:
        raise invalid(f"`{param}.name` is a name of a function.", param=f"{param}.name")
    return name

"""`tools` and `tool_choice` of the Responses API: functions, told flat."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from shared.errors import invalid
from shared.validation import convert

MAX_TOOLS: Final = 512
_CHOICES: Final = "`tool_choice` must be none, auto, required, a function or allowed_tools."


class FunctionTool(msgspec.Struct, frozen=True):
    """A function the model may call. `parameters` is the JSON schema of its arguments."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def chat_shape(self) -> dict[str, Any]:
        """As chat completions word it, and with them all templates."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        if self.parameters is not None:
            function["parameters"] = self.parameters
        if self.strict is not None:
            function["strict"] = self.strict
        return {"type": "function", "function": function}


class _Named(msgspec.Struct, frozen=True):
    name: str


class _Allowed(msgspec.Struct, frozen=True):
    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]]


class Calling(msgspec.Struct, frozen=True):
    """Which functions there are, and whether one must be called."""

    tools: tuple[FunctionTool, ...] = ()
    calls: Literal["auto", "required"] = "auto"
    named: str | None = None
    """The function that must be called."""


def calling(tools: Sequence[dict[str, Any]], choice: str | dict[str, Any]) -> Calling:
    """What both fields say together; no tools when none may be called. Raises PublicError 400."""
    known = _known(tools)
    if isinstance(choice, dict):
        match choice.get("type"):
            case "function":
                name = convert(choice, _Named, "tool_choice").name
                _only([name], known, "tool_choice.name")
                return Calling(known, "required", name)
            case "allowed_tools":
                allowed = convert(choice, _Allowed, "tool_choice")
                return _allowed(known, allowed)
        raise invalid(_CHOICES, param="tool_choice.type", code="unsupported_value")
    match choice:
        case "auto":
            return Calling(known)
        case "none":
            return Calling()
        case "required":
            return _required(known)
    raise invalid(_CHOICES, param="tool_choice", code="unsupported_value")


def _required(tools: tuple[FunctionTool, ...]) -> Calling:
    if not tools:
        raise invalid("A call can't be required without `tools`.", param="tool_choice")
    return Calling(tools, "required")


def _allowed(known: tuple[FunctionTool, ...], allowed: _Allowed) -> Calling:
    names = []
    for index, tool in enumerate(allowed.tools):
        param = f"tool_choice.tools[{index}]"
        if tool.get("type") != "function":
            raise invalid(
                f"`{param}.type` must be function.", param=f"{param}.type", code="unsupported_value"
            )
        names.append(convert(tool, _Named, param).name)
    chosen = _only(names, known, "tool_choice.tools")
    return _required(chosen) if allowed.mode == "required" else Calling(chosen)


def _only(names: list[str], known: tuple[FunctionTool, ...], param: str) -> tuple[FunctionTool, ...]:
    there = {tool.name for tool in known}
    for name in names:
        if name not in there:
            raise invalid(f"`tools` has no function named {name[:80]!r}.", param=param)
    return tuple(tool for tool in known if tool.name in names)


def _known(tools: Sequence[dict[str, Any]]) -> tuple[FunctionTool, ...]:
    if len(tools) > MAX_TOOLS:
        raise invalid(f"`tools` may have {MAX_TOOLS} tools, not {len(tools)}.", param="tools")
    known = []
    for index, tool in enumerate(tools):
        param = f"tools[{index}]"
        kind = tool.get("type")
        if kind != "function":
            name = repr(str(kind)[:60]) if kind is not None else "nothing"
            raise invalid(
                f"`{param}.type` is {name}; this server runs no tools itself, so it takes function only.",
                param=f"{param}.type",
                code="unsupported_value",
            )
        known.append(convert(tool, FunctionTool, param))
    return tuple(known)

"""`tools` and `tool_choice` of the Responses API: functions, told flat."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from shared.errors import PublicError, invalid
from shared.validation import convert

MAX_TOOLS: Final = 512
_CHOICES: Final = "`tool_choice` must be none, auto, required, a function or allowed_tools."
_ELSEWHERE: Final = frozenset(
    {
        "apply_patch",
        "code_interpreter",
        "computer",
        "computer_use_preview",
        "custom",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "programmatic_tool_calling",
        "shell",
        "tool_search",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)
"""Types of tools that OpenAI's servers run, or that its own models were trained to call. Source: its
specification, `Tool`."""
_NO_TOOLS: Final = "this server runs no tools itself, so it takes functions only"


class FunctionTool(msgspec.Struct, frozen=True):
    """A function the model may call. `parameters` is the JSON schema of its arguments."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    # What other programs than the model would need to know of it.
    output_schema: dict[str, Any] | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None

    def chat_shape(self, name: str) -> dict[str, Any]:
        """As chat completions word it, and with them all templates; the model knows it as `name`."""
        function: dict[str, Any] = {"name": name}
        if self.description is not None:
            function["description"] = self.description
        if self.parameters is not None:
            function["parameters"] = self.parameters
        if self.strict is not None:
            function["strict"] = self.strict
        return {"type": "function", "function": function}


class _Namespace(msgspec.Struct, frozen=True):
    """Functions under one name."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    tools: Annotated[list[dict[str, Any]], Meta(min_length=1)]


class _Named(msgspec.Struct, frozen=True):
    name: str


class _Allowed(msgspec.Struct, frozen=True):
    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]]


class Known(msgspec.Struct, frozen=True):
    """A function, and the namespace that it comes from."""

    function: FunctionTool
    namespace: str | None
    told: str
    """The name that the model knows it by."""


class Calling(msgspec.Struct, frozen=True):
    """Which functions there are, and whether one must be called."""

    tools: tuple[Known, ...] = ()
    calls: Literal["auto", "required"] = "auto"
    named: str | None = None
    """The function that must be called, as the model knows it."""
    left_out: tuple[str, ...] = ()
    """Tools that can't be had here, as `tools[3] (web_search)`."""

    def chat_shapes(self) -> tuple[dict[str, Any], ...]:
        return tuple(tool.function.chat_shape(tool.told) for tool in self.tools)

    def called(self, told: str) -> dict[str, str]:
        """The fields by which a call item names the function that the model called."""
        for tool in self.tools:
            if tool.told == told:
                place = {} if tool.namespace is None else {"namespace": tool.namespace}
                return {"name": tool.function.name, **place}
        return {"name": told}

    def told(self, name: str, namespace: str | None) -> str:
        """How the model knows a function that an earlier call names so."""
        for tool in self.tools:
            if (tool.function.name, tool.namespace) == (name, namespace):
                return tool.told
        return name

    @property
    def warning(self) -> str | None:
        """The value of a `Warning` header about what was left out."""
        if not self.left_out:
            return None
        return f'299 - "left out: {", ".join(self.left_out)}; {_NO_TOOLS}"'


def offered(tool: dict[str, Any]) -> bool:
    """Whether a tool is one that a model here can be given."""
    return tool.get("type") in ("function", "namespace")


def calling(tools: Sequence[dict[str, Any]], choice: str | dict[str, Any]) -> Calling:
    """What both fields say together; no tools when none may be called. Raises PublicError 400.

    Tools that run on OpenAI's servers are left out where there are others, as nothing is said against an
    answer without them; alone, they are what the request is about, and it is refused.
    """
    known, left_out = _known(tools)
    chosen = _chosen(known, choice)
    return msgspec.structs.replace(chosen, left_out=left_out)


def _chosen(known: tuple[Known, ...], choice: str | dict[str, Any]) -> Calling:
    if isinstance(choice, dict):
        match choice.get("type"):
            case "function":
                name = convert(choice, _Named, "tool_choice").name
                named = _only([name], known, "tool_choice.name")
                return Calling(known, "required", named[0].told)
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


def _required(tools: tuple[Known, ...]) -> Calling:
    if not tools:
        raise invalid("A call can't be required without `tools`.", param="tool_choice")
    return Calling(tools, "required")


def _allowed(known: tuple[Known, ...], allowed: _Allowed) -> Calling:
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


def _only(names: list[str], known: tuple[Known, ...], param: str) -> tuple[Known, ...]:
    there = {name for tool in known for name in (tool.function.name, tool.told)}
    for name in names:
        if name not in there:
            raise invalid(f"`tools` has no function named {name[:80]!r}.", param=param)
    return tuple(tool for tool in known if tool.function.name in names or tool.told in names)


def _known(tools: Sequence[dict[str, Any]]) -> tuple[tuple[Known, ...], tuple[str, ...]]:
    """The functions, and what is left out. A name that two namespaces have is told with its namespace."""
    found: list[tuple[FunctionTool, str | None]] = []
    left_out: list[tuple[str, str]] = []
    for tool, namespace, param in _flat(tools):
        kind = tool.get("type")
        if kind == "function":
            found.append((convert(tool, FunctionTool, param), namespace))
        elif kind in _ELSEWHERE:
            left_out.append((param, str(kind)))
        else:
            raise _unsupported(kind, param)
    if len(found) > MAX_TOOLS:
        raise invalid(f"`tools` may have {MAX_TOOLS} tools, not {len(found)}.", param="tools")
    if left_out and not found:
        param, kind = left_out[0]
        raise _unsupported(kind, param)
    names = [function.name for function, _ in found]
    known = tuple(
        Known(function, space, _told(function.name, space, alone=names.count(function.name) == 1))
        for function, space in found
    )
    return known, tuple(f"{param} ({kind})" for param, kind in left_out)


def _told(name: str, namespace: str | None, *, alone: bool) -> str:
    return name if alone or namespace is None else f"{namespace}__{name}"


def _flat(tools: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str | None, str]]:
    """Tools with their namespace and their place in the request."""
    if len(tools) > MAX_TOOLS:
        raise invalid(f"`tools` may have {MAX_TOOLS} tools, not {len(tools)}.", param="tools")
    for index, tool in enumerate(tools):
        param = f"tools[{index}]"
        if tool.get("type") != "namespace":
            yield tool, None, param
            continue
        namespace = convert(tool, _Namespace, param)
        for number, inner in enumerate(namespace.tools):
            yield inner, namespace.name, f"{param}.tools[{number}]"


def _unsupported(kind: object, param: str) -> PublicError:
    name = repr(str(kind)[:60]) if kind is not None else "nothing"
    return invalid(f"`{param}.type` is {name}; {_NO_TOOLS}.", param=f"{param}.type", code="unsupported_value")

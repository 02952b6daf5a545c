"""Grammars put together rule by rule, in llguidance's dialect of Lark."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import orjson

from worker.text.grammar.schema import COMPACT, prepared
from worker.text.sentinels import Sentinels, quote
from worker.text.toolcalls.tools import Schema, Tool
from worker.text.toolcalls.values import types_of

NO_ARGUMENTS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}, "additionalProperties": False}

# What a string's format asks for, where the string is not written as JSON.
_FORMATS: Final = {
    "date": r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])",
    "time": r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z",
    "date-time": r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "email": r"[a-z0-9]{1,32}@[a-z0-9]{1,32}\.[a-z]{2,8}",
}


class Rule(NamedTuple):
    """The name of a rule, to be told from markup."""

    name: str


Part = str | Rule
"""Markup as it is written, or a rule."""


class Grammar:
    """Collects rules. Every method that makes one returns it."""

    def __init__(self, sentinels: Sentinels) -> None:
        self._sentinels = sentinels
        self._rules: list[str] = []

    def rule(self, body: str, attributes: str = "") -> Rule:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return Rule(name)

    def reserve(self) -> Rule:
        """A rule that is defined later, for values that may hold themselves."""
        self._rules.append("")
        return Rule(f"r{len(self._rules) - 1}")

    def define(self, reserved: Rule, body: str) -> None:
        """Give a reserved rule its body."""
        self._rules[int(reserved.name[1:])] = f"{reserved.name}: {body}"

    def body(self, *parts: Part) -> str:
        """Parts one after the other, as the body of a rule."""
        written = (part.name if isinstance(part, Rule) else self._sentinels.lark(part) for part in parts)
        return " ".join(filter(None, written)) or '""'

    def sequence(self, *parts: Part) -> Rule:
        return self.rule(self.body(*parts))

    def any_of(self, rules: Iterable[Rule]) -> Rule:
        return self.rule(" | ".join(rule.name for rule in rules))

    def optional(self, rule: Rule) -> Rule:
        return self.rule(f"{rule.name}?")

    def json(
        self, schema: Schema, root: Schema | None = None, *, layout: Mapping[str, Any] = COMPACT
    ) -> Rule:
        """A JSON value. `root` is the document that the schema's references point into."""
        if root is not None and root is not schema:
            definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
            schema = {**definitions, **schema}
        ready = prepared(schema, layout, lenient=True)
        return self.rule(f"%json {orjson.dumps(ready).decode()}")

    def arguments(self, tool: Tool) -> Rule:
        """The JSON object of all arguments of `tool`."""
        return self.json({"type": "object", **(tool.parameters or NO_ARGUMENTS)})

    def json_call(self, tool: Tool, *, name: str = "name", arguments: str = "arguments") -> Rule:
        """`{"name": ..., "arguments": {...}}`."""
        return self.sequence(
            f"{{{quote(name)}: {quote(tool.name)}, {quote(arguments)}: ", self.arguments(tool), "}"
        )

    def text(self, schema: Schema, end: str) -> Rule:
        """A string that is written as it is, and the markup `end` after it, which can't be in it."""
        constants = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(constants, list):
            written = [
                value if isinstance(value, str) else orjson.dumps(value).decode() for value in constants
            ]
            return self.any_of(self.sequence(value + end) for value in written)
        letters, rest = self._sentinels.split(end)
        pattern = schema.get("pattern", _FORMATS.get(str(schema.get("format"))))
        if isinstance(pattern, str):
            body = f"/{_searched(pattern)}/" + (f" & {without(letters)}" if letters else "")
            return self.rule(f"{self._terminal(body)} {self.body(end)}")
        least, most = _bounds(schema)
        bounded = (least, most) != ("0", "")
        anything = f"/(.|\\n){{{least},{most}}}/" if bounded else r"/(.|\n)*/"
        if not letters:
            return self.rule(f"{anything} {self.body(end)}")
        # A text ends with the first such letters, unless a token must follow that then does not.
        part = self.rule(anything, f"[suffix={quote(letters)}]")
        if not rest:
            return part
        closing = self.body(rest)
        if bounded:
            return self.rule(f"{part.name} {closing}")
        whole = self.reserve()
        self.define(whole, f"{part.name} ({closing} | {whole.name})")
        return whole

    def _terminal(self, body: str) -> str:
        name = f"T{len(self._rules)}"  # the number counts as a rule's, so that names match places
        self._rules.append(f"{name}: {body}")
        return name

    def value(self, schema: Schema, root: Schema, end: str) -> Rule:
        """An argument in a syntax that writes strings as they are and everything else as JSON; then `end`."""
        if not schema or "string" in types_of(schema):
            return self.text(schema, end)
        return self.sequence(self.json(schema, root), end)

    def separated(self, required: list[Rule], optional: list[Rule], comma: str) -> Rule:
        """All of `required` and any of `optional`, in order, with commas between them. May be empty."""
        rest: Rule | None = None
        for rule in reversed(optional):
            # What may follow something else; each rule refers to the next.
            tail = self.rule(f"({self.body(comma, rule)})?" + (f" {rest.name}" if rest else ""))
            rest = tail
        if required:
            parts: list[Part] = [required[0]]
            for rule in required[1:]:
                parts += [comma, rule]
            return self.sequence(*parts, *([rest] if rest else []))
        return self._first_of(optional, comma)

    def _first_of(self, optional: list[Rule], comma: str) -> Rule:
        choices = ['""']
        rest: Rule | None = None
        for rule in reversed(optional):
            choices.append(f"{rule.name} {rest.name}" if rest else rule.name)
            rest = self.rule(f"({self.body(comma, rule)})?" + (f" {rest.name}" if rest else ""))
        return self.rule(" | ".join(choices))

    def start(self, *parts: Part) -> str:
        """The whole grammar, beginning with `parts`."""
        return "\n".join((f"start: {self.body(*parts)}", *self._rules)) + "\n"

    def repeated(self, one: Rule, *, many: bool, between: str = "") -> Rule:
        """`one`, or with `many` one or more of it."""
        if not many:
            return one
        return self.rule(f"{one.name} ({self.body(between, one)})*")


def without(text: str) -> str:
    """A terminal's body for any text that does not contain `text`."""
    return f"/(?s:.*)/ & ~/(?s:.*){_escaped(text)}(?s:.*)/"


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", r"\/").replace("\n", "n")


def _searched(pattern: str) -> str:
    """The pattern anchored at both ends; JSON schema searches with it."""
    head = "" if pattern.startswith("^") else "(?s:.*)"
    tail = "" if pattern.endswith("$") and not pattern.endswith("\\$") else "(?s:.*)"
    inner = pattern.removeprefix("^")
    if not tail:
        inner = inner[:-1]
    slashes = re.sub(r"(?<!\\)/", r"\/", inner)
    return f"{head}(?:{slashes}){tail}"


def _bounds(schema: Schema) -> tuple[str, str]:
    """Shortest and longest text as a regular expression writes them; the longest is empty without a bound."""
    least, most = schema.get("minLength"), schema.get("maxLength")
    return (
        str(least) if isinstance(least, int) and least > 0 else "0",
        str(most) if isinstance(most, int) and most >= 0 else "",
    )

"""Specifications to grammars: what the compiler takes."""

import re
from collections.abc import Iterable

import orjson
from llguidance.gbnf_to_lark import any_to_lark

from shared.errors import PublicError
from worker.text.grammar.schema import READABLE, prepared
from worker.text.grammar.spec import Spec
from worker.text.sentinels import quote


def grammar_of(spec: Spec, *, prefix: str = "", lenient: bool = False, controls: Iterable[str] = ()) -> str:
    """The grammar of an answer in llguidance's form.

    `prefix` is the body of a rule for what comes before the answer, with rules of its own behind it;
    `lenient` ignores keywords of a schema that can't be enforced; `controls` are texts of the model's control
    tokens. Raises PublicError 400.
    """
    answer = _lark(spec, lenient=lenient)
    if any(control in spec.source for control in controls):
        # Text that must come is forced as the tokenizer would cut it, which for the text of a control token
        # is that token, and never allowed. Without forcing the letters may be said one by one.
        answer = f'%llguidance {{"no_forcing": true}}\n{answer}'
    if not spec.reply:
        return answer
    # The answer is a grammar of its own, so that its names and those of the reply can't clash.
    grammars = [{"name": "reply", "lark_grammar": spec.reply}, {"name": "answer", "lark_grammar": answer}]
    return orjson.dumps({"grammars": grammars}).decode()


def _lark(spec: Spec, *, lenient: bool) -> str:
    match spec.kind:
        case "calls":
            return spec.source
        case "json_schema":
            return f"start: %json {orjson.dumps(prepared(spec.schema, READABLE, lenient=lenient)).decode()}\n"
        case "json_object":
            return f"start: %json {orjson.dumps({'type': 'object', 'x-guidance': dict(READABLE)}).decode()}\n"
        case "choice":
            return "start: " + " | ".join(quote(choice) for choice in spec.schema) + "\n"
        case "regex":
            return f"start: /{_slashes(spec.source)}/\n"
        case "grammar":
            try:
                return str(any_to_lark(spec.source))
            # The converter raises whatever its parser meets.
            except Exception as error:
                raise PublicError(
                    400, "invalid_grammar", f"The grammar can't be used: {error}.", param=spec.param
                ) from None


def _slashes(pattern: str) -> str:
    """The pattern with bare slashes and line breaks escaped, for they would end a terminal."""
    escaped = re.sub(r"\\.|/", lambda m: m[0] if m[0] != "/" else r"\/", pattern, flags=re.DOTALL)
    return escaped.replace("\\\n", r"\n").replace("\n", r"\n")


def in_words(spec: Spec) -> str:
    """What to put into the prompt when the constraint is not, or not all, enforced."""
    return (
        "Answer with nothing but one JSON value that conforms to this JSON schema, without a code block "
        f"around it:\n{spec.source}"
    )

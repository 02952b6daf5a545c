"""Structured output and forced calls: specifications to compiled grammars to the controls of rows."""

import re
from typing import Final

import msgspec
from llguidance import LLMatcher, LLParserLimits
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from shared.errors import PublicError
from worker.engine.constraint_grammar import grammar_of, in_words
from worker.engine.constraint_masks import Masks
from worker.engine.constraint_rows import Control, Matcher
from worker.engine.constraint_tokens import Vocabulary
from worker.text.grammar.schema import check
from worker.text.grammar.spec import Spec
from worker.text.thinking_gate import Gate

# The library's own bounds keep one step's masks under about 15 ms and a compilation's memory bounded; its
# longer messages quote the parser's state, which is nothing for a client.
_LIMITS: Final = LLParserLimits(verbose_errors=False, max_grammar_size=200_000)
_REASON_LENGTH: Final = 400
_PICTURE: Final = re.compile(r"\n\s*\d*\s*\|")
_POSITION: Final = re.compile(r"^at \d+\(\d+\): ")


class Compiled:
    """A grammar for one model, shared by all rows that ask for it. Safe to use from any thread."""

    def __init__(self, prototype: LLMatcher, *, spans: bool) -> None:
        self._prototype = prototype
        self._spans = spans

    def control(self, masks: Masks, gate: Gate | None = None) -> Control:
        """A fresh row's control; see Control."""
        return Control(masks, matcher=Matcher(self._prototype.deep_copy()), gate=gate, spans=self._spans)


class Prepared(msgspec.Struct, frozen=True):
    """What came of a specification.

    `compiled` is None when nothing can be enforced. `warning` then, or when not all of it can, is the text of
    the `Warning` header, and `prompt` is what to put into the prompt.
    """

    compiled: Compiled | None
    warning: str | None = None
    prompt: str | None = None


def compile_spec(spec: Spec, vocabulary: Vocabulary) -> Prepared:
    """Compile for one model; takes milliseconds, or seconds for a very large schema, without the GIL.

    Raises PublicError 400 with the library's reason for what is invalid, or can't be enforced and must be.
    """
    if spec.kind == "json_schema":
        check(spec.schema, spec.param)
    try:
        return Prepared(_compiled(spec, vocabulary, lenient=False))
    except PublicError as error:
        if spec.kind != "json_schema" or spec.strict:
            raise
        reason = error
    # The schema is a valid one, so it is the library that can't do all of it.
    try:
        return _unenforced(spec, reason, _compiled(spec, vocabulary, lenient=True))
    except PublicError:
        return _unenforced(spec, reason, None)


def _compiled(spec: Spec, vocabulary: Vocabulary, *, lenient: bool) -> Compiled:
    grammar = grammar_of(spec, lenient=lenient, controls=vocabulary.controls)
    prototype = LLMatcher(vocabulary.ll, grammar, log_level=0, limits=_LIMITS)
    if not prototype.is_error():
        # The first mask is the dearest by far: copies share what is worked out for it.
        fill_next_token_bitmask(prototype, allocate_token_bitmask(1, vocabulary.size))
    if prototype.is_error():
        raise _refused(spec, prototype.get_error())
    return Compiled(prototype, spans=spec.spans)


def _refused(spec: Spec, reason: str) -> PublicError:
    kind = {"json_schema": "schema", "json_object": "schema", "calls": "tools", "regex": "regular expression"}
    if spec.kind != "grammar":
        # The rest is a picture of the grammar that was made of it, which nobody has written.
        reason = _POSITION.sub("", _PICTURE.split(reason, maxsplit=1)[0])
    line = " ".join(reason.split())[:_REASON_LENGTH].rstrip(".")
    code = "invalid_schema" if spec.kind in ("json_schema", "json_object") else "invalid_grammar"
    noun = kind.get(spec.kind, spec.kind)
    return PublicError(400, code, f"The {noun} can't be used: {line}.", param=spec.param)


def _unenforced(spec: Spec, reason: PublicError, compiled: Compiled | None) -> Prepared:
    what = "is not enforced" if compiled is None else "is enforced only in part"
    # Header values are ASCII, and quotes would end the text.
    text = f"the schema of {spec.param} {what}: {reason.message}".encode("ascii", "replace").decode()
    text = "".join(c if c.isprintable() and c not in '"\\' else "'" for c in text)
    return Prepared(compiled, f'199 mlx-supervisor "{text}"', in_words(spec))

"""What a request's answers must look like, and what their text is made of: one guide for each request."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import msgspec

from worker.engine.constraint_masks import Masks
from worker.engine.constraint_pool import Preparation
from worker.engine.constraint_rows import Control
from worker.engine.constraint_tokens import Vocabulary
from worker.engine.constraints import Compiled
from worker.engine.thread import Engine
from worker.model.loading import Model
from worker.request import Message, Request
from worker.text.dialect import Dialect, Splitter
from worker.text.grammar.spec import Spec
from worker.text.toolcalls.tools import Tools

T = TypeVar("T")


class Beside(Protocol):
    """Does work on the thread that the tokenizer belongs to."""

    async def __call__(self, work: Callable[[], T]) -> T: ...


@dataclass(frozen=True)
class Guide:
    """Of one request, for all its answers."""

    request: Request
    """With what the model has to be told in words."""
    warning: str | None = None
    """The text of a `Warning` header."""
    compiled: Compiled | None = None
    masks: Masks | None = None
    """There when rows need a control."""
    dialect: Dialect | None = None
    """How to read the answers; None where all text is the answer."""

    @property
    def reads_prompt(self) -> bool:
        """Whether it depends on the end of the prompt how answers begin."""
        return self.dialect is not None

    def may_think(self, prompt_end: str) -> bool:
        """Whether thinking may come after a prompt whose text ends so."""
        return self.dialect is not None and self.dialect.gate(prompt_end, lambda token: b"") is not None

    def control(self, prompt_end: str) -> Control | None:
        """A fresh one for a row whose prompt's text ends so; None for a row that may say anything."""
        if self.masks is None:
            return None
        gate = None
        if self.dialect is not None:
            decode = self.masks.vocabulary.ll.decode_bytes
            budget = self.request.max_reasoning_tokens
            gate = self.dialect.gate(prompt_end, lambda token: decode([token]), budget=budget)
        if self.compiled is not None:
            return self.compiled.control(self.masks, gate)
        return None if gate is None else Control(self.masks, gate=gate)

    def splitter(self, prompt_end: str) -> Splitter | None:
        """A fresh one for the text of such a row."""
        dialect = self.dialect
        if dialect is None:
            return None
        return dialect.splitter(
            self.request.tools,
            forced=self.request.calls == "required",
            thinking=dialect.thinks_after(prompt_end),
        )


class Guides:
    """For one model, on the event loop."""

    def __init__(self, model: Model, engine: Engine, beside: Beside) -> None:
        self._model = model
        self._dialect = model.dialect
        self._engine = engine
        self._beside = beside
        self._preparation = Preparation(self._vocabulary)

    async def prepare(self, request: Request) -> Guide:
        """Work out the guide; grammars are compiled off the loop.

        Raises PublicError: 400 for what can't be compiled, 429 when too many wait for that, 501 for a model
        whose tokenizer can't be constrained.
        """
        dialect = self._dialect
        chats = request.prompt is None
        spec = await self._beside(lambda: self._spec(request)) if self._constrained(request) else None
        prepared = None
        if spec is not None:
            prepared = await self._preparation.prepare(spec)
        told = None
        if request.tools:
            told = dialect.family.instructions(Tools(request.tools).all)
        if chats:
            request = _told(request, told, None if prepared is None else prepared.prompt)
        compiled = None if prepared is None else prepared.compiled
        marked = chats and (dialect.thinks or dialect.family.always or bool(request.tools))
        return Guide(
            request,
            warning=None if prepared is None else prepared.warning,
            compiled=compiled,
            masks=None if compiled is None else await self._preparation.masks(),
            dialect=dialect if marked else None,
        )

    async def settle(self, guide: Guide, prompt_end: str) -> Guide:
        """Get what a budget for thinking takes, where thinking may follow a prompt whose text ends so.

        Raises PublicError 501 for a model whose tokenizer can't be constrained.
        """
        unlimited = guide.dialect is None or guide.request.max_reasoning_tokens is None
        if unlimited or guide.masks is not None or not guide.may_think(prompt_end):
            return guide
        return replace(guide, masks=await self._preparation.masks())

    def _vocabulary(self) -> Vocabulary:
        model = self._model
        return Vocabulary(model.tokenizer, width=self._engine.width, end_tokens=model.end_tokens)

    def close(self) -> None:
        self._preparation.close()

    def _constrained(self, request: Request) -> bool:
        return request.structure is not None or request.calls == "required"

    def _spec(self, request: Request) -> Spec | None:
        dialect, many = self._dialect, not request.one_call
        if request.calls == "required":
            return dialect.forced_calls(request.tools, name=request.named_tool, many=many)
        if request.structure is None or request.prompt is not None:
            return request.structure
        if request.tools:
            return dialect.calls_or_answer(request.structure, request.tools, many=many)
        return dialect.answer(request.structure)


def _told(request: Request, *texts: str | None) -> Request:
    """The request with these texts at the end of its system message."""
    text = "\n\n".join(text for text in texts if text)
    if not text:
        return request
    first, *rest = request.messages
    if first.role in ("system", "developer"):
        joined = msgspec.structs.replace(first, content="\n\n".join(filter(None, (first.content, text))))
        messages: tuple[Message, ...] = (joined, *rest)
    else:
        messages = (Message("system", text), first, *rest)
    return msgspec.structs.replace(request, messages=messages)

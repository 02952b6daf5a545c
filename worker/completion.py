"""The waist: every wire format completes through here.

A Request becomes a prompt, waits for a row, and comes back as a stream of reply events.
"""

import asyncio
import itertools
import logging
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import TypeVar

import msgspec

from shared.errors import PublicError
from shared.headers import HANDED_BACK
from shared.launch import Effort
from shared.launch import Sampling as SamplingDefaults
from worker.adapters import Mounts
from worker.engine.activity import Feed
from worker.engine.admission import Admission
from worker.engine.prompt_state import PromptState
from worker.engine.rows import Report, Row
from worker.engine.sampling import seed_of
from worker.engine.thread import Engine
from worker.engine.turns import Lease, Turn
from worker.guides import Guide, Guides
from worker.model.loading import Model
from worker.prompts import Prompts
from worker.reply import Account, Choices, Reply, foreseen
from worker.request import Request, resolve
from worker.text.assembler import Assembler
from worker.text.logprobs import TokenTexts
from worker.text.thinking import says_thinking, thinking_arguments

log = logging.getLogger(__name__)

T = TypeVar("T")


class Completions:
    """Takes requests for one loaded model. Everything here runs on the event loop but for the preparation."""

    def __init__(
        self,
        *,
        model_id: str,
        model: Model,
        engine: Engine,
        admission: Admission,
        feed: Feed,
        state: PromptState,
        sampling: SamplingDefaults,
        mounts: Mounts,
        thinking: bool | Effort | None = None,
        template_arguments: Mapping[str, object] | None = None,
    ) -> None:
        self.model_id = model_id
        self.model = model
        self._engine = engine
        self._admission = admission
        self._feed = feed
        self._state = state
        self._sampling = sampling
        self._thinking = thinking
        self._template_arguments = template_arguments or {}
        self.mounts = mounts
        self._numbers = itertools.count(1)
        self._replies: dict[int, Reply] = {}
        self.prompts = Prompts(model_id, model)
        self._guides = Guides(model, engine, self.prompts.run)
        self._turns: dict[int, Turn] = {}
        self.texts = TokenTexts(model.tokenizer, model.detokenizers)

    @property
    def open_replies(self) -> int:
        """Replies whose rows are not out of the engine yet."""
        return len(self._replies)

    @asynccontextmanager
    async def open(
        self, request: Request, *, prefix: str, stream: bool = False, lease: Lease | None = None
    ) -> AsyncIterator[Reply]:
        """Admit, prepare and line up `request` for one answer; its events begin when a row is free.

        Raises PublicError: 400 for what the model can't take, 429 and 503 from admission.
        """
        async with self.open_all([request], prefix=prefix, stream=stream, lease=lease) as choices:
            reply = choices.replies[0]
            reply.warnings = choices.warnings
            yield reply

    @asynccontextmanager
    async def open_all(
        self,
        requests: Sequence[Request],
        *,
        prefix: str,
        stream: bool = False,
        lease: Lease | None = None,
    ) -> AsyncIterator[Choices]:
        """As `open`, for all answers that `requests`, which came as one, want."""
        self.prompts.check_writes()
        wanted = sum(request.n for request in requests)
        if wanted > self._admission.capacity:
            raise PublicError(
                400,
                "too_many_answers",
                f"{wanted} answers are asked for, and {self._admission.capacity} can run and wait here.",
                param="n",
            )
        account = Account(new_id(prefix), self._feed)
        ready = asyncio.Event()
        adapter = self.mounts.identity(requests[0].adapter)
        turns = {number: self._turn(number, adapter) for number in itertools.islice(self._numbers, wanted)}
        try:
            if lease is None:
                for turn in turns.values():
                    self._admission.admit(turn)
            numbers = iter(turns)
            groups = []
            warnings = []
            for asked in requests:
                guide = await self._guides.prepare(self._thoughtful(asked))
                request = guide.request
                if guide.warning is not None:
                    warnings.append(guide.warning)
                prompt = await self.prompts.tokens(request)
                self._admission.check(foreseen(len(prompt), self._longest(request, prompt)))
                # For a model whose state can't be cut back, where to keep it.
                cuts = () if self._state.cuttable else await self.prompts.boundaries(request, prompt)
                marked = 0
                if request.marked_turns is not None and self._state.cache.limit_bytes:
                    # What was put before them is not the client's.
                    added = len(request.messages) - len(asked.messages)
                    marked = await self.prompts.length_to(request.marked_turns + added, request, prompt)
                await self.restore(prompt, adapter=adapter, session=request.session)
                end = await self.prompts.end(prompt) if guide.reads_prompt else ""
                guide = await self._guides.settle(guide, end)
                family = next(self._numbers) if request.n > 1 else None
                groups.append(
                    [
                        self._reply(
                            number,
                            guide,
                            prompt,
                            end,
                            account,
                            ready,
                            index=index,
                            family=family,
                            cuts=cuts,
                            marked=marked,
                        )
                        for index, number in enumerate(itertools.islice(numbers, request.n))
                    ]
                )
        except BaseException:
            for turn in turns.values():
                self._admission.leave(turn)
            raise
        choices = Choices(groups, ready, warnings)
        for reply in choices.replies:
            self._replies[reply.row.id] = reply
        self._turns.update(turns)
        account.begin(
            prefix,
            prompt_tokens=sum(group[0].prompt_tokens for group in groups),
            answers=wanted,
            stream=stream,
        )
        with ExitStack() as stack:
            for reply in choices.replies:
                stack.enter_context(reply)
            for turn in turns.values():
                if lease is None:
                    self._admission.ready(turn)
                else:
                    self._admission.run_under(lease, turn)
            # Left early they end last to first: the front ones would only make room for those behind.
            yield choices

    def cancel(self, reply_id: str) -> bool:
        """End the reply with this id; False when there is none."""
        cancelled = PublicError(499, "cancelled", "The request was cancelled by the operator.")
        return self._end_all(reply_id, cancelled)

    def _end_all(self, reply_id: str, error: PublicError) -> bool:
        """End all answers of a request; False when there is none to end."""
        found = [reply for reply in self._replies.values() if reply.id == reply_id and not reply.over]
        # The last ones first: those in front of them would only make room for them.
        for reply in reversed(found):
            reply.fail(error)
            self._drop(reply)
        return bool(found)

    def fail_all(self, error: PublicError) -> None:
        """End every open reply with `error`."""
        for reply in list(self._replies.values()):
            if not reply.over:
                reply.fail(error)
                self._drop(reply)

    def on_report(self, report: Report) -> None:
        """Hand the tokens of one engine step to their replies."""
        replies = self._replies
        for row, cached in report.cached:
            if row in replies:
                replies[row].begun(cached)
        for output in report.outputs:
            row, finish = output.row, output.finish
            reply = replies[row]
            stalled = finish == "length" and self._stalls(reply)
            if not reply.over:
                over = reply.push(output._replace(finish=None) if stalled else output)
                if over and finish is None:
                    # A stop sequence: the engine does not know yet.
                    self._engine.remove(row)
                elif finish is None and len(reply.said) >= reply.wants_at:
                    reply.wants_at = reply.row.max_tokens
                    self._admission.want(self._turns[row], reply.expected)
            if finish is not None:
                self._put_back(row)
        for row in report.removed:
            self._put_back(row)
        for row in report.failed:
            replies[row].fail(PublicError(500, "engine_error", "The engine failed on this request."))
            self._leave(row)

    def close(self) -> None:
        self._guides.close()
        self.prompts.close()

    async def count(self, request: Request) -> int:
        """Tokens of the prompt of `request`, which may be more than fit.

        Raises PublicError: 400, or 413 for more than is worth counting.
        """
        guide = await self._guides.prepare(request)
        return await self.prompts.count(guide.request)

    async def restore(self, prompt: list[int], *, adapter: str, session: str | None) -> None:
        """Bring what is saved of `prompt` into the prompt cache; `adapter` is an identity."""
        await self._state.restore(prompt, adapter=adapter, session=session)

    def _longest(self, request: Request, prompt: list[int]) -> int:
        """Tokens that the answer may have."""
        room = self.model.context_window - len(prompt)
        return room if request.max_tokens is None else min(room, request.max_tokens)

    def _thoughtful(self, request: Request) -> Request:
        """`request` with what the settings tell the template, of thinking above all, where it does not say
        it itself."""
        thinking = self._thinking
        if self._template_arguments and request.messages:
            arguments = {**self._template_arguments, **request.template_arguments}
            request = msgspec.structs.replace(request, template_arguments=arguments)
        arguments = request.template_arguments
        if thinking is None or not request.messages or says_thinking(arguments):
            return request
        budget = request.max_reasoning_tokens
        return msgspec.structs.replace(
            request,
            template_arguments={**thinking_arguments(thinking), **arguments},
            # Some templates think whatever they are told.
            max_reasoning_tokens=0 if thinking is False and budget is None else budget,
        )

    def _turn(self, number: int, adapter: str) -> Turn:
        return Turn(
            lambda: self._start(number),
            lambda: self._length(number),
            adapter=adapter,
            refuse=lambda error: self._refuse(number, error),
            grown=lambda: self._grown(number),
            set_aside=lambda: self._engine.remove(number),
            begun=lambda: self._replies[number].account.has_started,
        )

    def _reply(
        self,
        number: int,
        guide: Guide,
        prompt: list[int],
        prompt_end: str,
        account: Account,
        ready: asyncio.Event,
        *,
        index: int,
        family: int | None,
        cuts: tuple[int, ...],
        marked: int,
    ) -> Reply:
        model, request = self.model, guide.request
        sampling = resolve(request.sampling, self._sampling, model.sampling)
        row = Row(
            id=number,
            prompt=prompt,
            max_tokens=self._longest(request, prompt),
            sampling=msgspec.structs.replace(sampling, seed=seed_of(sampling.seed, index)),
            min_tokens=request.min_tokens,
            # A grammar that has nothing left to say must be able to end.
            ignore_eos=request.ignore_eos and guide.compiled is None,
            stop_tokens=request.stop_tokens,
            logprobs=request.logprobs,
            control=guide.control(prompt_end),
            family=family,
            adapter=self.mounts.identity(request.adapter),
            session=request.session,
            boundaries=cuts,
        )
        assembler = Assembler(
            model.detokenizers.new(),
            request.stops,
            prompt_tokens=len(prompt),
            min_tokens=request.min_tokens,
            stop_tokens=request.stop_tokens,
            texts=self.texts if request.logprobs is not None else None,
            splitter=guide.splitter(prompt_end),
            one_call=request.one_call,
        )
        return Reply(
            row=row,
            assembler=assembler,
            cancel=self._drop,
            account=account,
            ready=ready,
            marked=marked,
        )

    def _start(self, number: int) -> None:
        row = self._replies[number].start(self._turns[number].promised)
        self._state.make_room(self._admission.rows_bytes)
        self._engine.insert(row)

    def _grown(self, number: int) -> None:
        tokens = self._turns[number].promised
        self._replies[number].promise(tokens)
        self._state.make_room(self._admission.rows_bytes)
        self._engine.allow(number, tokens)

    def _stalls(self, reply: Reply) -> bool:
        """Whether the token that comes is but the last one that there is memory for now."""
        tokens = reply.tokens + 1
        return tokens < reply.whole and self._admission.can_go_on(tokens)

    def _refuse(self, number: int, error: PublicError) -> None:
        """There is no memory for the row, or none before this model leaves."""
        reply = self._replies[number]
        handed_back = any(name == HANDED_BACK for name, _ in error.headers())
        if reply.over:
            return
        if handed_back and not reply.account.told:
            # All of it is asked for again, so nothing of it is to be computed here.
            self._end_all(reply.id, error)
            return
        if handed_back or reply.said:
            log.warning("%s ends after %d tokens: there is no memory for more", reply.id, len(reply.said))
            reply.cut()
        else:
            reply.fail(error)
        self._drop(reply)

    def _length(self, number: int) -> int:
        """Tokens that memory is to be there for."""
        reply = self._replies.get(number)
        return 0 if reply is None else reply.expected

    def _drop(self, reply: Reply) -> None:
        """The reply is over before the engine is done with it."""
        number = reply.row.id
        if self._admission.is_running(self._turns[number]):
            # Its row counts until the engine reports it gone.
            self._engine.remove(number)
        else:
            self._leave(number)

    def _put_back(self, number: int) -> None:
        """The row is out of the engine: it is over, or waits for room to go on."""
        reply = self._replies[number]
        if reply.over:
            self._leave(number)
        else:
            self._admission.stall(self._turns[number], reply.tokens)

    def _leave(self, number: int) -> None:
        turn = self._turns.pop(number, None)
        if turn is not None:
            family = self._replies.pop(number).row.family
            if family is not None and all(reply.row.family != family for reply in self._replies.values()):
                self._engine.forget(family)
            self._admission.leave(turn)


def new_id(prefix: str) -> str:
    """A fresh id for an answer."""
    return f"{prefix}{'' if prefix.endswith('_') else '-'}{secrets.token_hex(12)}"

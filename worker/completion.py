"""The waist: every wire format completes through here.

A Request becomes a prompt, waits for a row, and comes back as a stream of reply events.
"""

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Final, Literal, Self, TypeVar

from shared.activity import FirstToken, RequestFinished, RequestStarted
from shared.errors import PublicError
from shared.launch import Sampling as SamplingDefaults
from worker.engine.activity import Feed
from worker.engine.admission import Admission, Lease, Turn
from worker.engine.rows import Report, Row
from worker.engine.thread import Engine
from worker.model.loading import Model
from worker.request import Request, resolve
from worker.text.assembler import Assembler
from worker.text.events import Finished, FinishReason, ReplyEvent
from worker.text.template import unsupported

T = TypeVar("T")

_NORMALISED: Final = 4
"""Characters that a tokenizer may make one of, at most."""

Ending = Literal["stop", "length", "cancelled", "failed"]


class Reply:
    """One answer as it comes. Use as a context manager: leaving it early takes its row out of the batch."""

    def __init__(
        self,
        *,
        reply_id: str,
        row: Row,
        assembler: Assembler,
        cancel: Callable[["Reply"], None],
        feed: Feed,
    ) -> None:
        self.id = reply_id
        self.row = row
        self.created = int(time.time())
        self._assembler = assembler
        self._cancel = cancel
        self._feed = feed
        self._events: list[ReplyEvent] = []
        self._error: PublicError | None = None
        self._ready = asyncio.Event()
        self._begun = time.monotonic()
        self._started: float | None = None
        self._first: float | None = None
        self.over = False
        """No more events will be added."""

    @property
    def prompt_tokens(self) -> int:
        return len(self.row.prompt)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.over:
            self.end("cancelled")
            self._cancel(self)

    async def batches(self) -> AsyncIterator[list[ReplyEvent]]:
        """Reply events as they come, all there are at a time. Ends after `Finished`; raises PublicError."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            events, self._events = self._events, []
            if events:
                yield events
                if isinstance(events[-1], Finished):
                    return
            if self._error is not None:
                raise self._error

    def start(self) -> None:
        """A row is free and the engine was told."""
        self._started = time.monotonic()

    def push(self, token: int, finish: FinishReason | None) -> bool:
        """Take the engine's next token; true when it was the last one."""
        if self._first is None:
            self._first = time.monotonic()
            queued = (self._started or self._first) - self._begun
            self._feed.say(FirstToken(self.id, self._first, queued, self._first - self._begun))
        events = self._assembler.push(token, finish)
        if events:
            self._events += events
            self._ready.set()
            last = events[-1]
            if isinstance(last, Finished):
                self.end(last.reason)
        return self.over

    def fail(self, error: PublicError) -> None:
        """End the answer with an error, after what there is already."""
        if not self.over:
            self._error = error
            self._ready.set()
            self.end("failed" if error.code != "cancelled" else "cancelled")

    def end(self, ending: Ending) -> None:
        self.over = True
        now = time.monotonic()
        tokens = self._assembler.completion_tokens
        decoding = now - self._first if self._first is not None and tokens > 1 else 0.0
        self._feed.say(
            RequestFinished(
                self.id,
                now,
                ending,
                prompt_tokens=self.prompt_tokens,
                cached_tokens=0,
                completion_tokens=tokens,
                total_s=now - self._begun,
                decode_tps=(tokens - 1) / decoding if decoding > 0 else None,
            )
        )


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
        sampling: SamplingDefaults,
    ) -> None:
        self.model_id = model_id
        self.model = model
        self._engine = engine
        self._admission = admission
        self._feed = feed
        self._sampling = sampling
        self._numbers = itertools.count(1)
        self._replies: dict[int, Reply] = {}
        # A thread of its own: a long conversation takes a while to render and tokenise. One, because
        # tokenizers change their state while they work.
        self._preparation = ThreadPoolExecutor(1, thread_name_prefix="prepare")
        self._turns: dict[int, Turn] = {}

    @property
    def open_replies(self) -> int:
        """Replies whose rows are not out of the engine yet."""
        return len(self._replies)

    @asynccontextmanager
    async def open(
        self, request: Request, *, prefix: str, stream: bool = False, lease: Lease | None = None
    ) -> AsyncIterator[Reply]:
        """Admit, prepare and line up `request`; the reply's events begin when a row is free.

        Raises PublicError: 400 for what the model can't take, 429 and 503 from admission.
        """
        number = next(self._numbers)
        turn = Turn(lambda: self._start(number))
        if lease is None:
            self._admission.admit(turn)
        try:
            prompt = await self._prepare(request)
            reply = self._reply(number, request, prompt, prefix)
        except BaseException:
            self._admission.leave(turn)
            raise
        self._replies[number] = reply
        self._turns[number] = turn
        self._feed.say(RequestStarted(reply.id, time.monotonic(), prefix, len(prompt), stream))
        with reply:
            if lease is None:
                self._admission.ready(turn)
            else:
                self._admission.run_under(lease, turn)
            yield reply

    def cancel(self, reply_id: str) -> bool:
        """End the reply with this id; False when there is none."""
        for reply in self._replies.values():
            if reply.id == reply_id and not reply.over:
                reply.fail(PublicError(499, "cancelled", "The request was cancelled by the operator."))
                self._drop(reply)
                return True
        return False

    def fail_all(self, error: PublicError) -> None:
        """End every open reply with `error`."""
        for reply in list(self._replies.values()):
            if not reply.over:
                reply.fail(error)
                self._drop(reply)

    def on_report(self, report: Report) -> None:
        """Hand the tokens of one engine step to their replies."""
        replies = self._replies
        for row, token, finish in report.outputs:
            reply = replies[row]
            if not reply.over and reply.push(token, finish) and finish is None:
                # A stop sequence: the engine does not know yet.
                self._engine.remove(row)
            if finish is not None:
                self._leave(row)
        for row in report.removed:
            self._leave(row)
        for row in report.failed:
            replies[row].fail(PublicError(500, "engine_error", "The engine failed on this request."))
            self._leave(row)

    def close(self) -> None:
        self._preparation.shutdown(wait=False, cancel_futures=True)

    async def in_preparation(self, work: Callable[[], T]) -> T:
        """Do `work` on the thread that the tokenizer belongs to."""
        return await asyncio.get_running_loop().run_in_executor(self._preparation, work)

    async def _prepare(self, request: Request) -> list[int]:
        return await self.in_preparation(lambda: self._tokenise(request))

    def _tokenise(self, request: Request) -> list[int]:
        model = self.model
        if not model.template.usable:
            raise unsupported(self.model_id)
        text = model.template.render(request)
        # Tokens of text take a hundred times its memory, so what can't possibly fit is not tokenised. The
        # margin is for tokenizers that drop or join characters first.
        fewest = len(text) // (_NORMALISED * model.longest_token)
        if fewest >= model.context_window:
            raise self._too_long(f"at least {fewest}")
        prompt = model.template.encode(text)
        if not prompt:
            raise PublicError(400, "invalid_value", "The conversation renders to nothing.", param="messages")
        if len(prompt) >= model.context_window:
            raise self._too_long(str(len(prompt)))
        return prompt

    def _too_long(self, tokens: str) -> PublicError:
        return PublicError(
            400,
            "context_length_exceeded",
            f"The context window of this model is {self.model.context_window} tokens, and the prompt has "
            f"{tokens}. Shorten the messages.",
            param="messages",
        )

    def _reply(self, number: int, request: Request, prompt: list[int], prefix: str) -> Reply:
        room = self.model.context_window - len(prompt)
        row = Row(
            id=number,
            prompt=prompt,
            max_tokens=room if request.max_tokens is None else min(room, request.max_tokens),
            sampling=resolve(request.sampling, self._sampling, self.model.sampling),
        )
        assembler = Assembler(
            self.model.detokenizers.new(), request.stops, prompt_tokens=len(prompt), cached_tokens=0
        )
        return Reply(
            reply_id=f"{prefix}-{secrets.token_hex(12)}",
            row=row,
            assembler=assembler,
            cancel=self._drop,
            feed=self._feed,
        )

    def _start(self, number: int) -> None:
        reply = self._replies[number]
        reply.start()
        self._engine.insert(reply.row)

    def _drop(self, reply: Reply) -> None:
        """The reply is over before the engine is done with it."""
        number = reply.row.id
        if self._admission.is_running(self._turns[number]):
            # Its row counts until the engine reports it gone.
            self._engine.remove(number)
        else:
            self._leave(number)

    def _leave(self, number: int) -> None:
        turn = self._turns.pop(number, None)
        if turn is not None:
            del self._replies[number]
            self._admission.leave(turn)

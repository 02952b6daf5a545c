"""Answers as they come: one for each row, several of one request together."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Final, Literal, Self

import msgspec

from shared.activity import FirstToken, RequestFinished, RequestStarted
from shared.errors import PublicError
from worker.engine.activity import REQUEST_ID, Feed
from worker.engine.generator import END
from worker.engine.prompt_cache import SHORTEST
from worker.engine.rows import Output, Row
from worker.text.assembler import Assembler
from worker.text.events import Finished, ReplyEvent, Usage, total_usage

Ending = Literal["stop", "length", "cancelled", "failed"]

FORESEEN: Final = 2048
"""Tokens of an answer that memory is kept free for, when it may be longer: few answers are."""
PIECE: Final = 1024
"""Tokens by which an answer that becomes longer is promised more."""
AHEAD: Final = 256
"""So many tokens before an answer comes to the end of what it was promised, it is to be promised more."""

# A request with several answers ends as the worst of them does.
_WORST_FIRST: Final[tuple[Ending, ...]] = ("failed", "cancelled", "length", "stop")


def foreseen(prompt: int, most: int) -> int:
    """Tokens that memory is to be there for when an answer of up to `most` tokens begins."""
    return prompt + min(most, FORESEEN)


class Account:
    """What the feed hears of one request, however many answers it has."""

    def __init__(self, request_id: str, feed: Feed) -> None:
        self.id = request_id
        self._feed = feed
        self._begun = time.monotonic()
        self._started: float | None = None
        self._first: float | None = None
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._completion_tokens = 0
        self._proposed_tokens = 0
        self._accepted_tokens = 0
        self._answers = 0
        self._stream = False
        self._endings: list[Ending] = []
        self.told = False
        """Whether something of it has reached the client."""

    def begin(self, kind: str, *, prompt_tokens: int, answers: int, stream: bool) -> None:
        """Its prompts are known, and how many answers there will be."""
        self._prompt_tokens = prompt_tokens
        self._answers = answers
        self._stream = stream
        self._feed.say(
            RequestStarted(self.id, time.monotonic(), kind, prompt_tokens, stream, REQUEST_ID.get())
        )

    def started(self) -> None:
        """A row is free for one of its answers and the engine was told."""
        if self._started is None:
            self._started = time.monotonic()

    @property
    def has_started(self) -> bool:
        """Whether one of its answers has had a row."""
        return self._started is not None

    def taken(self) -> None:
        """Events of one of its answers were taken: of a stream they go out now, else all in the end."""
        self.told = self._stream

    def token(self) -> None:
        """One of its answers got a token."""
        if self._first is None:
            self._first = time.monotonic()
            queued = (self._started or self._first) - self._begun
            self._feed.say(FirstToken(self.id, self._first, queued, self._first - self._begun))

    def end(self, ending: Ending, assembler: Assembler) -> None:
        """One of its answers is over."""
        self._endings.append(ending)
        self._completion_tokens += assembler.completion_tokens
        self._cached_tokens += assembler.cached_tokens
        self._proposed_tokens += assembler.proposed_tokens
        self._accepted_tokens += assembler.accepted_tokens
        if len(self._endings) < self._answers:
            return
        now = time.monotonic()
        decoded = self._completion_tokens - self._answers
        decoding = now - self._first if self._first is not None and decoded > 0 else 0.0
        self._feed.say(
            RequestFinished(
                self.id,
                now,
                min(self._endings, key=_WORST_FIRST.index),
                prompt_tokens=self._prompt_tokens,
                cached_tokens=self._cached_tokens,
                completion_tokens=self._completion_tokens,
                total_s=now - self._begun,
                decode_tps=decoded / decoding if decoding > 0 else None,
                proposed_tokens=self._proposed_tokens,
                accepted_tokens=self._accepted_tokens,
            )
        )


class Reply:
    """One answer as it comes. Leaving it early, as a context manager, takes its row out of the batch.

    `ready` is set when there is something new; answers of one request share it.
    """

    def __init__(
        self,
        *,
        row: Row,
        assembler: Assembler,
        cancel: Callable[["Reply"], None],
        account: Account,
        ready: asyncio.Event,
        marked: int = 0,
    ) -> None:
        """`marked` tokens of the prompt end where the client wants it kept."""
        self.id = account.id
        self.row = row
        self.said: list[int] = []
        """Its tokens so far."""
        self.wants_at = row.max_tokens
        """With so many tokens it should be promised memory for more; never reached if it has all."""
        self.created = int(time.time())
        self._assembler = assembler
        self._cancel = cancel
        self.account = account
        self._events: list[ReplyEvent] = []
        self._error: PublicError | None = None
        self._ready = ready
        self._marked = marked
        self.over = False
        """No more events will be added."""
        self.warnings: Sequence[str] = ()
        """As in Choices."""

    @property
    def prompt_tokens(self) -> int:
        return len(self.row.prompt)

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that needed no computing; 0 until the row is in the engine."""
        return self._assembler.cached_tokens

    @property
    def written_tokens(self) -> int:
        """Tokens of the prompt that are new in the prompt cache, as far as the client wants it kept."""
        cached, prompt = self.cached_tokens, self.prompt_tokens
        # Of a prompt that is there as a whole the end is computed again on purpose.
        if prompt < SHORTEST or cached == prompt - END:
            return 0
        return max(0, self._marked - cached)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.over:
            self.end("cancelled")
            self._cancel(self)

    async def batches(self) -> AsyncIterator[list[ReplyEvent]]:
        """Reply events as they come, all there are at a time. Ends after `Finished`; raises PublicError.

        For a request's only answer.
        """
        while True:
            await self._ready.wait()
            self._ready.clear()
            events = self.take()
            if events:
                yield events
                if isinstance(events[-1], Finished):
                    return
            if self._error is not None:
                raise self._error

    @property
    def error(self) -> PublicError | None:
        """Why there is no `Finished`, once that is so."""
        return self._error

    def take(self) -> list[ReplyEvent]:
        """The events since the last time."""
        events, self._events = self._events, []
        if events:
            self.account.taken()
        return events

    def start(self, tokens: int) -> Row:
        """A row is free, with memory for so many tokens of prompt and answer. Returns what the engine is to
        compute, which goes on from what is said already."""
        self.account.started()
        self.promise(tokens)
        row, said = self.row, self.said
        if said:
            row = msgspec.structs.replace(
                row,
                prompt=[*row.prompt, *said],
                min_tokens=max(0, row.min_tokens - len(said)),
                # Its prompt is not that of the others any more.
                family=None,
                said=len(said),
            )
        return msgspec.structs.replace(row, max_tokens=tokens - len(row.prompt), whole=self.whole)

    def promise(self, tokens: int) -> None:
        """There is memory for so many tokens of prompt and answer."""
        everything = tokens >= self.whole
        self.wants_at = self.row.max_tokens if everything else tokens - AHEAD - len(self.row.prompt)

    @property
    def whole(self) -> int:
        """Tokens that prompt and answer may have."""
        return len(self.row.prompt) + self.row.max_tokens

    @property
    def expected(self) -> int:
        """Tokens of prompt and answer that memory is to be there for."""
        if self.said:
            return min(self.whole, self.tokens + AHEAD + PIECE)
        return foreseen(len(self.row.prompt), self.row.max_tokens)

    def begun(self, cached_tokens: int) -> None:
        """The row is in the engine, and so many tokens of its prompt need no computing."""
        self._assembler.cached_tokens = cached_tokens

    @property
    def tokens(self) -> int:
        """Prompt and answer so far."""
        return len(self.row.prompt) + len(self.said)

    def push(self, output: Output) -> bool:
        """Take the engine's next token; true when it was the last one."""
        self.account.token()
        self.said.append(output.token)
        self._assembler.proposed_tokens += output.proposed
        self._assembler.accepted_tokens += output.drafted
        self._add(self._assembler.push(output.token, output.finish, output.logprobs))
        return self.over

    def cut(self) -> None:
        """End it with what it has said, as if it had been allowed no more: there is no memory for that."""
        if not self.over:
            self._add(self._assembler.cut())

    def _add(self, events: list[ReplyEvent]) -> None:
        if events:
            self._events += events
            self._ready.set()
            last = events[-1]
            if isinstance(last, Finished):
                self._finish(last)

    def _finish(self, last: Finished) -> None:
        failure = None if self.row.control is None else self.row.control.failure
        if failure is None or last.reason == "length":
            self.end("stop" if last.reason == "tool_calls" else last.reason)
            return
        # It would look complete, and is not what was asked for.
        del self._events[-1]
        self.fail(
            PublicError(500, "structure_failed", f"The answer could not be kept to its structure: {failure}.")
        )

    def fail(self, error: PublicError) -> None:
        """End the answer with an error, after what there is already."""
        if not self.over:
            self._error = error
            self._ready.set()
            self.end("failed" if error.code != "cancelled" else "cancelled")

    def end(self, ending: Ending) -> None:
        self.over = True
        self.account.end(ending, self._assembler)


class Choices:
    """The answers of one request as they come: those to its first prompt, then those to the next."""

    def __init__(
        self, groups: Sequence[Sequence[Reply]], ready: asyncio.Event, warnings: Sequence[str] = ()
    ) -> None:
        self.groups = groups
        """By prompt."""
        self.warnings = warnings
        """Values of `Warning` headers: what of the request is not done as asked."""
        self.replies = [reply for group in groups for reply in group]
        self._ready = ready
        self._usages: dict[int, Usage] = {}

    @property
    def id(self) -> str:
        return self.replies[0].id

    @property
    def created(self) -> int:
        return self.replies[0].created

    async def batches(self) -> AsyncIterator[list[tuple[int, list[ReplyEvent]]]]:
        """Reply events by answer, all there are at a time, to the last `Finished`. Raises PublicError."""
        open_replies = dict(enumerate(self.replies))
        while open_replies:
            await self._ready.wait()
            self._ready.clear()
            batch = []
            error: PublicError | None = None
            for index, reply in list(open_replies.items()):
                events = reply.take()
                if events:
                    batch.append((index, events))
                    last = events[-1]
                    if isinstance(last, Finished):
                        self._usages[index] = last.usage
                        del open_replies[index]
                error = error or reply.error
            if batch:
                yield batch
            if error is not None:
                raise error

    @property
    def usage(self) -> Usage:
        """What all answers cost together, once they are there."""
        usages = iter([self._usages[index] for index in range(len(self.replies))])
        return total_usage([[next(usages) for _ in group] for group in self.groups])

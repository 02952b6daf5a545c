"""`POST /v1/completions`: texts to go on with, without any template.

Source: OpenAI's API reference, "The completion object"; whole answers and chunks have the same shape.
`stop_reason` is as in chat completions.
"""

import time
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import orjson

from shared import sse
from worker.api.completions_wire import CompletionAsked, to_requests
from worker.api.exchange import Exchange
from worker.api.logprobs_wire import UNLIKELY
from worker.api.session import in_session
from worker.api.structure_wire import warning_headers
from worker.api.usage import usage_object
from worker.api.validation import decode
from worker.completion import Completions, new_id
from worker.engine.jobs import Jobs
from worker.engine.prompt_scores import PromptScorer
from worker.reply import Choices
from worker.request import Request
from worker.text.events import Finished, ReplyEvent, TextDelta, Usage
from worker.text.logprobs import Likelihood, TokenLikelihood, spelled

_PREFIX: Final = "cmpl"


class _Echo(msgspec.Struct):
    """A prompt as the answer begins with it."""

    text: str
    tokens: list[TokenLikelihood]
    """All but the first, whose likelihood nothing says; empty unless asked for."""
    first: Likelihood | None
    prompt_tokens: int
    cached_tokens: int = 0


class TextCompletions:
    """The route, for one loaded model. `fingerprint` names model, versions and backend."""

    def __init__(self, completions: Completions, jobs: Jobs, fingerprint: str, scorer: PromptScorer) -> None:
        self._completions = completions
        self._jobs = jobs
        self._fingerprint = fingerprint
        self._scorer = scorer

    async def __call__(self, exchange: Exchange) -> None:
        asked = decode(await exchange.body(), CompletionAsked)
        requests = [in_session(request, exchange) for request in to_requests(asked)]
        with exchange.while_connected():
            echoes: list[_Echo | None] = [None] * len(requests)
            if asked.echo:
                for index, request in enumerate(requests):
                    tokens = await self._completions.prompts.tokens(request)
                    echoes[index] = await self._echo(request, tokens)
                    requests[index] = msgspec.structs.replace(request, prompt=tuple(tokens))
            answers = [
                _Answer(index, echo, with_logprobs=asked.logprobs is not None)
                for index, echo in enumerate(
                    echo for echo, request in zip(echoes, requests, strict=True) for _ in range(request.n)
                )
            ]
            if asked.most_tokens == 0:
                await self._echo_only(exchange, asked, answers, [echo for echo in echoes if echo])
                return
            opened = self._completions.open_all(requests, prefix=_PREFIX, stream=bool(asked.stream))
            async with opened as choices:
                if asked.stream:
                    await self._stream(exchange, choices, answers, asked, echoes)
                else:
                    await self._whole(exchange, choices, answers, echoes)

    async def _echo(self, request: Request, tokens: list[int]) -> _Echo:
        completions = self._completions
        prompts = completions.prompts
        pieces, offsets = await prompts.run(lambda: prompts.pieces(tokens))
        text = request.prompt if isinstance(request.prompt, str) else "".join(pieces)
        if request.logprobs is None:
            return _Echo(text, [], None, len(tokens))
        adapter, session = completions.mounts.identity(request.adapter), request.session
        async with self._jobs.open("prompt_logprobs", adapter=adapter) as job:
            await completions.restore(tokens, adapter=adapter, session=session)
            work = self._scorer.score(tokens, alternatives=request.logprobs, adapter=adapter, session=session)
            found = await job.run(work, prompt_tokens=len(tokens))
            job.cached_tokens = found.cached
        texts = completions.texts
        return _Echo(
            text,
            [
                texts.likelihood(scored, token, offset)
                for scored, token, offset in zip(found.scores, tokens[1:], offsets[1:], strict=True)
            ],
            Likelihood(texts.of(tokens[0]), 0.0),
            len(tokens),
            found.cached,
        )

    async def _whole(
        self,
        exchange: Exchange,
        choices: Choices,
        answers: list["_Answer"],
        echoes: Sequence[_Echo | None],
    ) -> None:
        said: list[list[ReplyEvent]] = [[] for _ in answers]
        async for batch in choices.batches():
            for index, events in batch:
                said[index] += events
        body = {
            **self._head(choices.id, choices.created),
            "choices": [answer.say(events) for answer, events in zip(answers, said, strict=True)],
            "usage": usage_object(_used(choices, echoes)),
        }
        await exchange.answer(200, orjson.dumps(body), warning_headers(choices.warnings))

    async def _stream(
        self,
        exchange: Exchange,
        choices: Choices,
        answers: list["_Answer"],
        asked: CompletionAsked,
        echoes: Sequence[_Echo | None],
    ) -> None:
        head = self._head(choices.id, choices.created)
        usage = {"usage": None} if asked.wants_usage else {}
        async for batch in choices.batches():
            if not exchange.started:
                # Not before the first token: until then an error can still be a status.
                await exchange.start_events(warning_headers(choices.warnings))
            chunks = [{**head, "choices": [answers[index].say(events)], **usage} for index, events in batch]
            await exchange.write(b"".join([sse.event(orjson.dumps(chunk)) for chunk in chunks]))
        await exchange.finish(_last(head, _used(choices, echoes), asked) + sse.DONE)

    async def _echo_only(
        self, exchange: Exchange, asked: CompletionAsked, answers: list["_Answer"], echoes: list[_Echo]
    ) -> None:
        """The answer to a request for no tokens: what the prompts are and how likely."""
        head = self._head(new_id(_PREFIX), int(time.time()))
        usage = Usage(
            sum(echo.prompt_tokens for echo in echoes),
            0,
            cached=sum(echo.cached_tokens for echo in echoes),
        )
        choices = [answer.say([Finished("length", usage)]) for answer in answers]
        if not asked.stream:
            body = {**head, "choices": choices, "usage": usage_object(usage)}
            await exchange.answer(200, orjson.dumps(body))
            return
        await exchange.start_events()
        none = {"usage": None} if asked.wants_usage else {}
        data = b"".join([sse.event(orjson.dumps({**head, "choices": [one], **none})) for one in choices])
        await exchange.finish(data + _last(head, usage, asked) + sse.DONE)

    def _head(self, reply_id: str, created: int) -> dict[str, Any]:
        return {
            "id": reply_id,
            "object": "text_completion",
            "created": created,
            "model": self._completions.model_id,
            "system_fingerprint": self._fingerprint,
        }


class _Answer:
    """One choice; what it says begins with the echo."""

    def __init__(self, index: int, echo: _Echo | None, *, with_logprobs: bool) -> None:
        self._index = index
        self._echo = echo
        self._with_logprobs = with_logprobs
        self._shift = 0 if echo is None else len(echo.text)

    def say(self, events: list[ReplyEvent]) -> dict[str, Any]:
        """The choice with all that is new, for a whole answer or a chunk."""
        logprobs = _Logprobs()
        text = ""
        echo, self._echo = self._echo, None
        if echo is not None:
            text = echo.text
            if echo.first is not None:
                logprobs.first(echo.first)
            for token in echo.tokens:
                logprobs.add(token, 0)
        end: Finished | None = None
        for event in events:
            if isinstance(event, TextDelta):
                text += event.text
                for token in event.logprobs:
                    logprobs.add(token, self._shift)
            elif isinstance(event, Finished):
                end = event
        return {
            "index": self._index,
            "text": text,
            "logprobs": logprobs.object() if self._with_logprobs else None,
            "finish_reason": None if end is None else end.reason,
            "stop_reason": None if end is None else end.stop,
        }


class _Logprobs:
    """The four lists of the legacy shape."""

    def __init__(self) -> None:
        self._tokens: list[str] = []
        self._token_logprobs: list[float | None] = []
        self._top: list[dict[str, float] | None] = []
        self._offsets: list[int] = []

    def first(self, token: Likelihood) -> None:
        """A prompt's first token, of which nothing is known."""
        self._tokens.append(_name(token))
        self._token_logprobs.append(None)
        self._top.append(None)
        self._offsets.append(0)

    def add(self, token: TokenLikelihood, shift: int) -> None:
        logprob = max(token.logprob, UNLIKELY)
        self._tokens.append(_name(token))
        self._token_logprobs.append(logprob)
        self._offsets.append(shift + token.offset)
        top = {_name(other): max(other.logprob, UNLIKELY) for other in token.best}
        # The token itself is always among them, so there may be one more than asked for.
        self._top.append({**top, _name(token): logprob} if top else None)

    def object(self) -> dict[str, Any]:
        return {
            "tokens": self._tokens,
            "token_logprobs": self._token_logprobs,
            "top_logprobs": self._top if any(self._top) else None,
            "text_offset": self._offsets,
        }


def _name(token: Likelihood) -> str:
    text = token.text
    return f"bytes:{spelled(token.token)}" if text is None else text


def _used(choices: Choices, echoes: Sequence[_Echo | None]) -> Usage:
    """What it cost; rows whose prompts were scored found all of them computed, by this very request."""
    scored = [echo.cached_tokens for echo in echoes if echo is not None and echo.first is not None]
    return msgspec.structs.replace(choices.usage, cached=sum(scored)) if scored else choices.usage


def _last(head: dict[str, Any], usage: Usage, asked: CompletionAsked) -> bytes:
    if not asked.wants_usage:
        return b""
    return sse.event(orjson.dumps({**head, "choices": [], "usage": usage_object(usage)}))

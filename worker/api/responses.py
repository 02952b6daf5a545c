"""`POST /v1/responses` and `POST /v1/responses/input_tokens`, as far as one model answers them.

Nothing is kept here: the input holds the whole conversation, and what the request says of storing is echoed.
The supervisor tells the response's id, see `shared.responses.answer.Context`.
Source: OpenAI's API reference, "The response object".
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import orjson

from shared.errors import PublicError
from shared.responses.answer import CONTEXT_HEADER, Context, Response, failed, response_object, usage_object
from shared.responses.asked import ResponsesAsked, parse_asked
from shared.responses.items import new_id
from worker.api.exchange import Exchange, Headers
from worker.api.responses_output import END, Output
from worker.api.responses_wire import Extras, to_request
from worker.api.session import in_session
from worker.api.structure_wire import warning_headers
from worker.api.validation import decode
from worker.completion import Completions
from worker.reply import Choices
from worker.text.events import Finished, ReplyEvent

_TOO_LONG: Final = 'Shorten the input, or set `truncation` to "auto".'


class Responses:
    """The route, for one loaded model."""

    def __init__(self, completions: Completions) -> None:
        self._completions = completions

    async def __call__(self, exchange: Exchange) -> None:
        body = await exchange.body()
        asked, extras = parse_asked(body), decode(body, Extras)
        context = context_of(exchange)
        request = in_session(to_request(asked, extras, history=context.history), exchange)
        opened = self._completions.open_all([request], prefix="resp", stream=bool(asked.stream))
        with exchange.while_connected(), _named_as_asked():
            async with opened as choices:
                answer = _Answer(asked, context, self._completions.model_id, choices)
                if asked.stream:
                    await self._stream(exchange, choices, answer)
                else:
                    await self._whole(exchange, choices, answer)

    async def _whole(self, exchange: Exchange, choices: Choices, answer: "_Answer") -> None:
        async for batch in choices.batches():
            answer.take(batch[0][1])
        await exchange.answer(200, orjson.dumps(answer.response), answer.warning_headers(choices.warnings))

    async def _stream(self, exchange: Exchange, choices: Choices, answer: "_Answer") -> None:
        try:
            async for batch in choices.batches():
                data = b""
                if not exchange.started:
                    # Not before the first token: until then an error can still be a status.
                    await exchange.start_events(answer.warning_headers(choices.warnings))
                    data = answer.opening()
                await exchange.write(data + answer.take(batch[0][1]))
        except PublicError as error:
            if not exchange.started:
                raise
            await exchange.finish(answer.fail(error) + END)
            return
        await exchange.finish(END)


class InputTokens:
    """The route that counts: the true length of the prompt, with all that templates put around it."""

    def __init__(self, completions: Completions) -> None:
        self._completions = completions

    async def __call__(self, exchange: Exchange) -> None:
        body = await exchange.body()
        asked, extras = parse_asked(body), decode(body, Extras)
        request = to_request(asked, extras, history=context_of(exchange).history)
        with exchange.while_connected(), _named_as_asked():
            tokens = await self._completions.count(request)
        window = self._completions.model.context_window
        counted = {"object": "response.input_tokens", "input_tokens": tokens, "context_window": window}
        await exchange.answer(200, orjson.dumps(counted))


def context_of(exchange: Exchange) -> Context:
    """What the supervisor told of the response."""
    header = exchange.header(CONTEXT_HEADER)
    if header is None:
        return Context(new_id("resp"), int(time.time()))
    return msgspec.json.decode(header, type=Context)


@contextlib.contextmanager
def _named_as_asked() -> Iterator[None]:
    """What a chat calls its messages is the input here."""
    try:
        yield
    except PublicError as error:
        if error.param != "messages":
            raise
        message = error.message.replace("Shorten the messages.", _TOO_LONG)
        raise PublicError(error.status, error.code, message, param="input") from error


class _Answer:
    """One response, from its first event to its last."""

    def __init__(self, asked: ResponsesAsked, context: Context, model: str, choices: Choices) -> None:
        sampling = choices.replies[0].row.sampling
        calling = asked.calling
        self._warning = calling.warning
        self.response: Response = response_object(
            asked,
            context,
            model=model,
            status="in_progress",
            temperature=sampling.temperature,
            top_p=sampling.top_p,
        ) | {"usage": usage_object(choices.replies[0].prompt_tokens, 0)}
        self._announced = context.sequence_number > 0
        self._output = Output(
            number=context.sequence_number,
            as_summary=asked.reasoning is not None and asked.reasoning.told_as_summary,
            sealed=asked.sealed_reasoning,
            called=calling.called,
        )

    def warning_headers(self, warnings: Sequence[str]) -> Headers:
        """`warnings` are of the parts that all formats share."""
        return warning_headers([*warnings, *filter(None, [self._warning])])

    def opening(self) -> bytes:
        """The events before any output."""
        names = ("response.in_progress",) if self._announced else ("response.created", "response.in_progress")
        return b"".join([self._output.say(name, {"response": self.response}) for name in names])

    def take(self, events: list[ReplyEvent]) -> bytes:
        """Some more of the reply, as events; with its end comes the response's."""
        last = events[-1]
        if not isinstance(last, Finished):
            return self._output.take(events)
        data = self._output.take(events[:-1])
        usage = last.usage
        cut = last.reason == "length"
        data += self._output.close("incomplete" if cut else "completed")
        self.response = {
            **self.response,
            "status": "incomplete" if cut else "completed",
            "completed_at": None if cut else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self._output.items,
            "usage": usage_object(
                usage.prompt, usage.completion, cached=usage.cached, reasoning=usage.reasoning
            ),
        }
        return data + self._say_response("incomplete" if cut else "completed")

    def fail(self, error: PublicError) -> bytes:
        """The last events of a response that failed in its middle."""
        data = self._output.close("incomplete")
        self.response = failed({**self.response, "output": self._output.items}, error)
        return data + self._say_response("failed")

    def _say_response(self, name: str) -> bytes:
        return self._output.say(f"response.{name}", {"response": self.response})

"""Having a response answered when no client's connection leads to the worker: in the background, and over
WebSocket."""

from collections.abc import Awaitable, Callable

import orjson

from shared.errors import PublicError
from shared.headers import Headers
from supervisor.relay import Slots, handed_back
from supervisor.responses.transcript import Transcript
from supervisor.responses.turns import Resolved
from supervisor.telemetry.timelines import Mark
from supervisor.workers.upstream import UpstreamError, UpstreamResponse

Hear = Callable[[list[bytes]], Awaitable[None]]

_JSON = (b"content-type", b"application/json")


async def answer(
    request: Resolved,
    pool: Slots,
    transcript: Transcript,
    hear: Hear,
    *,
    announced: int = 0,
    naming: Headers = (),
    mark: Mark | None = None,
) -> None:
    """Give `hear` the events as they come, the last one included, whatever becomes of the worker.

    `naming` are headers for the worker; `mark` is told when there is a place, and like `transcript` of what
    the worker warns of.

    A worker that dies before its first event is replaced once. Raises PublicError when nothing was heard.
    """
    headers = (_JSON, *naming, request.header(announced=announced))
    body = request.body(stream=True)
    failed = after = 0
    heard = False
    while True:
        async with pool.slot(request.entry, after=after) as slot:
            if mark is not None:
                mark.placed()
            try:
                async with await slot.upstream.request("POST", b"/v1/responses", headers, body) as response:
                    if handed_back(response):
                        after = slot.generation
                        continue
                    if response.status != 200:
                        raise await refusal(response)
                    transcript.warnings = response.warnings()
                    if mark is not None:
                        mark.warnings = transcript.warnings
                    async for data in response:
                        events = transcript.feed(data)
                        heard = heard or bool(events)
                        if events:
                            await hear(events)
                return
            except UpstreamError as error:
                if transcript.ended:
                    return
                if heard:
                    await hear([transcript.fail(await slot.failure())])
                    return
                if failed:
                    raise await slot.failure() from error
                failed = after = slot.generation


async def refusal(response: UpstreamResponse) -> PublicError:
    """The error that a worker answered. Raises UpstreamError when its answer was cut."""
    return error_of(response.status, await response.read())


def error_of(status: int, body: bytes) -> PublicError:
    """The error in a worker's answer."""
    told = orjson.loads(body)["error"]
    return PublicError(status, told["code"], told["message"], param=told.get("param"))

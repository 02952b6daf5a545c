"""`POST /api/lease`: the whole machine for oneself. The open answer is the lease."""

import asyncio
import re
from typing import Any, Final, TypeVar

import msgspec
from fastapi import APIRouter, Request, Response

from shared.errors import PublicError, invalid
from supervisor.http.connected import ClientGone
from supervisor.http.exchange import Exchange
from supervisor.routes.parts import ModelPool, Parts
from supervisor.routes.replies import Json
from supervisor.workers.leases import LeaseNews, MachineLease

_NDJSON: Final = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store")]
_AGAIN_S: Final = 1.0
_QUIET_S: Final = 0.2
_LONGEST_NAME: Final = 200
_MISSING: Final = re.compile("Object missing required field `(.+)`")
_ENDED: Final = "the command that it was for has ended, and who ran it"

Body = TypeVar("Body", bound=msgspec.Struct)


class LeaseAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /api/lease`; it may be absent."""

    holder: str = "somebody"
    """Who it is, in words for people."""
    unload: bool = False
    """Whether the models shall be unloaded meanwhile."""
    timeout_s: float | None = None
    """How long to wait for it; None waits as long as it takes."""


class OwnAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /api/lease/own`."""

    token: str
    """That was told with `leased`."""
    command_pid: int | None = None
    """The process that it is for from now on: a child of the one that asked, with the connection too."""


def leasing(parts: Parts) -> APIRouter:
    """The routes."""
    router = APIRouter(prefix="/api", redirect_slashes=False)

    @router.post("/lease")
    async def lease(request: Request) -> Response:
        return _LeaseAnswer(parts.pool, _read(await request.body()))

    @router.post("/lease/own")
    async def own(request: Request) -> Json:
        asked = _decoded(await request.body(), OwnAsked)
        pid = asked.command_pid
        if pid is not None and request.client is not None:
            raise invalid("'command_pid' can be told on the control socket only.", param="command_pid")
        if pid is not None and not 0 < pid < 2**31:
            raise invalid("'command_pid' must be the id of a process.", param="command_pid")
        found = parts.pool.own_lease(asked.token, pid)
        if found is None:
            message = "No lease that has the machine has this token."
            raise PublicError(404, "lease_not_found", message, param="token")
        return Json(found)

    return router


def _read(body: bytes) -> LeaseAsked:
    asked = _decoded(body, LeaseAsked)
    if not 0 < len(asked.holder) <= _LONGEST_NAME:
        raise invalid(f"'holder' must have 1 to {_LONGEST_NAME} characters.", param="holder")
    if asked.timeout_s is not None and not 0 <= asked.timeout_s <= 1e9:
        raise invalid("'timeout_s' must be a number of seconds, 0 or more.", param="timeout_s")
    return asked


def _decoded(body: bytes, shape: type[Body]) -> Body:
    try:
        return msgspec.json.decode(body or b"{}", type=shape)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        if missing := _MISSING.fullmatch(reason):
            raise invalid(f"'{missing[1]}' is required.", param=missing[1], code="missing_field") from None
        raise invalid(f"{reason}.", param=path.removesuffix("`") or None) from None
    except msgspec.DecodeError as error:
        raise PublicError(400, "invalid_json", f"The body is not valid JSON: {error}.") from None


class _LeaseAnswer(Response):
    """Lines of JSON: `waiting` at first and now and then, `leased`, and at last `ended` if it wasn't the
    client who ended it."""

    def __init__(self, pool: ModelPool, asked: LeaseAsked) -> None:
        super().__init__()
        self._pool = pool
        self._asked = asked

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            # The client's leaving ends the block, and with it the lease.
            exchange = Exchange.of(scope)
            with exchange.while_connected():
                asked, pid = self._asked, exchange.peer_pid
                async with self._pool.lease(asked.holder, unload=asked.unload, pid=pid) as lease:
                    await send({"type": "http.response.start", "status": 200, "headers": _NDJSON})
                    ended = await self._hold(lease, exchange, send)
                if not exchange.unread:
                    await send({"type": "http.response.body", "body": _line(ended), "more_body": False})
        except ClientGone:
            return

    async def _hold(self, lease: MachineLease, exchange: Exchange, send: Any) -> LeaseNews:
        loop = asyncio.get_running_loop()
        asked_s = loop.time()

        async def say(news: LeaseNews) -> None:
            # Who holds it need not read: a command that outlives its `run` knows nothing of the connection.
            if not exchange.unread:
                await send({"type": "http.response.body", "body": _line(news), "more_body": True})

        def waited_ms() -> int:
            return round(1000 * (loop.time() - asked_s))

        limit_s = self._asked.timeout_s
        # Mostly it takes a moment: nobody need hear that it was waited for.
        await asyncio.wait(
            {lease.granted, lease.given_back},
            timeout=_QUIET_S if limit_s is None else min(_QUIET_S, limit_s),
            return_when=asyncio.FIRST_COMPLETED,
        )
        while not lease.granted.done():
            left_s = None if limit_s is None else asked_s + limit_s - loop.time()
            if lease.given_back.done():
                return LeaseNews("ended", waited_ms(), reason="the supervisor is stopping")
            if left_s is not None and left_s <= 0:
                return LeaseNews(
                    "ended", waited_ms(), reason=f"it was not free within {limit_s:g} s: {self._busy()}"
                )
            await say(LeaseNews("waiting", waited_ms(), reason=self._busy()))
            patience_s = _AGAIN_S if left_s is None else min(_AGAIN_S, left_s)
            await asyncio.wait(
                {lease.granted, lease.given_back},
                timeout=patience_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        waited = waited_ms()
        while not lease.given_back.done():
            # Said again and again: one who has closed his end alone is only found out by being written to.
            await say(LeaseNews("leased", waited, token=lease.token))
            if lease.is_left:
                # What the command left behind has the connection too, and may keep it for ever.
                return LeaseNews("ended", waited, reason=_ENDED)
            await asyncio.wait({lease.given_back}, timeout=_AGAIN_S)
        return LeaseNews("ended", waited, reason="the supervisor is stopping")

    def _busy(self) -> str:
        """What it waits for."""
        engine = self._pool.engine()
        others = [lease.holder for lease in engine.leases if lease.granted]
        if others:
            return f"{others[0]} has the machine"
        running = sum(worker.in_flight for worker in engine.workers)
        moving = [
            f"{worker.id} is {worker.state}"
            for worker in engine.workers
            if worker.state in ("starting", "restarting", "draining", "stopping")
        ]
        requests = [f"{running} request{'s' if running != 1 else ''} running"] if running else []
        return ", ".join(requests + moving) or "workers come to rest"


def _line(news: LeaseNews) -> bytes:
    return msgspec.json.encode(news) + b"\n"

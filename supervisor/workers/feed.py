"""What a worker tells of its requests, from `GET /admin/events`, for as long as it serves."""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from shared.activity import Activity, decode_activity
from supervisor.workers.upstream import Upstream, UpstreamError
from supervisor.workers.watch import drop

_AGAIN_S: Final = 1.0
"""After a feed that broke off while its worker lives."""


class Feed:
    """Reads the feed and calls `tell` with each line; begins anew when it breaks off, until it is closed."""

    def __init__(self, upstream: Upstream, tell: Callable[[Activity], None]) -> None:
        self._upstream = upstream
        self._tell = tell
        self._task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        """Stop listening. A worker that is to end must not wait for us."""
        await drop(self._task)

    async def _run(self) -> None:
        while True:
            try:
                async with await self._upstream.request("GET", b"/admin/events") as response:
                    if response.status != 200:
                        return
                    rest = b""
                    async for chunk in response:
                        *lines, rest = (rest + chunk).split(b"\n")
                        for line in lines:
                            self._take(line)
            except UpstreamError:
                pass  # it ends, or it will be there again
            await asyncio.sleep(_AGAIN_S)

    def _take(self, line: bytes) -> None:
        try:
            activity = decode_activity(line)
        except msgspec.MsgspecError:
            return  # a newer worker may tell more than we know
        self._tell(activity)

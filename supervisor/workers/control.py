"""What the supervisor asks a worker on its admin routes."""

import asyncio
import errno
from typing import Final, TypeVar

import msgspec

from shared.admin import CacheStats, DrainAsked, Drained, Health, LimitAsked, Limited, TrimAsked, Trimmed
from shared.status import Memory
from supervisor.workers.upstream import Upstream, UpstreamError

# Out of descriptors or memory: that says something about us and nothing about the worker.
_OUR_OWN: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


_Body = TypeVar("_Body", bound=msgspec.Struct)


class NoAnswer(Exception):  # noqa: N818  it is no error of ours
    """Raised when a worker gives no usable answer. `ours` says that we could not even ask."""

    def __init__(self, reason: str, *, ours: bool = False) -> None:
        super().__init__(reason)
        self.ours = ours


async def ask_health(upstream: Upstream, *, timeout_s: float | None = None) -> Health:
    """What the worker says of itself. Raises NoAnswer."""
    return _read(await _ask(upstream, "GET", b"/admin/health", b"", timeout_s), Health)


async def ask_cache(upstream: Upstream, *, timeout_s: float) -> CacheStats:
    """What it keeps of earlier prompts. Raises NoAnswer."""
    return _read(await _ask(upstream, "GET", b"/admin/cache", b"", timeout_s), CacheStats)


async def ask_to_drain(upstream: Upstream, *, timeout_s: float) -> bool:
    """Let the worker refuse what comes and finish what it has; whether it has. Raises NoAnswer."""
    body = msgspec.json.encode(DrainAsked(timeout_ms=round(1000 * timeout_s)))
    return _read(await _ask(upstream, "POST", b"/admin/drain", body, None), Drained).drained


async def ask_to_trim(upstream: Upstream, *, timeout_s: float) -> Trimmed:
    """Let the worker give back what it keeps of earlier prompts. Raises NoAnswer."""
    body = msgspec.json.encode(TrimAsked())
    return _read(await _ask(upstream, "POST", b"/admin/memory/trim", body, timeout_s), Trimmed)


async def ask_to_keep_within(upstream: Upstream, asked: LimitAsked, *, timeout_s: float) -> Memory:
    """Let the worker take no more than this; what it holds from then on. Raises NoAnswer."""
    body = msgspec.json.encode(asked)
    return _read(await _ask(upstream, "POST", b"/admin/memory/limit", body, timeout_s), Limited).memory


async def _ask(upstream: Upstream, method: str, target: bytes, body: bytes, timeout_s: float | None) -> bytes:
    try:
        async with asyncio.timeout(timeout_s):
            async with await upstream.request(method, target, body=body) as response:
                answer = await response.read()
    except TimeoutError:
        raise NoAnswer(f"no answer within {timeout_s:g} s") from None
    except UpstreamError as error:
        cause = error.__cause__
        raise NoAnswer(str(error), ours=isinstance(cause, OSError) and cause.errno in _OUR_OWN) from error
    if response.status != 200:
        raise NoAnswer(f"{target.decode()} answered {response.status}")
    return answer


def _read(answer: bytes, shape: type[_Body]) -> _Body:
    try:
        return msgspec.json.decode(answer, type=shape)
    except msgspec.MsgspecError as error:
        raise NoAnswer(f"not a {shape.__name__}: {error}") from None

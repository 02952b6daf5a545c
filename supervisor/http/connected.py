"""Whether a request's client is still there, for a task that works on its answer."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol


class ClientGone(Exception):  # noqa: N818  # nothing went wrong here
    """Raised in a task whose client disconnected. Nobody is left to be told."""


class Watched(Protocol):
    """An exchange."""

    gone: bool

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    def watch(self, on_gone: Callable[[], None] | None) -> None: ...


class WhileConnected:
    """See `Exchange.while_connected`. Costs a request no task of its own."""

    __slots__ = ("_cancelled", "_exchange", "_task")

    def __init__(self, exchange: Watched) -> None:
        self._exchange = exchange
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False

    def __enter__(self) -> None:
        if self._exchange.gone:
            raise ClientGone
        self._task = asyncio.current_task(self._exchange.loop)
        self._exchange.watch(self._cancel)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exchange.watch(None)
        # Somebody else may want the task gone as well; then that goes first.
        still_cancelled = self._cancelled and self._task is not None and self._task.uncancel()
        if self._cancelled and not still_cancelled and kind is asyncio.CancelledError:
            raise ClientGone from None

    def _cancel(self) -> None:
        if self._task is not None:
            self._cancelled = True
            self._task.cancel()

"""The one place where "what happened" goes."""

import time
from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec

Level = Literal["info", "warning", "error"]
Field = str | int | float | bool | None

FINISHED: Final = "request.finished"
"""The one kind of event that every request makes."""


class Event(msgspec.Struct, frozen=True):
    """Something that happened. Nothing from a prompt, an answer or a key may be in `fields`."""

    at: float
    """Wall clock, seconds since 1970: for people only, never to measure with."""
    kind: str
    """Subject and verb, `worker.ready`: stable, meant for programs."""
    level: Level
    fields: Mapping[str, Field]


Subscriber = Callable[[Event], None]


class Events:
    """Passes each event to every subscriber, at once and in order.

    Subscribers are called by whoever emits, so they neither block nor raise.
    """

    def __init__(self) -> None:
        self._subscribers: tuple[Subscriber, ...] = ()
        self._lost_lines: dict[str, int] = {}

    @property
    def lost_lines(self) -> Mapping[str, int]:
        """Lines that a log could not take, by the model whose workers' log it is; "" is our own log.

        No event tells of them: it would be one more line for the disk that is full.
        """
        return self._lost_lines

    def lose(self, model: str, lines: int) -> None:
        """Count lines that a log could not take."""
        self._lost_lines[model] = self._lost_lines.get(model, 0) + lines

    def emit(self, kind: str, /, *, level: Level = "info", **fields: Field) -> None:
        """Tell that `kind` happened, as in `emit("worker.ready", model="qwen3-8b", pid=4711, load_s=2.1)`."""
        self.tell(Event(time.time(), kind, level, fields))

    def tell(self, event: Event) -> None:
        """Tell of what happened."""
        for subscriber in self._subscribers:
            subscriber(event)

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` with every event from now on, until the returned function is called."""
        self._subscribers = (*self._subscribers, subscriber)

        def unsubscribe() -> None:
            self._subscribers = tuple(item for item in self._subscribers if item is not subscriber)

        return unsubscribe

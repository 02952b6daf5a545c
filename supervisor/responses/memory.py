"""What one WebSocket connection remembers, so that its next turn needs no store."""

from shared.responses.items import Item

KEPT = 8
"""Responses that a connection can go on from, the last ones."""


class Memory:
    """The contexts of the last responses of one connection, kept or not."""

    def __init__(self) -> None:
        self._contexts: dict[str, list[Item]] = {}

    def recall(self, response_id: str) -> list[Item] | None:
        """All that a response which goes on from this one has to read."""
        return self._contexts.get(response_id)

    def remember(self, response_id: str, context: list[Item]) -> None:
        self._contexts[response_id] = context
        while len(self._contexts) > KEPT:
            del self._contexts[next(iter(self._contexts))]

    def forget(self, response_id: str | None) -> None:
        """A turn that went on from it failed: the client starts again from what it has itself."""
        if response_id is not None:
            self._contexts.pop(response_id, None)

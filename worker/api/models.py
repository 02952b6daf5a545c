"""`GET /v1/models`: the one model that this worker serves."""

import orjson

from worker.api.exchange import Exchange


class Models:
    """The route. `created` is seconds since the epoch."""

    def __init__(self, model_id: str, *, created: int, context_window: int) -> None:
        card = {
            "id": model_id,
            "object": "model",
            "created": created,
            "owned_by": "local",
            "context_window": context_window,
        }
        self._card = orjson.dumps(card)
        self._body = orjson.dumps({"object": "list", "data": [card]})

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.answer(200, self._body)

    async def one(self, exchange: Exchange) -> None:
        """The model by itself: what `GET /v1/models/{id}` answers."""
        await exchange.answer(200, self._card)

"""The list of models as Anthropic's clients read it: they say who they are with `anthropic-version`.

Source: Anthropic's API reference, "List Models" and "Get a Model".
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from shared.errors import invalid

DEFAULT_LIMIT: Final = 20
MAX_LIMIT: Final = 1000


class Info(msgspec.Struct, frozen=True):
    """One model. Of limits only the context window is known, which prompt and answer share."""

    id: str
    display_name: str
    created_at: str
    max_input_tokens: int | None
    max_tokens: int | None
    capabilities: None = None
    lifecycle: str = "active"
    type: str = "model"


class Page(msgspec.Struct, frozen=True):
    """Some of the models, in the order of the list."""

    data: tuple[Info, ...]
    has_more: bool
    first_id: str | None
    last_id: str | None


def info(model_id: str, *, created: float, context: int | None) -> Info:
    """`created` is seconds since 1970, `context` is tokens."""
    at = datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Info(model_id, model_id, at, context, context)


def page(models: Sequence[Info], query: Mapping[str, Any]) -> Page:
    """The page that `query` asks for. Raises PublicError 400 naming the parameter."""
    limit = _limit(query.get("limit"))
    after, before = query.get("after_id"), query.get("before_id")
    if after is not None and before is not None:
        raise invalid("`after_id` and `before_id` can't be combined.", param="before_id")
    first, last = 0, len(models)
    if after is not None:
        first = _place(models, after, "after_id") + 1
        last = min(last, first + limit)
    elif before is not None:
        last = _place(models, before, "before_id")
        first = max(0, last - limit)
    else:
        last = min(last, limit)
    shown = tuple(models[first:last])
    more = first > 0 if before is not None else last < len(models)
    return Page(shown, more, shown[0].id if shown else None, shown[-1].id if shown else None)


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdecimal() and len(text) < 5 and 0 < int(text) <= MAX_LIMIT):
        raise invalid(f"`limit` must be 1 to {MAX_LIMIT}, not {text[:20]!r}.", param="limit")
    return int(text)


def _place(models: Sequence[Info], name: str, param: str) -> int:
    for index, model in enumerate(models):
        if model.id == name:
            return index
    raise invalid(f"`{param}` names no model of the list: {name[:80]!r}.", param=param)

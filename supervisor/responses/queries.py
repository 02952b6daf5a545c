"""What may stand behind the question mark. All raise PublicError 400 naming the parameter."""

import re
import urllib.parse
from typing import Final, get_args

from shared.errors import invalid
from shared.responses.asked import Include
from supervisor.history.pages import MAX_LIMIT, Paging

_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")


class Query:
    """The parameters of one request. Of one that comes twice the last counts."""

    def __init__(self, text: bytes) -> None:
        pairs = urllib.parse.parse_qsl(text.decode("latin-1"), keep_blank_values=True)
        self._values = dict(pairs)
        for name, value in pairs:
            if name in ("include", "include[]") and value not in get_args(Include):
                raise invalid(f"`include` has no value {value[:60]!r}.", param="include")

    def whole(self, name: str, low: int, high: int) -> int | None:
        value = self._values.get(name)
        if value is None:
            return None
        if not _WHOLE.fullmatch(value) or not low <= int(value) <= high:
            raise invalid(f"`{name}` must be a whole number from {low} to {high}.", param=name)
        return int(value)

    def switch(self, name: str) -> bool:
        value = self._values.get(name, "false")
        if value not in ("true", "false"):
            raise invalid(f"`{name}` must be true or false.", param=name)
        return value == "true"

    def paging(self) -> Paging:
        order = self._values.get("order", "desc")
        if order not in ("asc", "desc"):
            raise invalid("`order` must be asc or desc.", param="order")
        limit = self.whole("limit", 1, MAX_LIMIT)
        return Paging(20 if limit is None else limit, order, self._values.get("after"))  # type: ignore[arg-type]

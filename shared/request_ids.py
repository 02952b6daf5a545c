"""What a request is called: by its client, or by us.

Every answer tells it as `x-request-id`, to Anthropic's clients also as `request-id`. It is looked up and
logged, so a client's own is taken only if it is short and harmless.
"""

import os
import re
from collections.abc import Iterator
from typing import Final

from shared.errors import Api
from shared.headers import Headers

HEADER: Final = b"x-request-id"
_HARMLESS: Final = re.compile(rb"[A-Za-z0-9._:/+=@,|-]{1,128}")
_AT_ONCE: Final = 256


def _random_names() -> Iterator[bytes]:
    """24 digits each. Of the system's randomness, which is asked for many at once: a call costs as much as
    all else that is done for a name."""
    while True:
        digits = os.urandom(12 * _AT_ONCE).hex().encode()
        for start in range(0, len(digits), 24):
            yield digits[start : start + 24]


_names = _random_names()


def request_id(offered: bytes | None) -> bytes:
    """The client's own id, or a fresh one."""
    if offered is not None and _HARMLESS.fullmatch(offered):
        return offered
    return b"req_" + next(_names)


def headers_for(name: bytes, api: Api) -> Headers:
    """The headers by which an answer tells it."""
    told = (HEADER, name)
    return (told, (b"request-id", name)) if api is Api.ANTHROPIC else (told,)

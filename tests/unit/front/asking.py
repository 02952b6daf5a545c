"""What tests of the front ask, and how they look at the answer."""

import asyncio
import json
from typing import Any

from tests.fixtures.wire import Answer

CHAT = "/v1/chat/completions"
BODY = b'{"model": "fake",  "messages": [{"role":"user","content":"\xc3\xa4"}], "stream": true}'


def error_of(answer: Answer) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(answer.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


async def eventually(holds: Any) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110  # nobody announces what is asked here
            await asyncio.sleep(0.005)

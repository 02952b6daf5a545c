"""Long conversations made short: their oldest turns become a summary that the model itself writes.

What somebody must read to go on stays as it was said: system messages, the last question, and what came
after the part that is condensed.
"""

import time
from collections.abc import Sequence
from typing import Final

import msgspec
import orjson

from shared.admin import MemoryAsked, MemoryCompleted, MemoryInput
from shared.responses.answer import Response, usage_object
from shared.responses.items import Item, item_id, kept_item, new_id
from shared.responses.sealed import seal, unseal
from supervisor.catalog.catalog import ModelEntry
from supervisor.relay import Slots
from supervisor.responses.answering import refusal
from supervisor.responses.turns import Resolved
from supervisor.workers.connection import Headers
from supervisor.workers.upstream import Upstream, UpstreamError

STAGE: Final = "condense"
_INSTRUCTION: Final = (
    "You summarise conversations. Write down, briefly and without comment, what a reader needs in order to "
    "go on: who wants what, facts, names, numbers, decisions, results of tools, and what is still open."
)
_MIN_SUMMARY: Final = 64
_MAX_SUMMARY: Final = 1024
"""Tokens of one summary."""
_MAX_PIECES: Final = 64
_ROUNDS: Final = 3
_FILLED: Final = 0.5
"""How full the context is afterwards, so that not every turn condenses again."""
_JSON: Final = ((b"content-type", b"application/json"),)


class Counted(msgspec.Struct, frozen=True):
    """What `POST /v1/responses/input_tokens` of a worker answers."""

    input_tokens: int
    context_window: int


class Summary(msgspec.Struct, frozen=True):
    """A part of a conversation, in short."""

    text: str
    prompt_tokens: int
    completion_tokens: int

    def item(self) -> Item:
        """As an item of the conversation."""
        return {"type": "compaction", "id": item_id("compaction"), "encrypted_content": seal(self.text)}


async def fitted(request: Resolved, pool: Slots) -> Resolved:
    """`request` with as many of its oldest turns condensed as its model's context window asks for.

    Raises PublicError from the pool and from the worker.
    """
    body = request.body()
    # No token is shorter than a byte, so a short request fits unseen.
    window = request.entry.context
    if window is not None and len(body) + _reserve(request, window) < window:
        return request
    async with pool.slot(request.entry) as slot:
        try:
            for _ in range(_ROUNDS):
                counted = await _count(request.body(), (request.header(),), slot.upstream)
                room = counted.context_window - _reserve(request, counted.context_window)
                if counted.input_tokens <= room:
                    return request
                shorter = await _condensed(request, counted, room, slot.upstream)
                if shorter is None:
                    return request
                request = shorter
        except UpstreamError as error:
            raise await slot.failure() from error
    return request


async def compacted(
    items: Sequence[Item], entry: ModelEntry, pool: Slots, *, instructions: str | None
) -> Response:
    """The answer of `POST /v1/responses/compact`. Raises PublicError."""
    async with pool.slot(entry) as slot:
        try:
            counted = await _count(orjson.dumps({"input": list(items)}), (), slot.upstream)
            per_byte = counted.input_tokens / max(len(_text(items).encode()), 1)
            size = _bytes_per_input(counted, per_byte)
            summary = await _summary(items, counted.context_window, size, slot.upstream, instructions)
        except UpstreamError as error:
            raise await slot.failure() from error
    asked = [kept_item(item) for item in items if item.get("role") == "user"]
    return {
        "id": new_id("resp"),
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [*asked, summary.item()],
        "usage": usage_object(summary.prompt_tokens, summary.completion_tokens),
    }


def _reserve(request: Resolved, window: int) -> int:
    """Tokens that are kept free for the answer."""
    asked = request.asked.max_output_tokens
    return min(window // 8 if asked is None else asked, window // 2)


async def _count(body: bytes, told: Headers, upstream: Upstream) -> Counted:
    async with await upstream.request(
        "POST", b"/v1/responses/input_tokens", (*_JSON, *told), body
    ) as response:
        if response.status != 200:
            raise await refusal(response)
        return msgspec.json.decode(await response.read(), type=Counted)


async def _condensed(request: Resolved, counted: Counted, room: int, upstream: Upstream) -> Resolved | None:
    """With its oldest turns condensed; None when there is nothing left that could be."""
    whole = [*(request.before if request.condensed is None else request.condensed), *request.input]
    sizes = [len(orjson.dumps(item)) for item in whole]
    per_byte = counted.input_tokens / max(sum(sizes), 1)
    cut = _cut(whole, sizes, (counted.input_tokens - _FILLED * room) / per_byte)
    old, rest = whole[:cut], whole[cut:]
    kept = [item for item in old if item.get("role") in ("system", "developer")]
    gone = [item for item in old if item.get("role") not in ("system", "developer")]
    if not gone or (len(gone) == 1 and gone[0]["type"] == "compaction"):
        return None
    summary = await _summary(
        gone, counted.context_window, _bytes_per_input(counted, per_byte), upstream, None
    )
    if not any(item.get("role") == "user" for item in rest):
        # The last question is what all of it is about.
        kept += [item for item in gone if item.get("role") == "user"][-1:]
    new = min(len(request.input), len(rest))
    head = [*kept, summary.item(), *rest[: len(rest) - new]]
    return msgspec.structs.replace(request, condensed=head, input=rest[len(rest) - new :])


def _cut(items: Sequence[Item], sizes: Sequence[int], bytes_to_go: float) -> int:
    """Where what is kept begins: as late as it must, and where a turn or a step of one begins."""
    gone = 0.0
    last = 0
    for index, (item, size) in enumerate(zip(items, sizes, strict=True)):
        if index and _begins(item, items[index - 1]):
            last = index
            if gone >= bytes_to_go:
                break
        gone += size
    return last


def _begins(item: Item, previous: Item) -> bool:
    """Whether a turn, or after the results of tools the next step of one, begins with this item."""
    if item.get("role") == "user":
        return True
    return bool(previous["type"] == "function_call_output" != item["type"])


def _bytes_per_input(counted: Counted, per_byte: float) -> int:
    """Bytes of a conversation that can be summarised at once."""
    room = counted.context_window - _summary_tokens(counted.context_window) - counted.context_window // 8
    return max(256, int(0.7 * room / per_byte))


def _summary_tokens(window: int) -> int:
    return max(_MIN_SUMMARY, min(_MAX_SUMMARY, window // 8))


async def _summary(
    items: Sequence[Item], window: int, piece_bytes: int, upstream: Upstream, instructions: str | None
) -> Summary:
    text = _text(items)
    # A character may be several bytes, so pieces of characters may be too long by that much.
    size = max(1, int(piece_bytes * len(text) / max(len(text.encode()), 1)))
    pieces = [text[start : start + size] for start in range(0, len(text), size)] or [""]
    # What is more than that is too much for a few summaries: the end matters most.
    pieces = pieces[-_MAX_PIECES:]
    told = f"{_INSTRUCTION}\n\n{instructions}" if instructions else _INSTRUCTION
    asked = MemoryAsked(
        STAGE,
        [MemoryInput(user=f"The conversation:\n\n{piece}\n\nSummarise it.", system=told) for piece in pieces],
        max(_MIN_SUMMARY // 2, _summary_tokens(window) // len(pieces)),
    )
    async with await upstream.request(
        "POST", b"/admin/memory/complete", _JSON, msgspec.json.encode(asked)
    ) as response:
        if response.status != 200:
            raise await refusal(response)
        done = msgspec.json.decode(await response.read(), type=MemoryCompleted)
    return Summary(
        "\n\n".join(output.text.strip() for output in done.outputs),
        sum(output.prompt_tokens for output in done.outputs),
        sum(output.completion_tokens for output in done.outputs),
    )


def _text(items: Sequence[Item]) -> str:
    return "\n\n".join(filter(None, map(_line, items)))


def _line(item: Item) -> str:
    match item["type"]:
        case "message":
            return f"{item['role']}: {_content(item['content'])}"
        case "function_call":
            return f"assistant calls {item['name']}: {item['arguments']}"
        case "function_call_output":
            return f"result: {_content(item['output'])}"
        case "compaction":
            return f"before that: {unseal(item['encrypted_content']) or ''}"
    return ""


def _content(content: str | list[Item]) -> str:
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text") or part.get("refusal") or "") for part in content)

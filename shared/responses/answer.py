"""The response object, and the events that carry it whole."""

from typing import Any, Final, Literal

import msgspec
import orjson
from msgspec import UNSET

from shared import sse
from shared.errors import PublicError
from shared.responses.asked import JsonSchemaFormat, ResponsesAsked, TextFormat
from shared.responses.items import Item
from shared.responses.tools import offered

Response = dict[str, Any]
Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]

ENDED: Final = frozenset({"completed", "incomplete", "failed", "cancelled"})
CONTEXT_HEADER: Final = b"x-response"
"""What the supervisor tells a worker beside the request: a `Context` as JSON."""


class Context(msgspec.Struct, frozen=True):
    """Which response a worker is to answer."""

    id: str
    created_at: int
    """Seconds since 1970."""
    sequence_number: int = 0
    """Of the worker's first event. From 1 on the response was announced already."""
    history: int = 0
    """Items of the input that the client did not send this time."""


def response_object(
    asked: ResponsesAsked,
    context: Context,
    *,
    model: str,
    status: Status,
    temperature: float | None = None,
    top_p: float | None = None,
) -> Response:
    """The response as it is before there is any output. What the request left out has its default."""
    tools = [_tool(tool) for tool in asked.tools if offered(tool)]
    conversation = asked.conversation_id
    reasoning = asked.reasoning
    response: Response = {
        "id": context.id,
        "object": "response",
        "created_at": context.created_at,
        "completed_at": None,
        "status": status,
        "background": bool(asked.background),
        "error": None,
        "incomplete_details": None,
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": asked.max_tool_calls,
        "metadata": asked.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "presence_penalty": asked.presence_penalty or 0.0,
        "frequency_penalty": asked.frequency_penalty or 0.0,
        "previous_response_id": asked.previous_response_id,
        "prompt_cache_key": asked.prompt_cache_key,
        "prompt_cache_retention": asked.prompt_cache_retention,
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": (reasoning.summary or reasoning.generate_summary) if reasoning else None,
        },
        "safety_identifier": asked.safety_identifier,
        # Whatever was asked for, there is one.
        "service_tier": "default",
        "store": asked.stored,
        "temperature": _first(asked.temperature, temperature),
        "text": {"format": _format(asked), "verbosity": asked.text.verbosity or "medium"},
        "tool_choice": asked.tool_choice,
        "tools": tools,
        "top_logprobs": asked.top_logprobs or 0,
        "top_p": _first(asked.top_p, top_p),
        "truncation": asked.truncation or "disabled",
        # What it has cost so far: the official schema has no null here, though OpenAI's examples do.
        "usage": usage_object(0, 0),
    }
    if conversation is not None:
        response["conversation"] = {"id": conversation}
    if asked.user is not UNSET:
        response["user"] = asked.user
    return response


def usage_object(prompt: int, completion: int, *, cached: int = 0, reasoning: int = 0) -> Item:
    """Token counts. Source: OpenAI's API reference, "ResponseUsage"."""
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": prompt + completion,
    }


def _first(*values: float | None) -> float:
    return next((value for value in values if value is not None), 1.0)


def _tool(tool: Item) -> Item:
    if tool.get("type") == "namespace":
        return {"description": "", **tool}
    return {"description": None, "parameters": None, "strict": None, **tool}


def _format(asked: ResponsesAsked) -> Item:
    wanted = asked.text.format
    if isinstance(wanted, JsonSchemaFormat):
        shown: Item = {
            "type": "json_schema",
            "name": wanted.name,
            "schema": wanted.schema,
            "strict": bool(wanted.strict),
        }
        return shown if wanted.description is UNSET else {**shown, "description": wanted.description}
    return {"type": "text" if isinstance(wanted, TextFormat) else "json_object"}


def failed(response: Response, error: PublicError) -> Response:
    """`response` as one that failed; its codes are a closed list of OpenAI's."""
    code = {400: "invalid_prompt", 429: "rate_limit_exceeded"}.get(error.status, "server_error")
    return {**response, "status": "failed", "error": {"code": code, "message": error.message}}


def lifecycle_event(name: str, response: Response, number: int) -> bytes:
    """`response.created` and its like: an event with the whole response in it."""
    return event(name, {"sequence_number": number, "response": response})


def error_event(error: PublicError, number: int) -> bytes:
    """The event that tells of an error when there is no response to fail."""
    return event(
        "error",
        {"code": error.code, "message": error.message, "param": error.param, "sequence_number": number},
    )


def event(name: str, fields: Item) -> bytes:
    """One event of a stream."""
    return sse.event(orjson.dumps({"type": name, **fields}), name)

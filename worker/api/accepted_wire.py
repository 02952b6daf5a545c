"""Fields of OpenAI's chat completions that change nothing here, held against the official schema even so.

Source: OpenAI's specification, `CreateChatCompletionRequest`. They say how to bill, keep and name a request,
or hint at what will be said. What asks for another kind of answer is refused.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from shared.errors import invalid
from worker.api.chat_messages import TextPart
from worker.api.sampling_wire import SamplingFields

_MAX_PAIRS = 16


class CacheOptions(msgspec.Struct, frozen=True):
    ttl: Literal["30m"] = "30m"
    mode: Literal["implicit", "explicit"] = "implicit"


class CustomVoice(msgspec.Struct, frozen=True):
    id: str


class AudioAsked(msgspec.Struct, frozen=True):
    voice: str | CustomVoice
    format: Literal["wav", "aac", "mp3", "flac", "opus", "pcm16"]


class Moderation(msgspec.Struct, frozen=True):
    model: str
    policy: dict[str, Any] | None = None


class Prediction(msgspec.Struct, frozen=True):
    type: Literal["content"]
    content: str | Annotated[list[TextPart], Meta(min_length=1)]


class Place(msgspec.Struct, frozen=True):
    country: str = ""
    region: str = ""
    city: str = ""
    timezone: str = ""


class UserLocation(msgspec.Struct, frozen=True):
    type: Literal["approximate"]
    approximate: Place


class WebSearch(msgspec.Struct, frozen=True):
    user_location: UserLocation | None = None
    search_context_size: Literal["low", "medium", "high"] = "medium"


class AcceptedFields(SamplingFields, frozen=True, kw_only=True):
    """A part of a chat's body. Fields that may not be null are UNSET when absent."""

    user: str | UnsetType = UNSET
    store: bool | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=_MAX_PAIRS)] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast"] | None = None
    safety_identifier: Annotated[str, Meta(max_length=64)] | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    prompt_cache_options: CacheOptions | UnsetType = UNSET
    verbosity: Literal["low", "medium", "high"] | None = None
    modalities: list[Literal["text", "audio"]] | None = None
    audio: AudioAsked | None = None
    moderation: Moderation | None = None
    prediction: Prediction | None = None
    web_search_options: WebSearch | UnsetType = UNSET


def check_accepted(asked: AcceptedFields) -> None:
    """Raises PublicError 400 for what is asked for and can't be had."""
    if asked.modalities and "audio" in asked.modalities:
        raise invalid(
            "`modalities` can't have audio: this model answers in text only.",
            param="modalities",
            code="unsupported_value",
        )
    if asked.moderation is not None:
        raise invalid(
            "`moderation`: nothing is moderated here; leave it out.",
            param="moderation",
            code="unsupported_parameter",
        )
    if asked.web_search_options is not UNSET:
        raise invalid(
            "`web_search_options`: nothing is searched from here; offer the model a tool that does.",
            param="web_search_options",
            code="unsupported_value",
        )

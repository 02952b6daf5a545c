"""The body of `POST /v1/responses`.

Unknown fields are ignored here: what is ours beyond OpenAI's is for the worker. What would change the answer
and can't be done is refused by name.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from shared.errors import PublicError, invalid
from shared.responses.items import Item, input_items, parse_item
from shared.responses.tools import Calling, calling
from shared.validation import check_range, decode

Include = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
_Summary = Literal["auto", "concise", "detailed"]

MIN_OUTPUT_TOKENS: Final = 16
MAX_METADATA: Final = 16
_MAX_KEY: Final = 64
_MAX_VALUE: Final = 512
_INFINITE: Final = float("inf")


class Conversation(msgspec.Struct, frozen=True):
    """The conversation that a request belongs to."""

    id: str


class Reasoning(msgspec.Struct, frozen=True):
    """How much to think, and whether to tell it as a summary."""

    effort: Effort | None = None
    summary: _Summary | None = None
    generate_summary: _Summary | None = None
    mode: str | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None

    @property
    def told_as_summary(self) -> bool:
        return (self.summary or self.generate_summary) is not None


class TextFormat(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    pass


class JsonObjectFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_object"):
    pass


class JsonSchemaFormat(msgspec.Struct, frozen=True, tag_field="type", tag="json_schema"):
    name: Annotated[str, Meta(min_length=1, max_length=64)]
    schema: dict[str, Any]
    description: str | UnsetType = UNSET
    strict: bool | None = None


class Text(msgspec.Struct, frozen=True):
    """What the text has to look like."""

    format: TextFormat | JsonObjectFormat | JsonSchemaFormat = TextFormat()
    verbosity: Literal["low", "medium", "high"] | None = None


class StreamOptions(msgspec.Struct, frozen=True):
    include_obfuscation: bool = True
    """Accepted; nothing is padded here."""


class CacheOptions(msgspec.Struct, frozen=True):
    """Accepted; the prompt cache works by itself."""

    ttl: Literal["30m"] = "30m"
    mode: Literal["implicit", "explicit"] = "implicit"


class ResponsesAsked(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's fields. Use `parse_asked`, which checks what types can't say."""

    model: str | UnsetType = UNSET
    input: str | list[Item] | UnsetType = UNSET
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | Conversation | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include: list[Include] | None = None
    tools: list[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    text: Text = Text()
    reasoning: Reasoning | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[str, str] | None = None
    user: str | UnsetType = UNSET
    safety_identifier: Annotated[str, Meta(max_length=64)] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_cache_options: CacheOptions | UnsetType = UNSET
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    prompt: Any = None
    moderation: Any = None
    context_management: Any = None

    @property
    def items(self) -> list[Item]:
        """The input as items."""
        return [] if self.input is UNSET else input_items(self.input)

    @property
    def calling(self) -> Calling:
        """Which functions there are. Raises PublicError 400."""
        return calling(self.tools, self.tool_choice)

    @property
    def conversation_id(self) -> str | None:
        return self.conversation.id if isinstance(self.conversation, Conversation) else self.conversation

    @property
    def stored(self) -> bool:
        return self.store is not False

    @property
    def logprobs(self) -> int | None:
        """Alternatives to tell for each token; None tells no log probability at all."""
        if "message.output_text.logprobs" in (self.include or ()) or self.top_logprobs:
            return self.top_logprobs or 0
        return None

    @property
    def sealed_reasoning(self) -> bool:
        """Whether reasoning items carry `encrypted_content`."""
        return "reasoning.encrypted_content" in (self.include or ())


_CANNOT: Final = {
    "prompt": "there are no stored prompts here; send `instructions` and `input`",
    "moderation": "nothing is moderated here; leave it out",
    "context_management": 'use `truncation: "auto"`, or `POST /v1/responses/compact`',
}


def parse_asked(body: bytes) -> ResponsesAsked:
    """`body`, checked as far as it can be without a model. Raises PublicError 400 naming the field."""
    asked = decode(body, ResponsesAsked)
    for name, why in _CANNOT.items():
        if getattr(asked, name) is not None:
            raise invalid(f"`{name}` is not supported: {why}.", param=name, code="unsupported_parameter")
    check_range(asked.temperature, "temperature", 0, 2)
    check_range(asked.top_p, "top_p", 0, 1)
    check_range(asked.top_logprobs, "top_logprobs", 0, 20)
    check_range(asked.max_output_tokens, "max_output_tokens", MIN_OUTPUT_TOKENS, _INFINITE)
    check_range(asked.max_tool_calls, "max_tool_calls", 1, _INFINITE)
    check_metadata(asked.metadata)
    if asked.previous_response_id is not None and asked.conversation is not None:
        raise invalid(
            "`previous_response_id` and `conversation` can't be used together.", param="previous_response_id"
        )
    if asked.background and not asked.stored:
        raise invalid("`background` needs `store` to be true.", param="background")
    for index, item in enumerate(asked.items):
        parse_item(item, "input" if isinstance(asked.input, str) else f"input[{index}]")
    asked.calling  # noqa: B018  # raises
    return asked


def check_metadata(metadata: Mapping[str, str] | None) -> None:
    """Raises PublicError 400 for more than OpenAI's limits."""
    if metadata is None:
        return
    if len(metadata) > MAX_METADATA:
        raise invalid(f"`metadata` may have {MAX_METADATA} keys, not {len(metadata)}.", param="metadata")
    for key, value in metadata.items():
        if len(key) > _MAX_KEY:
            raise invalid(f"Keys of `metadata` may have {_MAX_KEY} characters.", param="metadata")
        if len(value) > _MAX_VALUE:
            raise invalid(
                f"Values of `metadata` may have {_MAX_VALUE} characters.", param=f"metadata.{key[:_MAX_KEY]}"
            )


def missing_input() -> PublicError:
    """400 for a request that says nothing."""
    return invalid("`input` is required.", param="input", code="missing_required_parameter")

"""The fields that say what an answer has to look like: the same in chat and text completions.

Sources: OpenAI's API reference for `response_format`; vLLM's documentation for the rest.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import UnsetType

from worker.api.exchange import Headers
from worker.api.validation import given
from worker.text.grammar.spec import Spec, spec_of


class StructureFields(Protocol):
    """What the bodies of both have."""

    @property
    def response_format(self) -> dict[str, Any] | UnsetType | None: ...
    @property
    def guided_json(self) -> dict[str, Any] | str | None: ...
    @property
    def guided_regex(self) -> str | None: ...
    @property
    def guided_choice(self) -> list[str] | None: ...
    @property
    def guided_grammar(self) -> str | None: ...
    @property
    def structured_outputs(self) -> dict[str, Any] | None: ...


def structure_of(asked: StructureFields) -> Spec | None:
    """The one structure that is asked for. Raises PublicError 400 naming the field."""
    return spec_of(
        {
            "response_format": given(asked.response_format),
            "guided_json": asked.guided_json,
            "guided_regex": asked.guided_regex,
            "guided_choice": asked.guided_choice,
            "guided_grammar": asked.guided_grammar,
            "structured_outputs": asked.structured_outputs,
        }
    )


def warning_headers(warnings: Sequence[str]) -> Headers:
    """Source: RFC 7234, section 5.5."""
    return [(b"warning", text.encode()) for text in warnings]

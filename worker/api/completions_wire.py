"""The body of `POST /v1/completions`, and how it becomes Requests.

Source: OpenAI's API reference, "Create completion". Unknown fields are ignored.
"""

from typing import Any

from msgspec import UNSET, UnsetType

from shared.errors import invalid
from worker.api.chat_wire import StreamOptions
from worker.api.sampling_wire import MAX_ALTERNATIVES, SamplingFields, request_fields
from worker.api.structure_wire import structure_of
from worker.api.validation import check_range
from worker.request import Request


class CompletionAsked(SamplingFields, frozen=True, kw_only=True):
    prompt: str | list[str | int | list[int]] | None = None
    suffix: str | None = None
    user: str | UnsetType = UNSET
    """Accepted: it changes nothing."""
    echo: bool | None = None
    best_of: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: dict[str, Any] | None = None

    @property
    def wants_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def most_tokens(self) -> int | None:
        """The limit under its newer name, or its older."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens


def to_requests(asked: CompletionAsked) -> list[Request]:
    """One request for each prompt. Raises PublicError 400 naming the field."""
    # Without a text there is still its echo to score.
    least = 0 if asked.echo else 1
    check_range(asked.max_tokens, "max_tokens", least, float("inf"))
    check_range(asked.max_completion_tokens, "max_completion_tokens", least, float("inf"))
    check_range(asked.logprobs, "logprobs", 0, MAX_ALTERNATIVES)
    chosen = request_fields(asked)
    structure = structure_of(asked)
    if asked.suffix:
        raise invalid(
            "`suffix` is not supported: these models only go on from a prompt, they don't fill in.",
            param="suffix",
            code="unsupported_value",
        )
    if asked.best_of is not None and asked.best_of != (asked.n or 1):
        raise invalid(
            "`best_of` must be equal to `n`: every answer that is made is returned.",
            param="best_of",
            code="unsupported_value",
        )
    return [
        Request(
            prompt=prompt,
            max_tokens=asked.most_tokens,
            logprobs=asked.logprobs,
            structure=structure,
            **chosen,
        )
        for prompt in _prompts(asked.prompt)
    ]


def _prompts(prompt: str | list[str | int | list[int]] | None) -> list[str | tuple[int, ...]]:
    if prompt is None:
        raise invalid("`prompt` is required.", param="prompt", code="missing_required_parameter")
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("`prompt` must have at least one prompt or token.", param="prompt")
    texts = [item for item in prompt if isinstance(item, str)]
    tokens = [item for item in prompt if isinstance(item, int)]
    lists = [tuple(item) for item in prompt if isinstance(item, list)]
    if len(texts) == len(prompt):
        return list(texts)
    if len(tokens) == len(prompt):
        return [tuple(tokens)]
    if len(lists) < len(prompt):
        raise invalid("`prompt` must be all texts, all token ids, or all lists of token ids.", param="prompt")
    for index, item in enumerate(lists):
        if not item:
            raise invalid(f"`prompt[{index}]` must have at least one token id.", param=f"prompt[{index}]")
    return list(lists)

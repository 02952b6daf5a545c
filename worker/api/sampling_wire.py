"""The fields that say how tokens are chosen: the same in chat and text completions.

Sources: OpenAI's API reference; mlx-lm's server for xtc and the context sizes; vLLM for the rest.
"""

from typing import Any, Final

import msgspec

from shared.errors import invalid
from worker.api.validation import check_range
from worker.request import Asked

MAX_STOPS: Final = 16
MAX_STOP_CHARACTERS: Final = 1024
MAX_ANSWERS: Final = 16
MAX_ALTERNATIVES: Final = 20
_MAX_TOKENS_LISTED: Final = 1024

# Field, least and most.
_RANGES: Final[tuple[tuple[str, float, float], ...]] = (
    ("temperature", 0, 2),
    ("top_p", 0, 1),
    ("top_k", -1, 2**31),
    ("min_p", 0, 1),
    ("seed", -(2**63), 2**64 - 1),
    ("xtc_probability", 0, 1),
    ("xtc_threshold", 0, 0.5),
    ("repetition_penalty", 0.01, 10),
    ("repetition_context_size", 1, 2**31 - 1),
    ("presence_penalty", -2, 2),
    ("presence_context_size", 1, 2**31 - 1),
    ("frequency_penalty", -2, 2),
    ("frequency_context_size", 1, 2**31 - 1),
    ("min_tokens", 0, 2**31 - 1),
    ("n", 1, MAX_ANSWERS),
)


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """What the bodies of both have."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    repetition_penalty: float | None = None
    repetition_context_size: int | None = None
    presence_penalty: float | None = None
    presence_context_size: int | None = None
    frequency_penalty: float | None = None
    frequency_context_size: int | None = None
    logit_bias: dict[str, float] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    n: int | None = None
    adapter: str | None = None
    session_id: str | None = None
    prompt_cache_key: str | None = None


def request_fields(asked: SamplingFields) -> dict[str, Any]:
    """The fields of a Request that these are about. Raises PublicError 400 naming the field."""
    for name, low, high in _RANGES:
        check_range(getattr(asked, name), name, low, high)
    token_ids = asked.stop_token_ids or []
    if len(token_ids) > _MAX_TOKENS_LISTED:
        raise invalid(f"`stop_token_ids` may have {_MAX_TOKENS_LISTED} token ids.", param="stop_token_ids")
    return {
        "sampling": Asked(
            temperature=asked.temperature,
            top_p=asked.top_p,
            # -1 is how vLLM's clients say "all".
            top_k=0 if asked.top_k == -1 else asked.top_k,
            min_p=asked.min_p,
            seed=asked.seed,
            xtc_probability=asked.xtc_probability,
            xtc_threshold=asked.xtc_threshold,
            repetition_penalty=asked.repetition_penalty,
            repetition_context_size=asked.repetition_context_size,
            presence_penalty=asked.presence_penalty,
            presence_context_size=asked.presence_context_size,
            frequency_penalty=asked.frequency_penalty,
            frequency_context_size=asked.frequency_context_size,
            logit_bias=_bias(asked.logit_bias or {}),
        ),
        "stops": stops_of(asked.stop, "stop"),
        "stop_tokens": tuple(dict.fromkeys(token_ids)),
        "min_tokens": asked.min_tokens or 0,
        "ignore_eos": bool(asked.ignore_eos),
        "n": asked.n or 1,
        "adapter": asked.adapter,
        "session": asked.session_id or asked.prompt_cache_key,
    }


def _bias(bias: dict[str, float]) -> tuple[tuple[int, float], ...]:
    if len(bias) > _MAX_TOKENS_LISTED:
        raise invalid(f"`logit_bias` may have {_MAX_TOKENS_LISTED} token ids.", param="logit_bias")
    found: dict[int, float] = {}
    for name, value in bias.items():
        # Clients that count tokens in another tokenizer's way send what is no token id of this model at all.
        if not (name.isascii() and name.isdecimal() and len(name) <= 10):
            raise invalid(
                f"`logit_bias` has the key {name[:40]!r}, which is no token id.", param="logit_bias"
            )
        check_range(value, f"logit_bias.{name}", -100, 100)
        found[int(name)] = value
    return tuple(sorted(found.items()))


def stops_of(stop: str | list[str] | None, field: str) -> tuple[str, ...]:
    """The stop sequences in `field`, each once. Raises PublicError 400."""
    stops = [stop] if isinstance(stop, str) else stop or []
    if len(stops) > MAX_STOPS:
        raise invalid(f"`{field}` may have {MAX_STOPS} sequences, not {len(stops)}.", param=field)
    for index, text in enumerate(stops):
        if not 0 < len(text) <= MAX_STOP_CHARACTERS:
            param = field if isinstance(stop, str) else f"{field}[{index}]"
            raise invalid(f"`{param}` must have 1 to {MAX_STOP_CHARACTERS} characters.", param=param)
    return tuple(dict.fromkeys(stops))

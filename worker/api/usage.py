"""Token counts as OpenAI's formats say them."""

from typing import Any

from worker.text.events import Usage


def usage_object(usage: Usage) -> dict[str, Any]:
    """Source: OpenAI's API reference, "CompletionUsage".

    Rejected tokens are told where there was a draft, and are no completion tokens.
    """
    details = {"reasoning_tokens": usage.reasoning}
    if usage.proposed:
        details["accepted_prediction_tokens"] = usage.accepted
        details["rejected_prediction_tokens"] = usage.proposed - usage.accepted
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": details,
    }

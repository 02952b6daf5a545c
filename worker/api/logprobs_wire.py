"""Log probabilities as OpenAI's chat and Responses word them: one object for each token.

Source: OpenAI's API reference, "The chat completion object" and "The response object".
"""

from typing import Any, Final

from worker.text.logprobs import Likelihood, TokenLikelihood, spelled

UNLIKELY: Final = -9999.0
"""JSON has no infinity; OpenAI says that this stands for it."""


def token_object(token: TokenLikelihood) -> dict[str, Any]:
    """The token that was said, and what else could have been."""
    return {**_likelihood(token), "top_logprobs": [_likelihood(other) for other in token.best]}


def _likelihood(token: Likelihood) -> dict[str, Any]:
    text = token.text
    return {
        "token": spelled(token.token) if text is None else text,
        "logprob": max(token.logprob, UNLIKELY),
        "bytes": list(token.token),
    }

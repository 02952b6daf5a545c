"""Tokens to reply events: detokenising, stop sequences, log probabilities, counting."""

from collections.abc import Collection, Sequence
from functools import partial

from worker.text.detokenize import Detokenizer
from worker.text.events import Finished, FinishReason, ReplyEvent, TextDelta, Usage
from worker.text.logprobs import PendingLikelihoods, Scored, TokenTexts
from worker.text.stops import Stops


class Assembler:
    """The text side of one reply. It sees every token once, in order, and is done after `Finished`."""

    __slots__ = (
        "_detokenizer",
        "_likelihoods",
        "_min_tokens",
        "_prompt_tokens",
        "_stop_tokens",
        "_stops",
        "_texts",
        "cached_tokens",
        "completion_tokens",
    )

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str],
        *,
        prompt_tokens: int,
        cached_tokens: int = 0,
        min_tokens: int = 0,
        stop_tokens: Collection[int] = (),
        texts: TokenTexts | None = None,
    ) -> None:
        """`texts` are for the log probabilities, if the request asks for them."""
        self._detokenizer = detokenizer
        self._stops = Stops(stops)
        self._prompt_tokens = prompt_tokens
        self.cached_tokens = cached_tokens
        """Tokens of the prompt that needed no computing."""
        self._min_tokens = min_tokens
        self._stop_tokens = stop_tokens
        self._texts = texts
        self._likelihoods = PendingLikelihoods()
        self.completion_tokens = 0

    def push(self, token: int, finish: FinishReason | None, scored: Scored | None = None) -> list[ReplyEvent]:
        """The events that `token` brings.

        `finish` is the engine's: "stop" when the token is an end token, which has no text; "length" when it
        is the last one allowed. `scored` is the engine's too, for a request that asks for it.
        """
        self.completion_tokens += 1
        text = "" if finish == "stop" else self._detokenizer.push(token)
        if scored is not None and self._texts is not None and finish != "stop":
            self._likelihoods.push(text, partial(self._texts.likelihood, scored, token))
        # Sequences that come before the answer may end are part of it.
        early = self.completion_tokens < self._min_tokens
        shown, stop = (text, None) if early else self._stops.push(text)
        if stop is None and finish is not None:
            more, stop = self._stops.push(self._detokenizer.flush())
            shown += more + self._stops.flush()
        events: list[ReplyEvent] = []
        if shown:
            events.append(TextDelta(shown, self._likelihoods.show(shown)))
        if stop is not None:
            events.append(Finished("stop", self._usage(), stop))
        elif finish is not None:
            by_request = finish == "stop" and token in self._stop_tokens
            events.append(Finished(finish, self._usage(), token if by_request else None))
        return events

    def _usage(self) -> Usage:
        return Usage(self._prompt_tokens, self.completion_tokens, self.cached_tokens)

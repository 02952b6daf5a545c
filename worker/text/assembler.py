"""Tokens to reply events: detokenising, markup, stop sequences, log probabilities, counting."""

from collections.abc import Callable, Collection, Sequence
from functools import partial

from worker.text.detokenize import Detokenizer
from worker.text.dialect import Splitter
from worker.text.events import Finished, FinishReason, ReplyEnding, ReplyEvent, TextDelta, Usage
from worker.text.logprobs import PendingLikelihoods, Scored, TokenLikelihood, TokenTexts
from worker.text.pieces import CallEnded, Content, Piece
from worker.text.stops import Stops


class Assembler:
    """The text side of one reply. It sees every token once, in order, and is done after `Finished`."""

    __slots__ = (
        "_calls",
        "_detokenizer",
        "_likelihoods",
        "_min_tokens",
        "_one_call",
        "_prompt_tokens",
        "_splitter",
        "_stop_tokens",
        "_stops",
        "_texts",
        "accepted_tokens",
        "cached_tokens",
        "completion_tokens",
        "proposed_tokens",
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
        splitter: Splitter | None = None,
        one_call: bool = False,
    ) -> None:
        """`texts` are for the log probabilities, if the request asks for them.

        `splitter` takes the model's markup apart; without one all text is the answer. With `one_call` the
        reply ends with the first tool call. Stop sequences are looked for in the answer, not in thinking and
        calls.
        """
        self._detokenizer = detokenizer
        self._stops = Stops(stops)
        self._prompt_tokens = prompt_tokens
        self.cached_tokens = cached_tokens
        """Tokens of the prompt that needed no computing."""
        self._min_tokens = min_tokens
        self._stop_tokens = stop_tokens
        self._texts = texts
        self._splitter = splitter
        self._one_call = one_call
        self._calls = 0
        self._likelihoods = PendingLikelihoods()
        self.completion_tokens = 0
        self.proposed_tokens = 0
        """By the draft; `accepted_tokens` of them are in the answer."""
        self.accepted_tokens = 0

    def push(self, token: int, finish: FinishReason | None, scored: Scored | None = None) -> list[ReplyEvent]:
        """The events that `token` brings.

        `finish` is the engine's: "stop" when the token is an end token, which has no text; "length" when it
        is the last one allowed. `scored` is the engine's too, for a request that asks for it.
        """
        self.completion_tokens += 1
        text = "" if finish == "stop" else self._detokenizer.push(token)
        thought = self._splitter is not None and self._splitter.thinking
        pieces = self._split(token, text)
        if scored is not None and self._texts is not None and finish != "stop":
            entry = partial(self._texts.likelihood, scored, token)
            self._note_likelihood(pieces, entry, silent=thought and not pieces)
        events: list[ReplyEvent] = []
        # Sequences that come before the answer may end are part of it.
        stop = self._say(pieces, events, stops=self.completion_tokens >= self._min_tokens)
        if stop is not None or (self._one_call and self._calls > 0):
            events.append(Finished(self._ending("stop"), self._usage(), stop))
        elif finish is not None:
            self._end(finish, events, token if finish == "stop" and token in self._stop_tokens else None)
        return events

    def cut(self) -> list[ReplyEvent]:
        """The events that end the reply after the last token that came, as if no more were allowed."""
        events: list[ReplyEvent] = []
        self._end("length", events, None)
        return events

    def _end(self, finish: FinishReason, events: list[ReplyEvent], token: int | None) -> None:
        """Say what was held back, and that it is over; `token` is one of the request's that ended it."""
        stop = self._say(self._rest(cut=finish == "length"), events)
        if stop is None:
            self._show(self._stops.flush(), events)
            events.append(Finished(self._ending(finish), self._usage(), token))
        else:
            events.append(Finished(self._ending("stop"), self._usage(), stop))

    def _split(self, token: int, text: str) -> list[Piece]:
        if self._splitter is not None:
            return self._splitter.push(token, text)
        return [Content(text)] if text else []

    def _rest(self, *, cut: bool) -> list[Piece]:
        """What is left when no token follows."""
        text = self._detokenizer.flush()
        if self._splitter is not None:
            return [*self._splitter.push_text(text), *self._splitter.finish(cut=cut)]
        return [Content(text)] if text else []

    def _note_likelihood(
        self, pieces: Sequence[Piece], entry: Callable[[int], TokenLikelihood], *, silent: bool
    ) -> None:
        """Only tokens of the answer have one, not those of thinking and calls; a `silent` one is of these."""
        answer = [piece for piece in pieces if isinstance(piece, Content)]
        if len(answer) == len(pieces) and not silent:
            self._likelihoods.push("".join([piece.text for piece in answer]), entry)

    def _say(self, pieces: Sequence[Piece], events: list[ReplyEvent], *, stops: bool = True) -> str | None:
        """Turn pieces into events, up to a stop sequence, which is returned, or the last call wanted."""
        for piece in pieces:
            if isinstance(piece, Content):
                shown, stop = self._stops.push(piece.text) if stops else (piece.text, None)
                self._show(shown, events, flagged=piece.flagged)
                if stop is not None:
                    return stop
                continue
            self._show(self._stops.flush(), events)
            self._likelihoods.drop()
            events.append(piece)
            if isinstance(piece, CallEnded):
                self._calls += 1
                if self._one_call:
                    return None
        return None

    def _show(self, text: str, events: list[ReplyEvent], *, flagged: bool = False) -> None:
        if not text:
            return
        likelihoods = self._likelihoods.show(text)
        last = events[-1] if events else None
        if isinstance(last, TextDelta) and last.flagged == flagged:
            events[-1] = TextDelta(last.text + text, last.logprobs + likelihoods, flagged)
        else:
            events.append(TextDelta(text, likelihoods, flagged))

    def _ending(self, reason: FinishReason) -> ReplyEnding:
        return "tool_calls" if reason == "stop" and self._calls else reason

    def _usage(self) -> Usage:
        reasoning = 0 if self._splitter is None else self._splitter.reasoning_tokens
        return Usage(
            self._prompt_tokens,
            self.completion_tokens,
            self.cached_tokens,
            reasoning,
            self.proposed_tokens,
            self.accepted_tokens,
        )

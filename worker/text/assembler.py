"""Tokens to reply events: detokenising, stop sequences, counting."""

from collections.abc import Sequence

from worker.text.detokenize import Detokenizer
from worker.text.events import Finished, FinishReason, ReplyEvent, TextDelta, Usage
from worker.text.stops import Stops


class Assembler:
    """The text side of one reply. It sees every token once, in order, and is done after `Finished`."""

    __slots__ = ("_cached", "_detokenizer", "_prompt_tokens", "_stops", "completion_tokens")

    def __init__(
        self, detokenizer: Detokenizer, stops: Sequence[str], *, prompt_tokens: int, cached_tokens: int = 0
    ) -> None:
        self._detokenizer = detokenizer
        self._stops = Stops(stops)
        self._prompt_tokens = prompt_tokens
        self._cached = cached_tokens
        self.completion_tokens = 0

    def push(self, token: int, finish: FinishReason | None) -> list[ReplyEvent]:
        """The events that `token` brings.

        `finish` is the engine's: "stop" when the token is an end token, which has no text; "length" when it
        is the last one allowed.
        """
        self.completion_tokens += 1
        text = "" if finish == "stop" else self._detokenizer.push(token)
        shown, stop = self._stops.push(text)
        if stop is None and finish is not None:
            more, stop = self._stops.push(self._detokenizer.flush())
            shown += more + self._stops.flush()
        events: list[ReplyEvent] = [TextDelta(shown)] if shown else []
        if stop is not None:
            events.append(Finished("stop", self._usage(), stop))
        elif finish is not None:
            events.append(Finished(finish, self._usage()))
        return events

    def _usage(self) -> Usage:
        return Usage(self._prompt_tokens, self.completion_tokens, self._cached)

"""A reply, read by the parser of its call syntax, and the pieces that the parser says it is made of."""

import re
from collections.abc import Callable, Sequence

import msgspec

from worker.text.pieces import (
    CallArguments,
    CallBegan,
    CallCut,
    CallEnded,
    CallVoided,
    Content,
    Piece,
    Reasoning,
)
from worker.text.sentinels import Sentinels
from worker.text.toolcalls.source import SPACE, Malformed, NotACall, Source, Steps, partial
from worker.text.toolcalls.tools import Tools


class Marks(msgspec.Struct, frozen=True):
    """Markers that may stand in the answer beside calls, as parsers read them."""

    think_start: str | None = None
    think_end: str | None = None
    dropped: tuple[str, ...] = ()
    """They only structure the reply and say nothing."""


class Reader(Source):
    """What a parser reads from and writes to. `new_id` makes the id of a call.

    Thinking is taken care of here, wherever content is read, because inside a call its markers are text.
    `interrupts` are sentinel tokens that end thinking as well: models forget to close it before a call.
    """

    def __init__(
        self,
        sentinels: Sentinels,
        tools: Tools = Tools(),  # noqa: B008  # it is never changed
        new_id: Callable[[], str] = str,
        *,
        marks: Marks = Marks(),  # noqa: B008  # it is frozen
        interrupts: tuple[str, ...] = (),
        forced: bool = False,
    ) -> None:
        """With `forced` a call must come, so what looks like one is one."""
        self.tools = tools
        self.thinking = False
        """Whether the text that comes now is reasoning."""
        super().__init__(sentinels)
        self._new_id = new_id
        self._marks = marks
        self._interrupts = interrupts
        self.forced = forced
        self._out: list[Piece] = []
        self._spaces = ""  # held back: dropped when a call follows
        self._said = False
        self._reasoned = False
        self._calls = 0
        self._call_open = False
        self._skip_spaces = False
        self._flagging = False
        self._tentative = False
        self.called = False
        """Whether the last attempt at a call was one."""

    def collect(self) -> list[Piece]:
        """What the parser said since the last time."""
        out, self._out = self._out, []
        return out

    def settle(self, *, cut: bool) -> None:
        """Say what is to be said of text that the parser can't finish. `cut` is by the token limit."""
        if self._flagging:
            self._flag(self._text)
        elif self.thinking:
            self.reasoning(self._text.rstrip(SPACE))
        elif self._kept is None:
            self.content(self._text)
        elif self._tentative:
            self._kept.append(self._text)
            self._release()
        elif cut:
            if self._call_open or "".join((*self._kept, self._text)).strip(SPACE):
                self._out.append(CallCut(self._calls - 1 if self._call_open else None))
        else:
            self._kept.append(self._text)
            self._give_up()
        self._text = ""
        self._flush_spaces()

    def content(self, text: str) -> None:
        """Text of the answer. White space is held back until it is known that no call follows."""
        text = self._sentinels.drop(text)
        if self._skip_spaces:
            text = text.lstrip(SPACE)
        if not text:
            return
        self._skip_spaces = False
        bare = text.rstrip(SPACE)
        if bare:
            self._said = True
            self._out.append(Content(self._spaces + bare))
            self._spaces = ""
        self._spaces += text[len(bare) :]

    def reasoning(self, text: str) -> None:
        text = self._sentinels.drop(text)
        if text:
            self._reasoned = True
            self._out.append(Reasoning(text))

    def content_start(self) -> Steps[None]:
        """Wait for the first of the answer, past white space and thinking."""
        marks = (self._marks.think_start, self._marks.think_end, *self._marks.dropped)
        known = [mark for mark in marks if mark]
        while True:
            yield from self.space()
            mark = (yield from self.accept(*known)) if known else None
            if mark is None:
                return
            if mark == self._marks.think_start:
                yield from self.think_marked()

    def content_until(self, *starts: str) -> Steps[str]:
        """Say everything before the first of `starts`; the start is left where it is. Without any, all."""
        marks = self._marks
        thinking = tuple(mark for mark in (marks.think_start, marks.think_end) if mark)
        wanted = (*starts, *thinking, *marks.dropped)
        if not wanted:
            yield from self._all_content()
        pattern = re.compile("|".join(map(re.escape, wanted)))
        while True:
            match = pattern.search(self._text)
            if not match:
                self.content(self.take(len(self._text) - partial(self._text, wanted)))
                yield from self.more()
                continue
            self.content(self.take(match.start()))
            if match[0] in starts:
                return match[0]
            self.take(len(match[0]))
            if match[0] == marks.think_start:
                yield from self.think_marked()

    def _all_content(self) -> Steps[None]:
        while True:
            self._spaces = self._sentinels.drop(self.take(len(self._text)))
            self._flush_spaces()
            yield from self.more()

    def think(self, *ends: str, back: Sequence[str] = ()) -> Steps[None]:
        """Reasoning up to one of `ends`, without white space around it; one of `back` is left in place."""
        self.thinking = True
        yield from self.space()
        if self._reasoned and not (yield from self.next_is(*ends, *back)):
            self.reasoning("\n\n")
        _, end = yield from self.stream_until((*ends, *back), self.reasoning, hold=SPACE)
        if end in back:
            self.give_back(end)
        self.thinking = False
        self._skip_spaces = True

    def think_marked(self) -> Steps[None]:
        assert self._marks.think_end is not None
        yield from self.think(self._marks.think_end, back=self._interrupts)

    def paragraph(self, *ends: str, back: Sequence[str] = ()) -> Steps[None]:
        """Content up to one of `ends`, apart from what was said before; one of `back` is left in place."""
        if self._said:
            self._spaces = "\n\n"
        self._skip_spaces = True
        _, end = yield from self.stream_until((*ends, *back), self.content)
        if end in back:
            self.give_back(end)
        self._spaces = ""

    def begin_markup(self) -> None:
        """From here on text is markup until `end_markup`: kept, to be shown if it does not parse."""
        self._kept = []

    def end_markup(self) -> None:
        self._kept = None

    def begin_call(self, name: str, call_id: str | None = None) -> None:
        if not name:
            raise Malformed("a call without a name")
        self._spaces = ""
        self._out.append(CallBegan(self._calls, call_id or self._new_id(), self.spell(name)))
        self._calls += 1
        self._call_open = True
        self._tentative = False

    def arguments(self, delta: str) -> None:
        if delta:
            self._out.append(CallArguments(self._calls - 1, delta))

    def end_call(self) -> None:
        self._out.append(CallEnded(self._calls - 1))
        self._call_open = False
        self._skip_spaces = True
        # Its text is accounted for; only what follows may still have to be shown.
        self._kept = []

    def attempt(self, body: Steps[None], *resume: str, tentative: bool = False) -> Steps[None]:
        """Run a parser of markup. What does not parse is flagged, up to and with the first of `resume`.

        What looks `tentative` like a call is content as long as no call has begun.
        """
        self.begin_markup()
        self._tentative = tentative and not self.forced
        self.called = False
        try:
            yield from body
            self.called = True
        except NotACall:
            self._release()
        except Malformed:
            if self._tentative:
                self._release()
            else:
                self._give_up()
                yield from self._flag_until(resume)
        self.end_markup()

    def _flag_until(self, resume: Sequence[str]) -> Steps[None]:
        if resume:
            self._flagging = True
            _, end = yield from self.stream_until(resume, self._flag)
            self._flag(end)
            self._flagging = False

    def _release(self) -> None:
        text, self._kept = "".join(self._kept or ()), None
        self.content(text)

    def _give_up(self) -> None:
        """Show the markup since its beginning, or since the last call that was complete, as it is."""
        if self._call_open:
            self._out.append(CallVoided(self._calls - 1))
            self._call_open = False
        text = "".join(self._kept or ())
        self._kept = []
        if text.strip(SPACE):
            self._flag(text)

    def _flag(self, text: str) -> None:
        if text:
            self._flush_spaces()
            self._skip_spaces = False
            self._out.append(Content(self.spell(text), flagged=True))

    def _flush_spaces(self) -> None:
        if self._spaces:
            self._out.append(Content(self._spaces))
            self._spaces = ""

"""Replies for the tests: their tokens, their pieces, and what a client makes of them."""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from worker.text.dialect import Dialect, Splitter
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
from worker.text.thinking import Thinking
from worker.text.toolcalls.family import Family

THINK = Thinking("<think>", "</think>")

TOOLS: tuple[dict[str, Any], ...] = tuple(
    {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": properties}},
    }
    for name, properties in (
        (
            "get_weather",
            {"city": {"type": "string"}, "days": {"type": "integer"}, "metric": {"type": "boolean"}},
        ),
        ("get_time", {}),
        ("write", {"path": {"type": "string"}, "lines": {"type": "array"}, "options": {"type": "object"}}),
    )
)


def dialect(family: type[Family], *, tokens: bool = True, thinking: Thinking | None = THINK) -> Dialect:
    """A dialect whose markers are tokens, or none of them."""
    atoms = (*family.markers, *(thinking.atoms if thinking else ()))
    vocabulary = dict(zip(dict.fromkeys(atoms), itertools.count(1000))) if tokens else {}
    return Dialect.of(vocabulary, family, thinking, lambda text: [0])


def tokenised(dialect: Dialect, text: str, cuts: Iterable[int] = ()) -> Iterator[tuple[int, str]]:
    """Tokens with their text: markers that are tokens each alone, the rest cut at `cuts` of the text."""
    known = dialect.sentinels.vocabulary
    places = set(cuts)
    pattern = re.compile("|".join(map(re.escape, sorted(known, key=len, reverse=True)))) if known else None
    at = start = 0
    while at < len(text):
        match = pattern.match(text, at) if pattern else None
        if (match or at in places) and at > start:
            yield 0, text[start:at]
            start = at
        if match:
            yield known[match[0]], ""
            at = start = match.end()
        else:
            at += 1
    if at > start:
        yield 0, text[start:]


def pieces_of(splitter: Splitter, tokens: Iterable[tuple[int, str]], *, cut: bool = False) -> list[Piece]:
    pieces = [piece for token, text in tokens for piece in splitter.push(token, text)]
    return joined([*pieces, *splitter.finish(cut=cut)])


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Neighbours of one kind as one piece."""
    out: list[Piece] = []
    for piece in pieces:
        match out[-1] if out else None, piece:
            case Content(before, flagged=old), Content(text, flagged=new) if old == new:
                out[-1] = Content(before + text, flagged=new)
            case Reasoning(before), Reasoning(text):
                out[-1] = Reasoning(before + text)
            case CallArguments(index, before), CallArguments(same, delta) if index == same:
                out[-1] = CallArguments(index, before + delta)
            case _:
                out.append(piece)
    return out


@dataclass
class Seen:
    """A reply as a client that keeps everything sees it."""

    content: str = ""
    flagged: str = ""
    reasoning: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    voided: int = 0
    cut: bool = False


def seen(pieces: Iterable[Piece]) -> Seen:
    """Also checks the order of pieces: calls count up and do not overlap."""
    view = Seen()
    name, arguments, open_index = "", "", None
    count = 0
    for piece in pieces:
        match piece:
            case Content(text, flagged):
                assert open_index is None
                if flagged:
                    view.flagged += text
                else:
                    view.content += text
            case Reasoning(text):
                view.reasoning += text
            case CallBegan(index, call_id, name):
                assert open_index is None and index == count
                open_index, arguments, count = index, "", count + 1
                view.ids.append(call_id)
            case CallArguments(index, delta):
                assert index == open_index and delta
                arguments += delta
            case CallEnded(index):
                assert index == open_index
                open_index = None
                view.calls.append((name, json.loads(arguments)))
                assert isinstance(view.calls[-1][1], dict)
            case CallVoided(index):
                assert index == open_index
                open_index = None
                view.voided += 1
            case CallCut(cut_index):
                assert cut_index == open_index
                open_index = None
                view.cut = True
    assert open_index is None
    return view


def read(
    dialect: Dialect,
    text: str,
    *,
    cuts: Iterable[int] = (),
    cut: bool = False,
    thinking: bool = False,
    tools: Sequence[Mapping[str, Any]] = TOOLS,
) -> Seen:
    return seen(
        pieces_of(splitter(dialect, tools, thinking=thinking), tokenised(dialect, text, cuts), cut=cut)
    )


def beginnings(dialect: Dialect, text: str) -> Iterator[str]:
    """Every beginning of the text that does not end inside a marker that is a token."""
    end = 0
    for token, shown in tokenised(dialect, text, range(len(text))):
        yield text[:end]
        end += len(shown) or next(
            len(m) for m, known in dialect.sentinels.vocabulary.items() if known == token
        )


def splitter(
    dialect: Dialect, tools: Sequence[Mapping[str, Any]] = TOOLS, *, thinking: bool = False
) -> Splitter:
    """With ids that count."""
    numbers = itertools.count()
    return dialect.splitter(tools, thinking=thinking, new_id=lambda: f"id-{next(numbers)}")

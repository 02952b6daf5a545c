"""Where a conversation's prompt may be cut, so that other prompts begin with the same tokens.

Found by rendering how other conversations would go on: what they have in common with this one is a prefix
worth keeping. Nothing depends on it but how much is found again.
"""

import msgspec

from shared.errors import PublicError
from worker.request import Message, Request
from worker.text.template import Template

_OTHER: Message = Message("user", "\u2063")


def boundaries(template: Template, request: Request, prompt: list[int]) -> tuple[int, ...]:
    """Lengths of prefixes of `prompt`, which `request` renders to: to the end of system prompt and turns."""
    text = template.render(request)
    systems = 0
    while systems < len(request.messages) and request.messages[systems].role in ("system", "developer"):
        systems += 1
    found = []
    if systems:
        common = _common(template, request, text, (*request.messages[:systems], _OTHER))
        found.append(_shared(template.encode(text[:common]), prompt))
    # The next turn as it will be: some templates write the past otherwise than the present.
    answered = (*request.messages, Message("assistant", "\u2063"), _OTHER)
    common = _common(template, request, text, answered)
    tail = template.encode(text[common:]) if common < len(text) else []
    length = len(prompt) - len(tail)
    if length > 0 and prompt[length:] == tail:
        found.append(length)
    return tuple(sorted({cut for cut in found if 0 < cut < len(prompt)}))


def prefix_to(template: Template, request: Request, prompt: list[int], turns: int) -> int:
    """How many tokens of `prompt`, which `request` renders to, its first `turns` messages are."""
    text = template.render(request)
    head = request.messages[:turns]
    answer = (Message("assistant", "\u2063"),) if head and head[-1].role in ("user", "tool") else ()
    common = _common(template, request, text, (*head, *answer, _OTHER))
    if common > len(text) // 2:
        # Its end is the shorter part to be made into tokens.
        tail = template.encode(text[common:]) if common < len(text) else []
        if prompt[len(prompt) - len(tail) :] == tail:
            return len(prompt) - len(tail)
    return _shared(template.encode(text[:common]), prompt)


def _common(template: Template, request: Request, text: str, messages: tuple[Message, ...]) -> int:
    try:
        other = template.render(msgspec.structs.replace(request, messages=messages))
    except PublicError:
        return 0
    if text.startswith(other) or other.startswith(text):
        return min(len(text), len(other))
    return next(index for index, (one, two) in enumerate(zip(text, other, strict=False)) if one != two)


def _shared(tokens: list[int], prompt: list[int]) -> int:
    length = 0
    for one, other in zip(tokens, prompt, strict=False):
        if one != other:
            break
        length += 1
    return length

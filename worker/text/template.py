"""A conversation to a prompt, by the model's own chat template.

Templates differ in what they put up with: some refuse several system messages, a system message that is not
the first, two turns of one role in a row, or any system message at all. A conversation that a template
refuses is reshaped, as little as needed, and tried again.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec
from jinja2 import TemplateSyntaxError

from shared.errors import PublicError, invalid
from shared.launch import RESERVED_ARGUMENTS
from worker.request import Message, Request

log = logging.getLogger(__name__)


class ChatTokenizer(Protocol):
    """What we need of mlx-lm's tokenizer wrapper."""

    has_chat_template: bool

    def apply_chat_template(self, messages: list[dict[str, Any]], **arguments: Any) -> Any: ...
    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]: ...


class Template:
    """Renders requests for one model. Thread-safe as far as the tokenizer is."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        self._tokenizer = tokenizer
        source = getattr(tokenizer, "chat_template", None)
        self._knows_developer = isinstance(source, str) and "developer" in source
        # Only gpt-oss's has this name for reasoning; it means something else in others.
        self._knows_thinking = isinstance(source, str) and "message.thinking" in source
        self._problem = "" if tokenizer.has_chat_template else "it has no chat template"

    def compile(self) -> None:
        """Have it compiled now, so that the first conversation need not wait for that."""
        if not self.usable:
            return
        try:
            self._tokenizer.apply_chat_template([{"role": "user", "content": ""}], tokenize=False)
        except TemplateSyntaxError as error:
            self._problem = f"its chat template is damaged (line {error.lineno}: {error.message})"
            log.warning("no chats: %s", self._problem)
        # It may refuse so short a conversation; then it is compiled as well.
        except Exception as error:
            log.debug("the chat template refuses a short conversation: %s", error)

    @property
    def usable(self) -> bool:
        return not self._problem

    def unusable(self, model: str) -> PublicError:
        """Why the model can't chat."""
        return PublicError(501, "unsupported", f"{model!r} can't chat: {self._problem}.")

    def render(self, request: Request) -> str:
        """The prompt's text. Raises PublicError 400 when the template refuses the conversation."""
        messages = list(request.messages)
        if not self._knows_developer:
            messages = [_with_role(m, "system") if m.role == "developer" else m for m in messages]
        first_refusal: Exception | None = None
        for shape in _shapes(messages):
            try:
                return self._apply(shape, request) + request.prefill
            # Templates are programs: they raise whatever their author or a wrong type made them raise.
            except Exception as refusal:
                first_refusal = first_refusal or refusal
        raise invalid(
            f"The model's chat template refuses this conversation: {_reason(first_refusal)}",
            param="messages",
            code="template_error",
        ) from first_refusal

    def encode(self, text: str) -> list[int]:
        """Tokens of rendered text; the template wrote the special tokens already."""
        tokens = self._tokenizer.encode(text, add_special_tokens=False)
        # Some templates write it although something before them did; models answer worse after two.
        begin = getattr(self._tokenizer, "bos_token_id", None)
        while begin is not None and tokens[:2] == [begin, begin]:
            del tokens[0]
        return tokens

    def _apply(self, messages: Sequence[Message], request: Request) -> str:
        text = self._tokenizer.apply_chat_template(
            [_as_template_wants(message, thinking=self._knows_thinking) for message in messages],
            **request.template_arguments,
            tools=list(request.tools) or None,
            add_generation_prompt=True,
            tokenize=False,
        )
        return str(text)


def check_arguments(arguments: dict[str, Any], param: str) -> None:
    """Raises PublicError 400 for a template argument that is not the client's to choose."""
    for name in arguments:
        if name in RESERVED_ARGUMENTS or not name.isidentifier():
            raise invalid(f"`{name}` can't be passed to the chat template.", param=f"{param}.{name}")


def _shapes(messages: list[Message]) -> Iterator[list[Message]]:
    """The conversation as it came, then reshaped ever further; only shapes that differ."""
    previous = messages
    yield messages
    if any(message.reasoning for message in messages):
        # gpt-oss's refuses reasoning beside what was said before a call.
        yield [msgspec.structs.replace(message, reasoning=None) for message in messages]
    steps: tuple[Callable[[list[Message]], list[Message]], ...] = (
        _systems_first,
        _joined_turns,
        _system_in_first_user_turn,
    )
    for step in steps:
        shaped = step(previous)
        if shaped != previous:
            yield shaped
        previous = shaped


def _systems_first(messages: list[Message]) -> list[Message]:
    """All system messages as one, in front."""
    systems = [m for m in messages if m.role in ("system", "developer")]
    if not systems:
        return messages
    text = "\n\n".join(m.content for m in systems if m.content)
    rest = [m for m in messages if m.role not in ("system", "developer")]
    return [Message("system", text), *rest] if text else rest


def _joined_turns(messages: list[Message]) -> list[Message]:
    """Turns of one role in a row as one turn; those with tool calls stay apart."""
    joined: list[Message] = []
    for message in messages:
        last = joined[-1] if joined else None
        plain = message.role in ("user", "assistant") and not message.tool_calls
        if last is not None and plain and last.role == message.role and not last.tool_calls:
            joined[-1] = msgspec.structs.replace(last, content=f"{last.content}\n\n{message.content}")
        else:
            joined.append(message)
    return joined


def _system_in_first_user_turn(messages: list[Message]) -> list[Message]:
    """The system message as the beginning of what the user says first."""
    if not messages or messages[0].role != "system":
        return messages
    system, *rest = messages
    for index, message in enumerate(rest):
        if message.role == "user":
            rest[index] = msgspec.structs.replace(message, content=f"{system.content}\n\n{message.content}")
            return rest
    return [_with_role(system, "user"), *rest]


def _with_role(message: Message, role: Any) -> Message:
    return msgspec.structs.replace(message, role=role)


def _as_template_wants(message: Message, *, thinking: bool) -> dict[str, Any]:
    """The shape that templates are written for: the API's own, with parsed arguments."""
    turn: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        turn["reasoning_content"] = message.reasoning
        turn["reasoning"] = message.reasoning
        if thinking:
            turn["thinking"] = message.reasoning
    if message.name is not None:
        turn["name"] = message.name
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        turn["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return turn


def _reason(error: Exception | None) -> str:
    """One line, of bounded length; a template's own sentence where it gave one."""
    text = " ".join(str(error).split())
    return text[:200] or type(error).__name__

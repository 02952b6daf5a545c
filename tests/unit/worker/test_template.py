"""Conversations through templates that are picky, each as real ones are."""

from typing import Any

import jinja2
import jinja2.sandbox
import pytest

from shared.errors import PublicError
from worker.request import Message, Request, ToolCall
from worker.text.template import Template, check_arguments

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
ONE_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)
ALTERNATING = (
    "{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)
TOOLS = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<{{ c.function.name }} {{ c.function.arguments.city }}>{% endfor %}"
    "{% endfor %}{% if tools %}{{ tools[0].function.name }}{% endif %}"
)


class Tokenizer:
    """mlx-lm's wrapper as far as templates go, over jinja as transformers sets it up."""

    has_chat_template = True

    def __init__(self, template: str) -> None:
        self.chat_template = template
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment()
        environment.globals["raise_exception"] = self._raise
        self._compiled = environment.from_string(template)

    @staticmethod
    def _raise(message: str) -> None:
        raise jinja2.TemplateError(message)

    def apply_chat_template(self, messages: list[dict[str, Any]], **arguments: Any) -> Any:
        assert arguments.pop("tokenize") is False
        return self._compiled.render(messages=messages, **arguments)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return list(text.encode())


def render(template: str, *messages: Message, **fields: Any) -> str:
    return Template(Tokenizer(template)).render(Request(messages, **fields))


SYSTEM, DEVELOPER = Message("system", "s"), Message("developer", "d")
USER, ANSWER = Message("user", "u"), Message("assistant", "a")


def test_what_the_template_accepts_is_not_reshaped() -> None:
    assert render(PLAIN, SYSTEM, USER, SYSTEM, USER) == "[system]s[user]u[system]s[user]u"


def test_developer_is_system_unless_the_template_knows_it() -> None:
    assert render(PLAIN, DEVELOPER, USER) == "[system]d[user]u"
    assert render(PLAIN + "{# developer #}", DEVELOPER, USER) == "[developer]d[user]u"


def test_several_system_messages_become_one_in_front() -> None:
    assert render(ONE_SYSTEM, SYSTEM, USER, DEVELOPER) == "[system]s\n\nd[user]u"


def test_an_empty_system_message_is_dropped_only_where_it_must_be() -> None:
    empty = Message("system", "")
    assert render(PLAIN, empty, USER) == "[system][user]u"
    assert render(ALTERNATING, empty, USER) == "[user]u"


def test_a_template_without_a_system_role_gets_it_in_the_first_user_turn() -> None:
    assert render(ALTERNATING, SYSTEM, USER, ANSWER, USER) == "[user]s\n\nu[assistant]a[user]u"


def test_turns_of_one_role_in_a_row_become_one() -> None:
    assert render(ALTERNATING, USER, USER, ANSWER, ANSWER, USER) == "[user]u\n\nu[assistant]a\n\na[user]u"


def test_a_system_message_alone_is_what_the_user_says() -> None:
    assert render(ALTERNATING, SYSTEM) == "[user]s"


def test_what_no_shape_makes_acceptable_is_a_400_with_the_templates_own_words() -> None:
    with pytest.raises(PublicError) as refusal:
        render(ALTERNATING, ANSWER, USER)
    assert (refusal.value.status, refusal.value.param) == (400, "messages")
    assert "must alternate" in refusal.value.message


@pytest.mark.parametrize("template", ["{{ messages[0].content.nope.nope }}", "{{ 1 // 0 }}", "{{ x() }}"])
def test_whatever_a_template_raises_is_a_400(template: str) -> None:
    with pytest.raises(PublicError) as refusal:
        render(template, USER)
    assert refusal.value.status == 400


def test_tools_and_earlier_calls_reach_the_template_parsed() -> None:
    call = Message("assistant", "", tool_calls=(ToolCall("weather", {"city": "Oslo"}, "1"),))
    tool = {"type": "function", "function": {"name": "weather"}}
    text = render(TOOLS, USER, call, Message("tool", "rain", tool_call_id="1"), tools=(tool,))
    assert text == "[user]u[assistant]<weather Oslo>[tool]rainweather"


def test_template_arguments_are_passed_on() -> None:
    template = PLAIN + "{{ enable_thinking }}{{ add_generation_prompt }}"
    assert render(template, USER, template_arguments={"enable_thinking": False}) == "[user]uFalseTrue"


@pytest.mark.parametrize(
    "name", ["chat_template", "tokenize", "tools", "add_generation_prompt", "not a name"]
)
def test_arguments_that_are_not_the_clients_are_refused(name: str) -> None:
    with pytest.raises(PublicError):
        check_arguments({name: 1}, "chat_template_kwargs")


@pytest.mark.parametrize(
    ("template", "text", "tokens"),
    [
        ("^{% for m in messages %}{{ m.content }}{% endfor %}", "a", "^a"),
        # A template that writes it, filled with a conversation that begins with it.
        ("^{% for m in messages %}{{ m.content }}{% endfor %}", "^a", "^a"),
        ("^^{% for m in messages %}{{ m.content }}{% endfor %}", "^^a", "^a"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "a^^a", "a^^a"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "a", "a"),
    ],
)
def test_a_doubled_beginning_is_made_one(template: str, text: str, tokens: str) -> None:
    """Models answer worse after two tokens that begin a text, and some templates write one too many."""

    class Beginning(Tokenizer):
        bos_token_id = ord("^")

        def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
            assert not add_special_tokens
            return list(text.encode())

    used = Template(Beginning(template))
    rendered = used.render(Request(messages=(Message("user", text),)))
    assert used.encode(rendered) == list(tokens.encode())

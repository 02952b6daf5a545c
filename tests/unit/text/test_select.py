"""The family of a model is the one that mlx-lm's parser for it reads, or one of those that mlx-lm lacks."""

import importlib
import json
import pkgutil
from typing import Any

import pytest

from tests.unit.text.replies import TOOLS, dialect, read
from tests.unit.text.samples import SAMPLES, Sample
from worker.text.toolcalls.deepseek import DeepSeek, DeepSeekV3
from worker.text.toolcalls.family import Family
from worker.text.toolcalls.harmony import Harmony
from worker.text.toolcalls.hermes import Hermes
from worker.text.toolcalls.invoke import DeepSeekMarkup
from worker.text.toolcalls.llama import LlamaJson, ToldJson
from worker.text.toolcalls.mistral import Mistral, MistralList
from worker.text.toolcalls.pythonic import BarePythonic
from worker.text.toolcalls.select import BY_PARSER, select_family
from worker.text.toolcalls.tools import Tools


def parser_of(module: str) -> Any:
    return importlib.import_module(f"mlx_lm.tool_parsers.{module}")


class Tokenizer:
    def __init__(self, *vocabulary: str, parser: str | None = None) -> None:
        self.tool_parser = parser_of(parser).parse_tool_call if parser else None
        self._vocabulary = {token: number for number, token in enumerate(vocabulary)}

    def get_vocab(self) -> dict[str, int]:
        return self._vocabulary


def test_every_parser_of_mlx_lm_has_its_family() -> None:
    package = importlib.import_module("mlx_lm.tool_parsers")
    assert {module.name for module in pkgutil.iter_modules(package.__path__)} == set(BY_PARSER)
    for name, family in BY_PARSER.items():
        assert select_family(Tokenizer("[ARGS]", parser=name), "") is family


def test_our_markers_are_mlx_lms() -> None:
    for name, family in BY_PARSER.items():
        start = parser_of(name).tool_call_start
        assert any(start in sample.text for sample in SAMPLES if issubclass(sample.family, family))


@pytest.mark.parametrize(
    ("vocabulary", "template", "family"),
    [
        (("<|channel|>", "<|message|>", "<|call|>"), "", Harmony),
        (("<｜tool▁calls▁begin｜>",), "'<｜tool▁sep｜>' + name + '\\n```json\\n'", DeepSeekV3),
        (("<｜tool▁calls▁begin｜>",), "name + '<｜tool▁sep｜>' + arguments", DeepSeek),
        (("｜DSML｜",), "", DeepSeekMarkup),
        (
            ("<|python_tag|>",),
            '{"name": function name, "parameters": dictionary of argument name and',
            LlamaJson,
        ),
        (("<|python_start|>",), "", BarePythonic),
        ((), "<tool_call>\n{{ call }}", Hermes),
        ((), "{{ messages }}", ToldJson),
    ],
)
def test_families_that_mlx_lm_lacks(vocabulary: tuple[str, ...], template: str, family: type[Family]) -> None:
    assert select_family(Tokenizer(*vocabulary), template) is family


def test_older_mistral_models_write_lists() -> None:
    assert select_family(Tokenizer("[TOOL_CALLS]", parser="mistral"), "") is MistralList
    assert select_family(Tokenizer("[TOOL_CALLS]", "[ARGS]", parser="mistral"), "") is Mistral


MODULES = {family: name for name, family in BY_PARSER.items()} | {MistralList: "mistral"}
# Replies that mlx-lm's parsers read otherwise than they were meant, or not at all.
BEYOND = (
    "CDATA", "[CALL_ID]", "Yes</parameter>", "other.name", '[{"name": "get_time"', "{deep:", '"{\\"city',
    "a\nb \\u",
)  # fmt: skip
READ = [s for s in SAMPLES if s.family in MODULES and not any(text in s.text for text in BEYOND)]


@pytest.mark.parametrize("sample", READ, ids=lambda sample: sample.family.__name__)
def test_we_read_what_mlx_lms_parser_reads(sample: Sample) -> None:
    module = parser_of(MODULES[sample.family])
    calls: list[tuple[str, Any]] = []
    rest = sample.text
    while module.tool_call_start in rest:
        rest = rest.partition(module.tool_call_start)[2]
        body, _, rest = rest.partition(module.tool_call_end) if module.tool_call_end else (rest, "", "")
        parsed = module.parse_tool_call(body, list(TOOLS))
        several = parsed if isinstance(parsed, list) else [parsed]
        calls += [(call["name"], call.get("arguments", {})) for call in several]
    ours = read(dialect(sample.family), sample.text).calls
    assert json.dumps(ours) == json.dumps(calls)


def test_a_model_that_knows_no_tools_is_told_of_them() -> None:
    told = dialect(ToldJson).family.instructions(Tools(TOOLS).all)
    assert told is not None and '"get_weather"' in told
    assert dialect(Hermes).family.instructions(Tools(TOOLS).all) is None

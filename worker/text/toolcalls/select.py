"""Which call syntax a model writes, from its tokenizer and its chat template."""

from typing import Any, Final

from worker.text.toolcalls.deepseek import DeepSeek, DeepSeekV3
from worker.text.toolcalls.family import Family
from worker.text.toolcalls.gemma import FunctionGemma, Gemma4
from worker.text.toolcalls.glm import Glm, LongCat
from worker.text.toolcalls.harmony import Harmony
from worker.text.toolcalls.hermes import Hermes
from worker.text.toolcalls.invoke import DeepSeekMarkup, MiniCpm, MiniMax
from worker.text.toolcalls.kimi import KimiK2, KimiK3
from worker.text.toolcalls.llama import LlamaJson, ToldJson
from worker.text.toolcalls.mistral import Mistral, MistralList
from worker.text.toolcalls.muse import Muse
from worker.text.toolcalls.pythonic import BarePythonic, Pythonic
from worker.text.toolcalls.qwen_coder import QwenCoder

BY_PARSER: Final[dict[str, type[Family]]] = {
    "function_gemma": FunctionGemma,
    "gemma4": Gemma4,
    "glm47": Glm,
    "json_tools": Hermes,
    "kimi_k2": KimiK2,
    "kimi_k3": KimiK3,
    "laguna": Glm,
    "longcat": LongCat,
    "minicpm5": MiniCpm,
    "minimax_m2": MiniMax,
    "mistral": Mistral,
    "muse_spark": Muse,
    "pythonic": Pythonic,
    "qwen3_coder": QwenCoder,
}
"""Our family for each of mlx-lm's tool parsers, by the name of its module."""


def select_family(tokenizer: Any, template: str) -> type[Family]:
    """The family of a model. `tokenizer` is mlx-lm's wrapper, `template` its chat template's source.

    Where mlx-lm has a parser for the model, its choice counts: it also reads what the checkpoint declares.
    """
    vocabulary = tokenizer.get_vocab()
    if all(token in vocabulary for token in ("<|channel|>", "<|message|>", "<|call|>")):
        return Harmony
    parser = getattr(tokenizer, "tool_parser", None)
    if parser is not None:
        family = BY_PARSER.get(parser.__module__.rpartition(".")[2])
        if family is Mistral and "[ARGS]" not in vocabulary and "[ARGS]" not in template:
            return MistralList
        if family is not None:
            return family
    return _lacking(vocabulary, template)


def _lacking(vocabulary: dict[str, int], template: str) -> type[Family]:
    """Families that mlx-lm has no parser for."""
    if "｜DSML｜" in vocabulary or "｜DSML｜" in template:
        return DeepSeekMarkup
    if "<｜tool▁calls▁begin｜>" in vocabulary or "<｜tool▁calls▁begin｜>" in template:
        return DeepSeekV3 if "```json" in template else DeepSeek
    if "[func_name1(params_name1" in template or "<|python_start|>" in vocabulary:
        return BarePythonic
    if "<tool_call>" in template:
        return Hermes
    if '"parameters": dictionary of argument name' in template or "<|python_tag|>" in template:
        return LlamaJson
    return ToldJson

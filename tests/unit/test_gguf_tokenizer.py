"""The tokenizer that is rebuilt cuts and merges text as the original does."""

import io
import json
from pathlib import Path

import pytest
import sentencepiece
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from shared.importing import ImportEvent
from tests.fixtures.gguf_files import GgufFile, tiny_gguf
from worker.gguf.convert import import_gguf

TEXTS = [
    "",
    " ",
    "   two  spaces   ",
    "the other thing",
    "don't I'LL we've",
    "line\n\n\tbreak\r\n end",
    "123456 7,890.12",
    "naïve café ﬁ İstanbul",
    "日本語のテキスト、中文",
    "👍 👩‍👩‍👧‍👦 🇨🇭",
    "\x00\x01 zero \x7f",
    "\u200b\ufeff\u00a0odd spaces\u3000",
    "def f(x):\n    return x**2  # ok",
    "a" * 300,
]


def silent(event: ImportEvent) -> None:
    pass


def tokenizer_of(folder: Path) -> PreTrainedTokenizerBase:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    return tokenizer


def imported(tmp_path: Path, **values: object) -> PreTrainedTokenizerBase:
    def change(file: GgufFile) -> None:
        file.values.update({f"tokenizer.ggml.{key}": value for key, value in values.items()})

    import_gguf(tiny_gguf(tmp_path / "a.gguf", change=change), tmp_path / "model", silent)
    return tokenizer_of(tmp_path / "model")


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama-bpe", "tekken", "smaug-bpe", "starcoder"])
def test_any_text_comes_back(tmp_path: Path, pre: str) -> None:
    tokenizer = imported(tmp_path, pre=pre)
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("the", add_special_tokens=False) == [260]


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["1", "2", "3", "4", "Ġ", "1", "2"]),
        ("gpt-2", ["123", "4", "Ġ", "12"]),
        ("llama-bpe", ["123", "4", "Ġ", "12"]),
        ("qwen2", ["1", "2", "3", "4", "Ġ", "1", "2"]),
        ("tekken", ["1", "2", "3", "4", "Ġ", "1", "2"]),
    ],
)
def test_digits_are_cut_as_the_family_does(tmp_path: Path, pre: str, pieces: list[str]) -> None:
    def change(file: GgufFile) -> None:
        tokens = file.values["tokenizer.ggml.tokens"]
        assert isinstance(tokens, list)
        tokens[259:261] = ["12", "123"]
        file.values["tokenizer.ggml.merges"] = ["1 2", "12 3"]
        file.values["tokenizer.ggml.pre"] = pre

    import_gguf(tiny_gguf(tmp_path / "a.gguf", change=change), tmp_path / "model", silent)
    tokenizer = tokenizer_of(tmp_path / "model")
    ids = tokenizer.encode("1234 12", add_special_tokens=False)
    assert tokenizer.convert_ids_to_tokens(ids) == pieces


def test_special_tokens_and_template_are_the_file_s(tmp_path: Path) -> None:
    tokenizer = imported(tmp_path, unknown_token_id=256, padding_token_id=4294967295)
    assert tokenizer.eos_token == "<|im_end|>" and tokenizer.bos_token == "<|endoftext|>"
    assert tokenizer.pad_token is None
    assert tokenizer.encode("<|im_start|>a<|im_end|>", add_special_tokens=False) == [
        257,
        ord("a") - 33 + 33,
        258,
    ]
    assert tokenizer.decode([257, 97, 258], skip_special_tokens=True) == "a"
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False)
    assert rendered == "<|im_start|>user\nx<|im_end|>\n"
    generation = json.loads((tmp_path / "model" / "generation_config.json").read_text())
    # `<|endoftext|>` ends a turn too, although the file names one token only.
    assert generation == {"eos_token_id": [258, 256], "bos_token_id": 256}


@pytest.mark.parametrize(
    ("values", "before", "after"),
    [
        ({}, [], []),
        ({"add_bos_token": True}, [256], []),
        ({"add_bos_token": True, "add_eos_token": True}, [256], [258]),
        ({"pre": "llama-bpe"}, [256], []),
        ({"pre": "llama-bpe", "add_bos_token": False}, [], []),
    ],
)
def test_what_is_put_around_a_text(
    tmp_path: Path, values: dict[str, object], before: list[int], after: list[int]
) -> None:
    tokenizer = imported(tmp_path, **values)
    assert tokenizer.encode("a") == [*before, 97, *after]
    assert tokenizer.encode("a", add_special_tokens=False) == [97]


def test_sampling_advice_becomes_the_generation_config(tmp_path: Path) -> None:
    def change(file: GgufFile) -> None:
        file.values.update({"general.sampling.temp": 0.5, "general.sampling.top_k": 20})

    import_gguf(tiny_gguf(tmp_path / "a.gguf", change=change), tmp_path / "model", silent)
    generation = json.loads((tmp_path / "model" / "generation_config.json").read_text())
    assert generation["temperature"] == 0.5 and generation["top_k"] == 20


@pytest.fixture(scope="module")
def sentencepiece_model() -> sentencepiece.SentencePieceProcessor:
    # Only ASCII is learned; all else falls back to bytes.
    corpus = [text for text in TEXTS if text.strip() and text.isascii()] * 20
    corpus += ["the thing that they think is there"] * 50
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus),
        model_writer=written,
        model_type="bpe",
        vocab_size=340,
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())


def with_sentencepiece(model: sentencepiece.SentencePieceProcessor, file: GgufFile) -> None:
    import numpy as np

    size = model.get_piece_size()
    kinds = [
        6 if model.is_byte(n) else 2 if model.is_unknown(n) else 3 if model.is_control(n) else 1
        for n in range(size)
    ]
    for name in ("token_embd.weight", "output.weight"):
        file.tensors[name] = np.zeros((size, 64), np.float32)
    file.values = {key: value for key, value in file.values.items() if not key.startswith("tokenizer")}
    file.values |= {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(n) for n in range(size)],
        "tokenizer.ggml.scores": [float(model.get_score(n)) for n in range(size)],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
    }


def test_sentencepiece_gives_the_same_tokens(
    tmp_path: Path, sentencepiece_model: sentencepiece.SentencePieceProcessor
) -> None:
    source = tiny_gguf(tmp_path / "a.gguf", change=lambda file: with_sentencepiece(sentencepiece_model, file))
    import_gguf(source, tmp_path / "model", silent)
    tokenizer = tokenizer_of(tmp_path / "model")
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == sentencepiece_model.encode(text), text
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("a")[0] == sentencepiece_model.bos_id()


def test_sentencepiece_without_a_space_in_front(
    tmp_path: Path, sentencepiece_model: sentencepiece.SentencePieceProcessor
) -> None:
    def change(file: GgufFile) -> None:
        with_sentencepiece(sentencepiece_model, file)
        file.values["tokenizer.ggml.add_space_prefix"] = False

    import_gguf(tiny_gguf(tmp_path / "a.gguf", change=change), tmp_path / "model", silent)
    tokenizer = tokenizer_of(tmp_path / "model")
    ids = tokenizer.encode("the thing", add_special_tokens=False)
    assert not str(tokenizer.convert_ids_to_tokens(ids)[0]).startswith("▁")
    assert tokenizer.decode(ids) == "the thing"

"""From a GGUF file's vocabulary to the tokenizer files of a model folder.

Two kinds: byte-level BPE with merges (`gpt2`), and SentencePiece BPE with scores (`llama`), whose merges
follow from the scores. How text is cut before the merges is not in the file, only its name
(`tokenizer.ggml.pre`), so a name that is not known is refused: cut differently, a prompt would silently
become other tokens.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from tokenizers import Tokenizer

from worker.gguf.errors import GgufError
from worker.gguf.header import Metadata

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]


class TokenKind(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class TokenizerFiles:
    """The three files, by their content."""

    tokenizer: dict[str, Json]
    configuration: dict[str, Json]
    generation: dict[str, Json]


@dataclass(frozen=True)
class _Vocabulary:
    tokens: list[str]
    kinds: list[float]
    bos: int | None
    eos: int | None
    unknown: int | None
    padding: int | None
    add_bos: bool
    add_eos: bool

    def text(self, token: int | None) -> str | None:
        return None if token is None else self.tokens[token]


@dataclass(frozen=True)
class _Cut:
    """How text is cut before merging. `whole_words`: a piece that is a token itself is never merged up."""

    stages: list[Json]
    whole_words: bool = False
    normalizer: Json = None


def _byte_level(*, use_regex: bool) -> dict[str, Json]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split(pattern: str) -> list[Json]:
    split: dict[str, Json] = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}
    return [{**split, "invert": False}, _byte_level(use_regex=False)]


# Sources: the tokenizer.json files published with each model family.
_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3: Final = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_SIGNS}|{_REST}"
_QWEN2: Final = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_SIGNS}|{_REST}"
_TEKKEN: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_REST}"
)
_DIGITS: Final[dict[str, Json]] = {"type": "Digits", "individual_digits": True}
_GPT2_CUT: Final = _Cut([_byte_level(use_regex=True)])
_DIGITS_CUT: Final = _Cut([_DIGITS, _byte_level(use_regex=True)])
_LLAMA3_CUT: Final = _Cut(_split(_LLAMA3), whole_words=True)
_QWEN2_CUT: Final = _Cut(_split(_QWEN2), normalizer={"type": "NFC"})
_CUTS: Final = {
    "gpt-2": _GPT2_CUT,
    "smollm": _DIGITS_CUT,
    "starcoder": _DIGITS_CUT,
    "refact": _DIGITS_CUT,
    "llama-bpe": _LLAMA3_CUT,
    "llama3": _LLAMA3_CUT,
    "llama-v3": _LLAMA3_CUT,
    "falcon3": _LLAMA3_CUT,
    "dbrx": _Cut(_split(_LLAMA3)),
    "smaug-bpe": _Cut(_split(_LLAMA3)),
    "tekken": _Cut(_split(_TEKKEN), whole_words=True),
    "qwen2": _QWEN2_CUT,
    "deepseek-r1-qwen": _QWEN2_CUT,
}
_BOS_BY_DEFAULT: Final = {"llama-bpe", "llama3", "llama-v3", "falcon3", "tekken"}

# A chat model's own end of turn is often not the file's only eos token: a turn would never end.
_END_OF_TURN: Final = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
}


def build_tokenizer(metadata: Metadata, *, vocabulary: int, context: int) -> TokenizerFiles:
    """The tokenizer that `metadata` describes.

    `vocabulary` is the number of rows of the embeddings. Raises GgufError for a kind that is not known and
    for a vocabulary that makes no tokenizer.
    """
    model = metadata.text("tokenizer.ggml.model")
    if model == "gpt2":
        pre = metadata.text("tokenizer.ggml.pre")
        if pre not in _CUTS:
            named = (
                f"its way of cutting text, {pre!r}, is not known"
                if pre
                else "it does not say how it cuts text"
            )
            raise GgufError(f"the tokenizer can't be rebuilt: {named}. Known are {', '.join(sorted(_CUTS))}")
        words = _vocabulary(metadata, vocabulary, add_bos=pre in _BOS_BY_DEFAULT)
        tokenizer = _byte_level_bpe(metadata, words, _CUTS[pre])
    elif model == "llama":
        words = _vocabulary(metadata, vocabulary, add_bos=True)
        tokenizer = _sentencepiece(metadata, words)
    elif model is None:
        raise GgufError("the file holds no tokenizer")
    else:
        raise GgufError(
            f"the tokenizer is of the kind {model!r}; only byte-level BPE ('gpt2') and SentencePiece BPE "
            "('llama') can be rebuilt"
        )
    _check(tokenizer, words)
    configuration = _configuration(metadata, words, context)
    return TokenizerFiles(tokenizer, configuration, _generation(metadata, words))


def _vocabulary(metadata: Metadata, rows: int, *, add_bos: bool) -> _Vocabulary:
    tokens = metadata.texts("tokenizer.ggml.tokens")
    if not tokens:
        raise GgufError("the file holds no vocabulary (tokenizer.ggml.tokens)")
    if len(tokens) > rows:
        raise GgufError(f"the vocabulary has {len(tokens)} tokens, the embeddings only {rows}")
    if len(set(tokens)) != len(tokens):
        raise GgufError("the vocabulary holds a token twice")
    kinds = metadata.numbers("tokenizer.ggml.token_type") or [float(TokenKind.NORMAL)] * len(tokens)
    if len(kinds) != len(tokens):
        raise GgufError(f"the vocabulary has {len(tokens)} tokens and kinds for {len(kinds)}")

    def special(name: str) -> int | None:
        token = metadata.integer(f"tokenizer.ggml.{name}_token_id")
        # Converters write an id beyond the vocabulary, such as 2^32 - 1, where there is no such token.
        return token if token is not None and 0 <= token < len(tokens) else None

    asked_bos, asked_eos = (metadata.flag(f"tokenizer.ggml.add_{name}_token") for name in ("bos", "eos"))
    bos, eos = special("bos"), special("eos")
    return _Vocabulary(
        tokens,
        kinds,
        bos=bos,
        eos=eos,
        unknown=special("unknown"),
        padding=special("padding"),
        add_bos=bos is not None and (add_bos if asked_bos is None else asked_bos),
        add_eos=eos is not None and bool(asked_eos),
    )


def _added_tokens(words: _Vocabulary) -> list[dict[str, Json]]:
    named = {words.bos, words.eos}
    added: list[dict[str, Json]] = []
    for token, (content, kind) in enumerate(zip(words.tokens, words.kinds, strict=True)):
        special = kind in (TokenKind.CONTROL, TokenKind.UNKNOWN) or token in named
        if special or kind == TokenKind.USER_DEFINED:
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            added.append({"id": token, "content": content, **flags, "special": special})
    return added


def _file(words: _Vocabulary, parts: dict[str, Json]) -> dict[str, Json]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [*_added_tokens(words)],
        **parts,
        "post_processor": _post_processor(words),
    }


def _post_processor(words: _Vocabulary) -> Json:
    """What is put around a text when special tokens are asked for."""
    before = [words.tokens[words.bos]] if words.add_bos and words.bos is not None else []
    after = [words.tokens[words.eos]] if words.add_eos and words.eos is not None else []
    if not before and not after:
        return None

    def around(sequences: list[str]) -> list[Json]:
        pieces: list[Json] = []
        for type_id, sequence in enumerate(sequences):
            pieces += [{"SpecialToken": {"id": token, "type_id": type_id}} for token in before]
            pieces.append({"Sequence": {"id": sequence, "type_id": type_id}})
            pieces += [{"SpecialToken": {"id": token, "type_id": type_id}} for token in after]
        return pieces

    return {
        "type": "TemplateProcessing",
        "single": around(["A"]),
        "pair": around(["A", "B"]),
        "special_tokens": {
            token: {"id": token, "ids": [words.tokens.index(token)], "tokens": [token]}
            for token in (*before, *after)
        },
    }


def _byte_level_bpe(metadata: Metadata, words: _Vocabulary, cut: _Cut) -> dict[str, Json]:
    merges: list[Json] = []
    for line in metadata.texts("tokenizer.ggml.merges"):
        left, _, right = line.partition(" ")
        merges.append([left, right])
    if not merges:
        raise GgufError("the tokenizer has no merges (tokenizer.ggml.merges)")
    stages = cut.stages
    model: dict[str, Json] = {
        "type": "BPE",
        "ignore_merges": cut.whole_words,
        "vocab": {content: token for token, content in enumerate(words.tokens)},
        "merges": merges,
    }
    return _file(
        words,
        {
            "normalizer": cut.normalizer,
            "pre_tokenizer": stages[0] if len(stages) == 1 else {"type": "Sequence", "pretokenizers": stages},
            "decoder": _byte_level(use_regex=True),
            "model": model,
        },
    )


def _sentencepiece(metadata: Metadata, words: _Vocabulary) -> dict[str, Json]:
    scores = metadata.numbers("tokenizer.ggml.scores")
    if len(scores) != len(words.tokens):
        raise GgufError(f"the vocabulary has {len(words.tokens)} tokens and scores for {len(scores)}")
    if TokenKind.BYTE not in words.kinds or words.unknown is None:
        raise GgufError("the SentencePiece vocabulary has no byte tokens or no unknown token")
    prefix = metadata.flag("tokenizer.ggml.add_space_prefix")
    spaced = prefix is None or prefix
    space: dict[str, Json] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    back: dict[str, Json] = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
    decoders: list[Json] = [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if spaced:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    model: dict[str, Json] = {
        "type": "BPE",
        "unk_token": words.tokens[words.unknown],
        "fuse_unk": True,
        "byte_fallback": True,
        "vocab": {content: token for token, content in enumerate(words.tokens)},
        "merges": [[left, right] for left, right in _merges(words, scores)],
    }
    normalizers: list[Json] = [{"type": "Prepend", "prepend": "▁"}, space] if spaced else [space]
    return _file(
        words,
        {
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "pre_tokenizer": None,
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": model,
        },
    )


def _merges(words: _Vocabulary, scores: list[float]) -> Iterator[tuple[str, str]]:
    """Every way to put a token together from two others, the token with the best score first."""
    normal = {
        content: score
        for content, kind, score in zip(words.tokens, words.kinds, scores, strict=True)
        if kind == TokenKind.NORMAL
    }
    for content in sorted(normal, key=lambda content: -normal[content]):
        pairs = [(content[:at], content[at:]) for at in range(1, len(content))]
        yield from (pair for pair in pairs if pair[0] in normal and pair[1] in normal)


def _check(tokenizer: dict[str, Json], words: _Vocabulary) -> None:
    try:
        built = Tokenizer.from_str(json.dumps(tokenizer, ensure_ascii=False))
    # The binding raises a bare Exception for whatever it finds wrong in the file.
    except Exception as error:
        raise GgufError(f"the tokenizer can't be rebuilt: {error}") from error
    if built.get_vocab_size() != len(words.tokens):
        raise GgufError("the tokenizer can't be rebuilt: its tokens have other ids than in the file")


def _configuration(metadata: Metadata, words: _Vocabulary, context: int) -> dict[str, Json]:
    named: dict[str, str | None] = {
        "bos_token": words.text(words.bos),
        "eos_token": words.text(words.eos),
        "unk_token": words.text(words.unknown),
        "pad_token": words.text(words.padding),
        "chat_template": metadata.text("tokenizer.chat_template"),
    }
    return {
        # Under a model's own class transformers may put another way of cutting text in place of ours.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        # Where they are not told here, transformers reads all of tokenizer.json a second time for them.
        "added_tokens_decoder": {
            str(token["id"]): {name: value for name, value in token.items() if name != "id"}
            for token in _added_tokens(words)
        },
        **{key: value for key, value in named.items() if value is not None},
    }


def _generation(metadata: Metadata, words: _Vocabulary) -> dict[str, Json]:
    ends = [words.eos]
    for name in ("eot", "eom"):
        token = metadata.integer(f"tokenizer.ggml.{name}_token_id")
        ends.append(token if token is not None and 0 <= token < len(words.tokens) else None)
    for token, (content, kind) in enumerate(zip(words.tokens, words.kinds, strict=True)):
        if kind == TokenKind.CONTROL and content in _END_OF_TURN:
            ends.append(token)
    unique: list[Json] = list(dict.fromkeys(token for token in ends if token is not None))
    generation: dict[str, Json] = {"eos_token_id": unique}
    if words.bos is not None:
        generation["bos_token_id"] = words.bos
    sampling: tuple[tuple[str, str, Callable[[str], float | None]], ...] = (
        ("temperature", "temp", metadata.number),
        ("top_p", "top_p", metadata.number),
        ("top_k", "top_k", metadata.integer),
        ("min_p", "min_p", metadata.number),
    )
    for ours, theirs, read in sampling:
        value = read(f"general.sampling.{theirs}")
        if value is not None:
            generation[ours] = value
    return generation

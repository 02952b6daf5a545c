"""A model that says anything the masks allow, at random: what it says shows what a grammar forces."""

import json
import random
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from tests.fixtures.tiny import byte_characters
from tests.unit.text.replies import THINK
from worker.engine.constraint_masks import Masks
from worker.engine.constraint_rows import Control
from worker.engine.constraint_tokens import Vocabulary
from worker.engine.constraints import compile_spec
from worker.text.dialect import Dialect
from worker.text.grammar.spec import Spec
from worker.text.thinking import Thinking
from worker.text.toolcalls.family import Family, Plain

END = 256
FIRST_SPECIAL = 257


class Bytes:
    """A tokenizer of single bytes, an end token and some control tokens, as transformers wraps one."""

    def __init__(self, specials: Sequence[str]) -> None:
        added = [
            {"id": END + number, "content": content, "special": True, "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False}
            for number, content in enumerate(("<|im_end|>", *specials))
        ]  # fmt: skip
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        vocabulary = {character: byte for byte, character in enumerate(byte_characters())}
        self.backend_tokenizer = Tokenizer.from_str(
            json.dumps(
                {"version": "1.0", "added_tokens": added, "pre_tokenizer": level, "decoder": level,
                 "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}
            )
        )  # fmt: skip
        self.vocabulary = {content: FIRST_SPECIAL + number for number, content in enumerate(specials)}

    def encode(self, text: str) -> list[int]:
        return list(self.backend_tokenizer.encode(text, add_special_tokens=False).ids)


class Model:
    """A dialect with its vocabulary and masks. `tokens` says whether the markers are tokens."""

    def __init__(
        self,
        family: type[Family] = Plain,
        *,
        tokens: bool = True,
        thinking: Thinking | None = THINK,
        spare: int = 40,
    ) -> None:
        markers = [*family.markers, *(thinking.atoms if thinking and not family.always else ())]
        self.tokenizer = Bytes(list(dict.fromkeys(markers)) if tokens else [])
        self.dialect = Dialect.of(
            self.tokenizer.vocabulary, family, None if family.always else thinking, self.tokenizer.encode
        )
        # Padded, as the logits of many models are.
        width = FIRST_SPECIAL + len(self.tokenizer.vocabulary) + spare
        self.vocabulary = Vocabulary(self.tokenizer, width=width, end_tokens=[END])
        self.masks = Masks(self.vocabulary)

    def control(self, spec: Spec) -> Control:
        prepared = compile_spec(
            spec if spec.kind == "calls" or spec.reply else self.dialect.answer(spec), self.vocabulary
        )
        assert prepared.compiled is not None
        return prepared.compiled.control(self.masks)

    def allowed(self, control: Control) -> list[int]:
        bits = self.masks.fill([control])
        assert bits is not None
        row = np.unpackbits(bits[0].view(np.uint8), bitorder="little", count=self.vocabulary.width)
        return [int(token) for token in np.nonzero(row)[0]]

    def text(self, tokens: Iterable[int]) -> str:
        spelled = {token: content.encode() for content, token in self.tokenizer.vocabulary.items()}
        return b"".join(spelled.get(t, bytes([t]) if t < END else b"") for t in tokens).decode()

    def stream(self, tokens: Iterable[int]) -> list[tuple[int, str]]:
        """Tokens with their text, as a detokenizer shows them: whole characters, no control tokens."""
        out: list[tuple[int, str]] = []
        pending = b""
        for token in tokens:
            if token >= END:
                out.append((token, ""))
                continue
            pending += bytes([token])
            try:
                out.append((token, pending.decode()))
                pending = b""
            except UnicodeDecodeError:
                out.append((token, ""))
        return out


@cache
def model(family: type[Family] = Plain, tokens: bool = True) -> Model:
    return Model(family, tokens=tokens)


def walk(model: Model, control: Control, *, seed: int, most: int = 6000) -> list[int]:
    """Tokens up to the end token, which is left out."""
    draw = random.Random(seed)
    said: list[int] = []
    while len(said) < most:
        allowed = model.allowed(control)
        assert allowed, f"nothing is allowed after {said}"
        token = draw.choice(allowed)
        control.advance(token)
        assert control.failure is None
        if token == END:
            return said
        said.append(token)
    raise AssertionError(f"no end after {most} tokens: {said[:200]}")


def say(control: Control, model: Model, text: str) -> None:
    """Let the row say `text`, byte by byte, every token of it allowed."""
    for token in model.tokenizer.encode(text):
        assert token in model.allowed(control), (text, token)
        control.advance(token)


def allows(model: Model, spec: Spec, text: str) -> bool:
    """Whether the grammar allows `text` as the whole answer."""
    control = model.control(spec)
    for token in model.tokenizer.encode(text):
        if token not in model.allowed(control):
            return False
        control.advance(token)
    return END in model.allowed(control)


def tool(name: str, properties: dict[str, Any], required: Sequence[str] = (), **more: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(required), **more}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}

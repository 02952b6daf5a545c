"""The tiny models that other tests stand on keep what they promise."""

from pathlib import Path

import pytest
from mlx_lm import load, stream_generate
from mlx_lm.sample_utils import make_sampler

from tests.fixtures.tiny import Tiny, tiny_model, write_tiny


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_equal_parameters_make_equal_files(tmp_path: Path) -> None:
    first = files(write_tiny(tmp_path / "a", Tiny(seed=7)))
    assert files(write_tiny(tmp_path / "b", Tiny(seed=7))) == first
    assert files(write_tiny(tmp_path / "c", Tiny(seed=8))) != first
    assert tiny_model() is tiny_model()


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_ascii_models_speak_clean_text_without_end(architecture: str, temperature: float) -> None:
    tiny = Tiny(architecture, context=300)  # type: ignore[arg-type]  # a literal, by the parameters above
    model, tokenizer = load(str(tiny_model(tiny)))
    assert len(tokenizer) == 263 and tokenizer.eos_token_ids == {258}
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], add_generation_prompt=True)
    sampler = make_sampler(temperature)
    said = list(stream_generate(model, tokenizer, prompt, max_tokens=50, sampler=sampler))
    text = "".join(piece.text for piece in said)
    assert len(text) == 50
    assert text.isascii() and text.isprintable()


def test_the_mouth_can_be_wider() -> None:
    model, tokenizer = load(str(tiny_model(Tiny(speaks="all", thinking=True))))
    assert tokenizer.has_thinking
    prompt = tokenizer.encode("x")
    sampler = make_sampler(2.0)
    said = (
        piece.token
        for _ in range(4)
        for piece in stream_generate(model, tokenizer, prompt, max_tokens=200, sampler=sampler)
    )
    assert any(token > 127 for token in said)

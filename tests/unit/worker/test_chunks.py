"""How much prompt a step computes beside rows that decode."""

from worker.engine.chunks import STALL_S, Chunks


def test_chunks_shrink_to_what_does_not_stall_and_grow_again() -> None:
    chunks = Chunks(512)
    assert chunks.size(1, decoding=False) == 512
    for _ in range(6):
        tokens = chunks.size(1, decoding=True)
        chunks.took(tokens, tokens * 0.002)
    assert 0.5 * STALL_S < 0.002 * chunks.size(1, decoding=True) <= STALL_S
    for _ in range(12):
        tokens = chunks.size(1, decoding=True)
        chunks.took(tokens, tokens * 0.0001)
    assert chunks.size(1, decoding=True) == 512


def test_prompts_share_a_step_and_each_gets_on() -> None:
    chunks = Chunks(512)
    assert chunks.size(8, decoding=False) == 64
    chunks.took(64, 60.0)
    assert chunks.size(8, decoding=True) >= 1

"""How much of a prompt is computed in one go."""

from worker.engine.pace import STALL_S, Pace


def follow(pace: Pace, token_s: float, *, goes: int) -> float:
    """Let each go take what it takes at this speed; how long the last one took."""
    for _ in range(goes):
        pace.took(pace.tokens, pace.tokens * token_s)
    return pace.tokens * token_s


def test_it_follows_the_speed_to_what_does_not_stall() -> None:
    pace = Pace(512)
    assert 0.5 * STALL_S < follow(pace, 0.002, goes=6) <= STALL_S
    assert 0.5 * STALL_S < follow(pace, 0.004, goes=6) <= STALL_S
    follow(pace, 0.0001, goes=12)
    assert pace.tokens == 512


def test_one_go_changes_it_by_half_or_twice_at_most() -> None:
    pace = Pace(512)
    first = pace.tokens
    pace.took(first, 0.000001)
    assert pace.tokens == 2 * first
    pace.took(2 * first, 60.0)
    assert pace.tokens == first
    for _ in range(10):
        pace.took(pace.tokens, 60.0)
    assert pace.tokens == 16


def test_a_quick_go_with_few_tokens_says_nothing() -> None:
    pace = Pace(512)
    first = pace.tokens
    pace.took(4, 0.05)
    assert pace.tokens == first
    pace.took(4, 5.0)
    assert pace.tokens < first


def test_prompts_share_a_step_and_each_gets_on() -> None:
    pace = Pace(512)
    assert pace.share(8, decoding=False) == 64
    assert pace.share(1, decoding=True) == pace.tokens < 512
    pace.took(64, 60.0)
    assert pace.share(8, decoding=True) >= 1

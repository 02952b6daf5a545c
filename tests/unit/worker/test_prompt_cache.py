"""What stays in the prompt cache and what leaves; where prompts are cut."""

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from worker.engine.needs import Needs, room
from worker.engine.prompt_cache import SESSION_S, Entry, PromptCache, as_tokens, common_prefix
from worker.request import Message, Request
from worker.text.boundaries import boundaries
from worker.text.template import Template

SIZE = 4000


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def entry(seed: int, length: int = 50, **fields: Any) -> Entry:
    layer = ArraysCache(1)
    layer[0] = mx.zeros((1, SIZE // 4))
    return Entry(as_tokens(range(seed, seed + length)), [layer], **fields)


def kept(cache: PromptCache) -> list[int]:
    return sorted(int(each.tokens[0]) for each in cache.entries())


def test_what_was_used_longest_ago_leaves_first_and_is_handed_on() -> None:
    gone: list[Entry] = []
    cache = PromptCache(3 * SIZE, on_evict=gone.append, clock=Clock())
    for seed in (100, 200, 300):
        cache.put(entry(seed))
    assert cache.find(as_tokens(range(100, 160))) is not None
    cache.put(entry(400))
    assert kept(cache) == [100, 300, 400]
    assert [int(each.tokens[0]) for each in gone] == [200] and cache.counts.evictions == 1
    assert cache.shrink(SIZE) == 2 * SIZE
    assert kept(cache) == [400]


def test_a_conversation_with_a_name_stays_longer_but_not_forever() -> None:
    clock = Clock()
    cache = PromptCache(2 * SIZE, clock=clock)
    cache.put(entry(100, session="s"))
    for seed in (200, 300, 400):
        cache.put(entry(seed))
    assert kept(cache) == [100, 400]
    clock.now += SESSION_S
    cache.put(entry(500))
    cache.put(entry(600))
    assert kept(cache) == [500, 600]


def test_only_the_latest_state_of_a_conversation_is_preferred() -> None:
    cache = PromptCache(2 * SIZE, clock=Clock())
    cache.put(entry(100, session="s"))
    cache.put(entry(200, session="s"))
    cache.put(entry(300))
    assert kept(cache) == [200, 300]


def test_state_that_cannot_be_cut_back_needs_a_prompt_that_goes_on() -> None:
    cache = PromptCache(10 * SIZE)
    cache.put(entry(100))
    assert cache.find(as_tokens(range(100, 150))) is None, "there would be nothing left to compute"
    assert cache.find(as_tokens([*range(100, 140), *range(20)])) is None
    found = cache.find(as_tokens(range(100, 151)))
    assert found is not None and found.cached == 50


def test_prefixes_are_compared_to_the_first_difference() -> None:
    for length in (0, 1, 63, 64, 65, 200):
        one, other = as_tokens([1] * length + [2]), as_tokens([1] * length + [3] * 50)
        assert common_prefix(one, other) == length
        assert common_prefix(one, one) == length + 1


def test_rows_in_a_batch_are_padded_and_windows_bounded() -> None:
    needs = Needs(token_bytes=10, fixed_bytes=7, windows=((512, 3),))
    assert needs.row_bytes(100) == 7 + 10 * 256 + 3 * 256
    assert needs.row_bytes(10_000) == 7 + 10 * 10_240 + 3 * 512
    assert needs.batch_bytes([100, 10_000]) == 2 * needs.row_bytes(10_000)
    assert needs.batch_bytes([]) == 0
    assert not needs.cuttable and Needs(token_bytes=1).cuttable


def test_weights_leave_the_rest_to_rows_and_prompts() -> None:
    limits = room(weights_bytes=4 * 2**30, working_set_bytes=20 * 2**30)
    assert limits.kv_bytes == 15 * 2**30
    assert limits.prompt_bytes == limits.kv_bytes // 4
    assert room(weights_bytes=0, working_set_bytes=0, ram_bytes=2**30, prompt_bytes=0).prompt_bytes == 0


class Letters:
    """A tokenizer whose tokens are characters; its template drops what was thought, as several do."""

    has_chat_template = True
    chat_template = ""

    def apply_chat_template(self, messages: list[dict[str, Any]], **arguments: Any) -> str:
        turns = "".join(f"<{turn['role']}>{turn['content']}\n" for turn in messages)
        return f"{turns}<assistant><think>"

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) for letter in text]


def test_prompts_are_cut_after_the_system_prompt_and_where_the_next_turn_still_agrees() -> None:
    template = Template(Letters())
    request = Request(messages=(Message("system", "Be brief."), Message("user", "Hi")))
    text = template.render(request)
    system, turns = boundaries(template, request, template.encode(text))
    assert text[:system] == "<system>Be brief.\n<user>"
    assert text[:turns] == "<system>Be brief.\n<user>Hi\n<assistant>"

"""What work that is no row takes from the prompt cache, and leaves in it. Runs on the engine's thread."""

import copy
from collections.abc import Sequence
from typing import Any

from mlx_lm.models.cache import make_prompt_cache

from worker.engine.prompt_cache import Entry, PromptCache, as_tokens


class Prefixes:
    """For one loaded model."""

    def __init__(self, network: Any, prompts: PromptCache | None = None) -> None:
        self._network = network
        self._prompts = PromptCache(0) if prompts is None else prompts

    def begin(
        self, tokens: Sequence[int], *, adapter: str = "", session: str | None = None
    ) -> tuple[int, list[Any]]:
        """How many of `tokens` need no computing, and the caches after them, which may be written to."""
        # A prompt is looked for without its last token, which is left to compute; here all may be there.
        found = self._prompts.find(as_tokens([*tokens, 0]), adapter=adapter, session=session)
        if found is None:
            return 0, make_prompt_cache(self._network)
        return found.cached, copy.deepcopy(found.state)

    def keep(
        self, tokens: Sequence[int], state: list[Any], *, adapter: str = "", session: str | None = None
    ) -> bool:
        """Keep the evaluated caches after `tokens`; if so, they must not be written to any more."""
        entry = Entry(as_tokens(tokens), state, adapter, session)
        if not self._prompts.wants(entry.tokens, entry.nbytes, adapter=adapter, session=session):
            return False
        self._prompts.put(entry)
        return True

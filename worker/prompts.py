"""Prompts of one loaded model: requests as tokens, on the thread that the tokenizer belongs to."""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from shared.errors import PublicError, invalid
from worker.model.loading import Model
from worker.request import Request
from worker.text import boundaries

T = TypeVar("T")

_TAIL: Final = 16
"""Tokens at the end of a prompt that tell how the answer begins."""
_MAX_COUNTED_CHARACTERS: Final = 16 * 2**20
"""A prompt that is only counted may be this long: nothing else is prepared meanwhile."""
_NORMALISED: Final = 4
"""Characters that a tokenizer may make one of, at most."""


class Prompts:
    """Renders and tokenises, and judges what it is given. On the event loop, but for what says otherwise."""

    def __init__(self, model_id: str, model: Model) -> None:
        self._model_id = model_id
        self._model = model
        # A thread of its own: a long conversation takes a while to render and tokenise. One, because
        # tokenizers change their state while they work.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prepare")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def run(self, work: Callable[[], T]) -> T:
        """Do `work` on the thread that the tokenizer belongs to."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def tokens(self, request: Request) -> list[int]:
        """The prompt of `request`. Raises PublicError 400 for what the model can't take, else 501."""
        self.check_writes()
        return await self.run(lambda: self._tokenise(request))

    async def count(self, request: Request) -> int:
        """Tokens of the prompt of a chat `request`, which may be more than fit.

        Raises PublicError: 400, or 413 for more than is worth counting.
        """
        return len(await self.run(lambda: self._chat_tokens(request, fits=False)))

    async def end(self, prompt: list[int]) -> str:
        """The text that a prompt ends with."""
        tail = prompt[-_TAIL:]
        return str(await self.run(lambda: self._model.tokenizer.decode(tail)))

    async def boundaries(self, request: Request, prompt: list[int]) -> tuple[int, ...]:
        """Tokens of a chat's prompt up to where its state is worth keeping; none of a text's."""
        if not request.messages:
            return ()
        return await self.run(lambda: boundaries.boundaries(self._model.template, request, prompt))

    async def length_to(self, turns: int, request: Request, prompt: list[int]) -> int:
        """Tokens of a chat's prompt up to the end of its first `turns` messages."""
        return await self.run(lambda: boundaries.prefix_to(self._model.template, request, prompt, turns))

    def check_writes(self) -> None:
        """Raises PublicError 501 for a model that can't."""
        if not self._model.writes:
            raise PublicError(
                501,
                "unsupported",
                f"{self._model_id!r} is an embedding model: it makes vectors, at /v1/embeddings, and no "
                "text.",
            )

    def pieces(self, tokens: Sequence[int]) -> tuple[list[str], list[int]]:
        """The text that each token adds, and where it begins, in characters. On the tokenizer's thread."""
        detokenizer = self._model.detokenizers.new()
        pieces = [detokenizer.push(token) for token in tokens]
        offsets = [0, *itertools.accumulate(map(len, pieces))]
        return [*pieces, detokenizer.flush()], offsets[: len(tokens)]

    def _tokenise(self, request: Request) -> list[int]:
        self._check_tokens((token for token, _ in request.sampling.logit_bias), "logit_bias")
        self._check_tokens(request.stop_tokens, "stop_token_ids")
        param = "messages" if request.prompt is None else "prompt"
        if isinstance(request.prompt, tuple):
            self._check_tokens(request.prompt, param)
            prompt = list(request.prompt)
        elif isinstance(request.prompt, str):
            self._check_length(request.prompt, param)
            prompt = self._text_tokens(request.prompt)
        else:
            prompt = self._chat_tokens(request)
        if not prompt:
            raise invalid("There is nothing to complete: the prompt has no tokens.", param=param)
        if len(prompt) >= self._model.context_window:
            raise self._too_long(str(len(prompt)), param)
        return prompt

    def _chat_tokens(self, request: Request, *, fits: bool = True) -> list[int]:
        template = self._model.template
        if not template.usable:
            raise template.unusable(self._model_id)
        text = template.render(request)
        if fits:
            self._check_length(text, "messages")
        elif len(text) > _MAX_COUNTED_CHARACTERS:
            raise PublicError(
                413, "prompt_too_large", f"Prompts of up to {_MAX_COUNTED_CHARACTERS} characters are counted."
            )
        return template.encode(text)

    def _text_tokens(self, text: str) -> list[int]:
        """With what the tokenizer puts around a text; of no text that which begins one."""
        tokenizer = self._model.tokenizer
        tokens: list[int] = tokenizer.encode(text) if text else []
        if not tokens:
            begin = tokenizer.bos_token_id
            tokens = [] if begin is None else [int(begin)]
        return tokens

    def _check_tokens(self, tokens: Iterable[int], param: str) -> None:
        size = self._model.vocabulary
        for token in tokens:
            if not 0 <= token < size:
                raise invalid(
                    f"`{param}` has the token id {token}; this model's are 0 to {size - 1}.", param=param
                )

    def _check_length(self, text: str, param: str) -> None:
        # Tokens of text take a hundred times its memory, so what can't possibly fit is not tokenised. The
        # margin is for tokenizers that drop or join characters first.
        fewest = len(text) // (_NORMALISED * self._model.longest_token)
        if fewest >= self._model.context_window:
            raise self._too_long(f"at least {fewest}", param)

    def _too_long(self, tokens: str, param: str) -> PublicError:
        return PublicError(
            400,
            "context_length_exceeded",
            f"The context window of this model is {self._model.context_window} tokens, and the prompt has "
            f"{tokens}. Shorten the {param}.",
            param=param,
        )

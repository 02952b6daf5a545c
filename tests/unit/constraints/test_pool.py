"""The preparation pool: bounded, shared, cancelled without a trace."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from shared.errors import PublicError
from tests.unit.constraints.walks import model
from worker.engine.constraint_pool import Preparation
from worker.engine.constraint_tokens import Vocabulary
from worker.engine.constraints import Prepared
from worker.text.grammar.spec import Spec


class Compiler:
    """Stands in for the library: it compiles when it is let to."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.let = threading.Semaphore(0)
        self._began = threading.Semaphore(0)

    async def has_begun(self, count: int) -> None:
        """Wait until so many more compilations have begun."""
        for _ in range(count):
            assert await asyncio.to_thread(self._began.acquire, timeout=10)

    def __call__(self, spec: Spec, vocabulary: Vocabulary) -> Prepared:
        self.begun.append(spec.source)
        self._began.release()
        assert self.let.acquire(timeout=10)
        if spec.source == "bad":
            raise PublicError(400, "invalid_grammar", "bad", param=spec.param)
        return Prepared(None, warning=spec.source)


def regex(source: str) -> Spec:
    return Spec("regex", source, param="guided_regex")


@asynccontextmanager
async def pool(compiler: Compiler, **options: float) -> AsyncIterator[Preparation]:
    preparation = Preparation(lambda: model().vocabulary, compile_one=compiler, **options)  # type: ignore[arg-type]
    try:
        yield preparation
    finally:
        compiler.let.release(100)
        preparation.close()


@contextmanager
def cancelled() -> Iterator[None]:
    with pytest.raises(asyncio.CancelledError):
        yield


async def test_equal_specifications_are_compiled_once_and_kept() -> None:
    compiler = Compiler()
    async with pool(compiler) as preparation:
        both = asyncio.gather(preparation.prepare(regex("a")), preparation.prepare(regex("a")))
        await compiler.has_begun(1)
        assert preparation.reserved == 2
        compiler.let.release()
        first, second = await both
        assert first is second is await preparation.prepare(regex("a"))
        assert compiler.begun == ["a"] and preparation.reserved == 0


async def test_the_line_is_bounded_and_a_cancelled_request_gives_its_place_back() -> None:
    compiler = Compiler()
    async with pool(compiler, reservations=3) as preparation:
        tasks = [asyncio.create_task(preparation.prepare(regex(text))) for text in "abc"]
        await compiler.has_begun(2)
        with pytest.raises(PublicError) as caught:
            await preparation.prepare(regex("d"))
        assert (caught.value.status, caught.value.retry_after_s) == (429, 1)
        tasks[2].cancel()
        with cancelled():
            await tasks[2]
        assert preparation.reserved == 2
        tasks.append(asyncio.create_task(preparation.prepare(regex("d"))))
        compiler.let.release(3)
        assert {(await tasks[0]).warning, (await tasks[1]).warning, (await tasks[3]).warning} == {
            "a",
            "b",
            "d",
        }
        # Nobody waited for it when its turn came.
        assert "c" not in compiler.begun


async def test_a_request_that_leaves_does_not_cancel_the_compilation_that_another_waits_for() -> None:
    compiler = Compiler()
    async with pool(compiler) as preparation:
        leaving = asyncio.create_task(preparation.prepare(regex("a")))
        staying = asyncio.create_task(preparation.prepare(regex("a")))
        await compiler.has_begun(1)
        leaving.cancel()
        with cancelled():
            await leaving
        compiler.let.release()
        assert (await staying).warning == "a"


async def test_a_compilation_left_alone_keeps_its_thread_until_it_is_done() -> None:
    compiler = Compiler()
    async with pool(compiler) as preparation:
        left = [asyncio.create_task(preparation.prepare(regex(text))) for text in "ab"]
        await compiler.has_begun(2)
        for task in left:
            task.cancel()
        waiting = asyncio.create_task(preparation.prepare(regex("c")))
        await asyncio.gather(*left, return_exceptions=True)
        assert preparation.reserved == 1 and compiler.begun == ["a", "b"]
        compiler.let.release(3)
        assert (await waiting).warning == "c"


async def test_what_can_not_be_compiled_is_refused_and_not_kept() -> None:
    compiler = Compiler()
    compiler.let.release(2)
    async with pool(compiler) as preparation:
        for _ in range(2):
            with pytest.raises(PublicError, match="bad"):
                await preparation.prepare(regex("bad"))
        assert compiler.begun == ["bad", "bad"] and preparation.reserved == 0


async def test_a_compilation_that_takes_too_long_is_given_up() -> None:
    compiler = Compiler()
    async with pool(compiler, longest_s=0.05) as preparation:
        with pytest.raises(PublicError, match="make it simpler") as caught:
            await preparation.prepare(regex("a"))
        assert (caught.value.status, caught.value.param) == (400, "guided_regex")


async def test_a_tokenizer_that_can_not_be_constrained_is_said_so() -> None:
    preparation = Preparation(lambda: Vocabulary(object(), width=10, end_tokens=[0]))
    for _ in range(2):
        with pytest.raises(PublicError) as caught:
            await preparation.prepare(regex("a"))
        assert caught.value.status == 501
    with pytest.raises(PublicError):
        await preparation.masks()
    preparation.close()


async def test_what_was_prepared_makes_controls() -> None:
    preparation = Preparation(lambda: model().vocabulary)
    prepared = await preparation.prepare(Spec("choice", '["a"]', param="x"))
    masks = await preparation.masks()
    assert prepared.compiled is not None
    control = prepared.compiled.control(masks)
    assert masks.fill([control]) is not None
    preparation.close()

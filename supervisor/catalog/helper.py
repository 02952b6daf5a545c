"""A helper process: a program of ours that does one piece of work and tells about it as JSON lines on stdout.

It holds our end of its stdin as a lifeline and is gone when `run` returns, however it returns.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, TypeVar

import msgspec

SILENCE_S: Final = 120.0
"""A helper that tells nothing for so long hangs: each tells how far it is many times a second."""
GRACE_S: Final = 3.0
"""What it gets to leave by itself, once its lifeline has ended."""
_STDERR_LINES: Final = 5
_LINE_BYTES: Final = 1 << 20
_PASSED: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")

Told = TypeVar("Told")


class HelperError(Exception):
    """Raised when a helper could not be started, hung, or told what nobody understands."""


class Ended(msgspec.Struct, Generic[Told], frozen=True):
    """How a helper ended. `last` is its last event, None when it told nothing."""

    last: Told | None
    returncode: int
    complaints: list[str]
    """The last lines of its stderr."""

    def describe(self, name: str) -> str:
        """What there is to say of an end that nobody wanted."""
        if self.returncode < 0:
            how = f"the {name} was ended by signal {-self.returncode}; it may have run out of memory"
        else:
            how = f"the {name} ended with status {self.returncode}"
        return how + (f". It said: {self.complaints[-1]}" if self.complaints else "")


def helper_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What every helper needs of the environment; keys and tokens are not among it."""
    return {name: environ[name] for name in _PASSED if name in environ}


class Helper(Generic[Told]):
    """One run of a helper called `name` in messages, whose lines `decode` reads."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        decode: Callable[[bytes], Told],
        *,
        silence_s: float = SILENCE_S,
        grace_s: float = GRACE_S,
    ) -> None:
        self._name = name
        self._command = command
        self._environment = environment
        self._decode = decode
        self._silence_s = silence_s
        self._grace_s = grace_s
        self.pid: int | None = None
        self.returncode: int | None = None
        """None until it has ended."""

    async def run(self, told: Callable[[Told], None], *, request: bytes = b"") -> Ended[Told]:
        """Start it with `request` on its stdin, pass on each event, and see its end. Raises HelperError.

        Cancelled, it ends the process first.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=dict(self._environment),
                limit=_LINE_BYTES,
            )
        except OSError as error:
            raise HelperError(f"the {self._name} could not be started: {error.strerror}") from error
        self.pid = process.pid
        assert process.stdin is not None
        try:
            process.stdin.write(request)
            last, complaints = await self._listen(process, told)
        finally:
            await self._end(process)
            self.returncode = process.returncode
        assert self.returncode is not None
        return Ended(last, self.returncode, complaints)

    async def _listen(
        self, process: asyncio.subprocess.Process, told: Callable[[Told], None]
    ) -> tuple[Told | None, list[str]]:
        """The last event and the last lines of stderr, once the process has closed both."""
        assert process.stdout is not None and process.stderr is not None
        complaints = asyncio.ensure_future(_last_lines(process.stderr))
        last: Told | None = None
        try:
            while True:
                try:
                    line = await asyncio.wait_for(process.stdout.readline(), self._silence_s)
                    if not line:
                        return last, await asyncio.wait_for(complaints, self._silence_s)
                    last = self._decode(line)
                except TimeoutError:
                    raise HelperError(
                        f"the {self._name} hung: it told nothing for {self._silence_s:.0f} s"
                    ) from None
                except (msgspec.MsgspecError, ValueError) as error:
                    raise HelperError(f"the {self._name} can't be understood: {error}") from error
                told(last)
        finally:
            complaints.cancel()
            await asyncio.wait({complaints})

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """See the process gone: it is asked first, by its lifeline's end, and then killed."""
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(_drained(process), self._grace_s)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await _drained(process)


async def _last_lines(stream: asyncio.StreamReader) -> list[str]:
    kept: deque[str] = deque(maxlen=_STDERR_LINES)
    rest = b""
    while chunk := await stream.read(_LINE_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[-_LINE_BYTES:]
        kept.extend(line.decode("utf-8", "replace") for line in lines if line.strip())
    return [*kept, rest.decode("utf-8", "replace")] if rest.strip() else list(kept)


async def _drained(process: asyncio.subprocess.Process) -> None:
    """Wait for the end. Output that nobody reads would hold up asyncio's news of it."""
    for stream in (process.stdout, process.stderr):
        while stream is not None and await stream.read(_LINE_BYTES):
            pass
    await process.wait()

"""The adapters that requests may ask for, by name."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from shared.errors import PublicError, invalid
from worker.engine.admission import Admission
from worker.engine.thread import Engine
from worker.model.adapters import AdapterError, Adapters
from worker.model.identity import adapter_identity

NONE: Final = "none"
"""What a request says that wants no adapter."""
_LONGEST_NAME: Final = 128


class Mounted(msgspec.Struct, frozen=True):
    """One adapter. `identity` tells its weights from others that once had its name."""

    name: str
    path: str
    identity: str
    bytes: int


class Mounts:
    """Of one model. Everything here runs on the event loop.

    `on_gone` is told the identity of an adapter that is not there any more.
    """

    def __init__(
        self,
        adapters: Adapters,
        engine: Engine,
        admission: Admission,
        on_gone: Callable[[str], None] = lambda identity: None,
    ) -> None:
        self._adapters = adapters
        self._engine = engine
        self._admission = admission
        self._on_gone = on_gone
        self._mounted: dict[str, Mounted] = {}
        # Two changes at once could each find the other half done.
        self._one = asyncio.Lock()
        self.refusal: PublicError | None = None
        """Why nothing can be mounted, when that is so."""

    def all(self) -> list[Mounted]:
        """In the order of their names."""
        return [self._mounted[name] for name in sorted(self._mounted)]

    def identity(self, name: str | None) -> str:
        """Of the adapter that a request names; "" for none. Raises PublicError 404."""
        if name is None or name == NONE:
            return ""
        mounted = self._mounted.get(name)
        if mounted is None:
            known = ", ".join([NONE, *sorted(self._mounted)])
            raise PublicError(
                404,
                "adapter_not_found",
                f"This model has no adapter {name[:_LONGEST_NAME]!r}. There are: {known}.",
                param="adapter",
            )
        return mounted.identity

    async def mount(self, name: str, path: str) -> Mounted:
        """Load the adapter in the folder `path`, for requests to ask for. Raises PublicError 400 and 409."""
        if not name or name == NONE or len(name) > _LONGEST_NAME or not name.isprintable():
            raise invalid(f"{name[:_LONGEST_NAME]!r} can't be an adapter's name.", param="name")
        directory = Path(path)
        if not directory.is_absolute():
            raise invalid("`path` must be absolute.", param="path")
        if self.refusal is not None:
            raise self.refusal
        async with self._one:
            try:
                identity = await asyncio.to_thread(adapter_identity, directory)
                size = await self._engine.call(lambda: self._adapters.add(identity, directory))
            except OSError as error:
                reason = error.strerror or type(error).__name__
                raise invalid(f"The adapter {name!r} can't be read: {reason}.", param="path") from error
            except AdapterError as error:
                raise invalid(str(error), param="path", code="invalid_adapter") from error
            mounted = Mounted(name, path, identity, size)
            before = self._mounted.get(name)
            if before is not None and before.identity != identity:
                try:
                    await self._unmount(name)
                except PublicError:
                    if not self._named(identity):
                        await self._engine.call(lambda: self._adapters.remove(identity))
                    raise
            self._mounted[name] = mounted
            return mounted

    async def unmount(self, name: str) -> None:
        """Raises PublicError 404, and 409 while requests use it."""
        self.identity(name)
        async with self._one:
            await self._unmount(name)

    async def _unmount(self, name: str) -> None:
        mounted = self._mounted.get(name)
        if mounted is None:
            return
        used = self._admission.using(mounted.identity)
        if used:
            raise PublicError(
                409, "adapter_in_use", f"{used} requests use the adapter {name!r}; try again later."
            )
        del self._mounted[name]
        if not self._named(mounted.identity):
            await self._engine.call(lambda: self._adapters.remove(mounted.identity))
            self._on_gone(mounted.identity)

    def _named(self, identity: str) -> bool:
        return any(mounted.identity == identity for mounted in self._mounted.values())

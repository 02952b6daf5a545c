"""Mends two things about the imports of mlx-lm and transformers: call `prepare_imports` before them.

transformers 5 reads each of its 1,600 model modules as it is imported, to learn what they export, and does
so twice: what it remembers of a folder is forgotten after 128 folders, and it has 500. It looks through every
line of them for one `__all__`, which is near the end. That was a third of the time that an import took.

mlx-lm limits the process to 4,096 descriptors as it is imported, for good, and can't be imported at all where
fewer are allowed.
"""

import functools
import importlib.machinery
import resource
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Final

_READS_EXPORTS: Final = "transformers.utils.import_utils"
_LIMITS_DESCRIPTORS: Final = "mlx_lm.utils"


def prepare_imports() -> None:
    """Have transformers find what its modules export in less time, and mlx-lm take no descriptors away.

    What they find is the same.
    """
    for name, loader in ((_READS_EXPORTS, _Quicker), (_LIMITS_DESCRIPTORS, _Unlimited)):
        known = any(isinstance(finder, _Finder) and finder.name == name for finder in sys.meta_path)
        if name not in sys.modules and not known:
            sys.meta_path.insert(0, _Finder(name, loader))


def shortened(read: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """`read`, which wants the last line of a module that begins with `__all__`, without what is before it."""

    @functools.wraps(read)
    def short(content: str) -> list[str]:
        return read(content[content.rfind("\n__all__") + 1 :])

    return short


class _Finder:
    """Stands before the other finders until it has had the one module that it knows."""

    def __init__(self, name: str, loader: type[importlib.machinery.SourceFileLoader]) -> None:
        self.name = name
        self._loader = loader

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = self._loader(spec.loader.name, spec.loader.path)
        return spec


class _Quicker(importlib.machinery.SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        read = getattr(module, "fetch__all__", None)
        folder = getattr(getattr(module, "create_import_structure_from_path", None), "__wrapped__", None)
        # Another version may have neither; then it is as slow as it is.
        if read is not None:
            module.fetch__all__ = shortened(read)  # type: ignore[attr-defined]
        if folder is not None:
            module.create_import_structure_from_path = functools.cache(folder)  # type: ignore[attr-defined]


class _Unlimited(importlib.machinery.SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        set_limit = resource.setrlimit

        def raise_only(which: int, wanted: tuple[int, int]) -> None:
            # It wants as many as a large model has files, and takes away the rest.
            soft, hard = resource.getrlimit(which)
            if 0 <= soft < wanted[0]:
                set_limit(which, (wanted[0] if hard < 0 else min(wanted[0], hard), hard))

        resource.setrlimit = raise_only
        try:
            super().exec_module(module)
        finally:
            resource.setrlimit = set_limit

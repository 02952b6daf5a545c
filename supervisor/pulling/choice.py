"""Which files of a repository a model needs."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final

from supervisor.pulling.errors import PullError

_WEIGHTS: Final = ".safetensors"
# Weights for other programs, often as large as the model again, and pictures for the page.
_NOT_FOR_US: Final = (
    "*.bin",
    "*.ckpt",
    "*.engine",
    "*.gguf",
    "*.gif",
    "*.h5",
    "*.jpeg",
    "*.jpg",
    "*.mlmodel",
    "*.mp4",
    "*.msgpack",
    "*.nemo",
    "*.onnx",
    "*.onnx_data",
    "*.ot",
    "*.pdf",
    "*.png",
    "*.pt",
    "*.pth",
    "*.tflite",
    "*.webp",
    "consolidated*.safetensors",
    "coreml/*",
    "onnx/*",
    "openvino/*",
    "original/*",
)
_KINDS: Final = {".gguf": "GGUF", ".bin": "PyTorch", ".pth": "PyTorch", ".pt": "PyTorch", ".onnx": "ONNX"}


def choose(repo: str, paths: Iterable[str], include: Sequence[str]) -> list[str]:
    """The files to download: what matches a pattern of `include`, or without one what mlx-lm can use.

    Raises PullError when that is nothing.
    """
    names = sorted(paths)
    if include:
        chosen = [name for name in names if any(fnmatchcase(name, pattern) for pattern in include)]
        if not chosen:
            raise PullError("no_files", f"no file of {repo} matches {' or '.join(include)}; {_shown(names)}")
        return chosen
    chosen = [name for name in names if not any(fnmatchcase(name, pattern) for pattern in _NOT_FOR_US)]
    if not any(name.endswith(_WEIGHTS) for name in chosen):
        raise PullError("no_files", f"{repo} has no weights that MLX loads (*.safetensors){_advice(names)}")
    return chosen


def _advice(names: list[str]) -> str:
    if any(name.endswith(".gguf") for name in names):
        return (
            "; it has GGUF files, one of which --include '*Q8_0.gguf' would fetch, for "
            "`mlx-supervisor import`"
        )
    kinds = sorted({kind for name in names for end, kind in _KINDS.items() if name.endswith(end)})
    if kinds:
        return f", only {' and '.join(kinds)} files; look for a conversion of it by mlx-community"
    return f"; {_shown(names)}"


def _shown(names: list[str]) -> str:
    if not names:
        return "it has no files at all"
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"it has {', '.join(names[:4])}{more}"

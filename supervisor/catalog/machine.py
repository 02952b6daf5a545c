"""This machine as the estimates see it: chip, memory, how much of it models may take, how fast it is.

Everything is told by a probe that tests replace. Nothing here imports mlx: what exactly the GPU may hold is
known to a worker alone, and taken from it once there was one.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final, Literal

import msgspec
import psutil

from supervisor.catalog.chips import CHIPS, GIB, Chip, find_chip, gpu_bytes_of
from supervisor.system.sysctl import sysctl_text, sysctl_whole

Backend = Literal["metal", "cuda", "cpu"]
"""Where mlx computes."""

Source = Literal["worker", "setting", "driver", "rule"]
"""Who says what the GPU may hold: a worker, a sysctl that somebody set, the driver, or a rule of thumb."""

_SHARE_WITHOUT_GPU: Final = 0.75
_CUDA_PACKAGES: Final = ("mlx-cuda", "mlx-cuda-12", "mlx-cuda-13")
_DRIVER_TIMEOUT_S: Final = 5.0
_MIB: Final = 2**20


class Machine(msgspec.Struct, frozen=True):
    """Sizes are bytes; what is not known is None."""

    name: str
    backend: Backend
    memory_bytes: int
    gpu_bytes: int | None = None
    """What the GPU may hold."""
    gpu_source: Source | None = None
    bandwidth_bytes_s: float | None = None
    """How fast memory is read."""
    prefill_flops: float | None = None
    """FLOP/s that the matrix products of a prompt reach."""
    available_bytes: int | None = None
    """Memory that is free now; None means all of it, as on a machine that only serves."""

    @property
    def budget_bytes(self) -> int:
        """What models may take together, if nobody says otherwise."""
        if self.gpu_bytes is not None:
            return self.gpu_bytes
        return int(self.memory_bytes * _SHARE_WITHOUT_GPU)


class NvidiaCard(msgspec.Struct, frozen=True):
    """The first GPU, as its driver names it."""

    name: str
    memory_bytes: int


@dataclass(frozen=True)
class Probe:
    """Where `detect` looks. The defaults ask this machine."""

    platform: str = sys.platform
    architecture: str = os.uname().machine
    text: Callable[[str], str | None] = sysctl_text
    whole: Callable[[str], int | None] = sysctl_whole
    memory_bytes: Callable[[], int] = lambda: int(psutil.virtual_memory().total)
    available_bytes: Callable[[], int] = lambda: int(psutil.virtual_memory().available)
    processor: Callable[[], str | None] = lambda: _processor(Path("/proc/cpuinfo"))
    nvidia: Callable[[], NvidiaCard | None] = lambda: _nvidia()
    has_package: Callable[[str], bool] = lambda name: _has_package(name)
    bandwidth: Callable[[], float | None] = lambda: None
    """Measures memory bandwidth in bytes/s where no table knows it; by default nobody does."""


def detect(probe: Probe | None = None, *, working_set_bytes: int = 0) -> Machine:
    """This machine. `working_set_bytes` is what a worker said the GPU may hold; 0 when none has yet."""
    probe = probe or Probe()
    apple = probe.platform == "darwin" and probe.architecture == "arm64"
    machine = _mac(probe) if apple else _other(probe)
    if working_set_bytes > 0:
        return msgspec.structs.replace(machine, gpu_bytes=working_set_bytes, gpu_source="worker")
    return machine


def lineup(chips: Iterable[Chip] = CHIPS) -> list[Machine]:
    """Every Mac that a chip and a memory size make, in the order of the table."""
    return [_with_chip(chip, size * GIB) for chip in chips for size in chip.memory_gib]


def _with_chip(chip: Chip, memory_bytes: int) -> Machine:
    return Machine(
        name=chip.brand,
        backend="metal",
        memory_bytes=memory_bytes,
        gpu_bytes=gpu_bytes_of(memory_bytes),
        gpu_source="rule",
        bandwidth_bytes_s=chip.bandwidth_bytes_s,
        prefill_flops=chip.prefill_flops,
    )


def _mac(probe: Probe) -> Machine:
    memory = probe.whole("hw.memsize") or probe.memory_bytes()
    brand = probe.text("machdep.cpu.brand_string") or "Apple"
    chip = find_chip(brand, memory)
    limit_mib = probe.whole("iogpu.wired_limit_mb") or 0
    return Machine(
        name=brand,
        backend="metal",
        memory_bytes=memory,
        # 0 is the system's default.
        gpu_bytes=min(limit_mib * _MIB, memory) if limit_mib > 0 else gpu_bytes_of(memory),
        gpu_source="setting" if limit_mib > 0 else "rule",
        bandwidth_bytes_s=chip.bandwidth_bytes_s if chip else probe.bandwidth(),
        prefill_flops=chip.prefill_flops if chip else None,
        available_bytes=probe.available_bytes(),
    )


def _other(probe: Probe) -> Machine:
    memory, available = probe.memory_bytes(), probe.available_bytes()
    card = probe.nvidia() if any(map(probe.has_package, _CUDA_PACKAGES)) else None
    if card is not None:
        return Machine(
            name=card.name,
            backend="cuda",
            memory_bytes=memory,
            gpu_bytes=card.memory_bytes,
            gpu_source="driver",
            bandwidth_bytes_s=probe.bandwidth(),
            available_bytes=available,
        )
    return Machine(
        name=probe.processor() or probe.architecture or "unknown processor",
        backend="cpu",
        memory_bytes=memory,
        bandwidth_bytes_s=probe.bandwidth(),
        available_bytes=available,
    )


def _processor(cpuinfo: Path) -> str | None:
    try:
        lines = cpuinfo.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, None)


def _has_package(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _nvidia() -> NvidiaCard | None:
    try:
        answer = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_DRIVER_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_nvidia(answer.stdout)


def parse_nvidia(answer: str) -> NvidiaCard | None:
    """The first card of `nvidia-smi`'s `name, MiB` lines; None when there is none."""
    name, _, size = answer.partition("\n")[0].rpartition(",")
    try:
        return NvidiaCard(name.strip(), int(size) * _MIB) if name else None
    except ValueError:
        return None

"""The program and what it stands on: versions, mlx, the GPU's memory, BLAS, descriptors."""

import platform
import resource
import subprocess
import sys
from collections.abc import Callable
from typing import Final

import msgspec

from shared import __version__
from shared.sizes import format_size
from supervisor.catalog.machine import Machine
from supervisor.doctor.finding import Finding, fail, ok, warn
from supervisor.system.service import Running
from supervisor.workers.books import budget_of

_OLDEST: Final = (3, 11)
_PROBE_S: Final = 60.0
_FEW_DESCRIPTORS: Final = 1024
_LEFT_FOR_THE_SYSTEM_BYTES: Final = 4 * 2**30
_REINSTALL: Final = "make setup, or: uv tool install --reinstall mlx-supervisor"

FACTS: Final = (sys.executable, "-P", "-m", "worker.model.facts")
"""What only a process that imports mlx can tell."""


class MlxFacts(msgspec.Struct, frozen=True):
    """What mlx says of itself and of this machine."""

    mlx: str
    mlx_lm: str
    backend: str
    blas: str | None = None
    """The OpenBLAS that a worker would load, on Linux."""
    working_set_bytes: int = 0
    """What the GPU may hold; 0 where there is none."""


class NoMlxError(Exception):
    """Raised when mlx does not work; the message is its last words."""


def ask_mlx(command: tuple[str, ...] = FACTS) -> MlxFacts:
    """Have a process import mlx and compute something. Raises NoMlxError."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_S, check=False)
    except subprocess.TimeoutExpired:
        raise NoMlxError(f"it did not answer within {_PROBE_S:.0f} s") from None
    except OSError as error:
        raise NoMlxError(error.strerror or str(error)) from None
    if ran.returncode != 0:
        words = [line.strip() for line in ran.stderr.splitlines() if line.strip()]
        how = f"signal {-ran.returncode}" if ran.returncode < 0 else f"status {ran.returncode}"
        raise NoMlxError(words[-1] if words else f"it ended with {how}")
    try:
        return msgspec.json.decode(ran.stdout, type=MlxFacts)
    except msgspec.MsgspecError as error:
        raise NoMlxError(f"it answered with something else: {error}") from None


def check_version(running: Running | None, installed: str = __version__) -> Finding:
    """This version, and whether the one that runs is another."""
    if running is not None and running.version != installed:
        return warn(
            "version",
            f"{installed} is installed, {running.version} runs",
            "the running supervisor is not the program that is installed now",
            "mlx-supervisor service restart, or: mlx-supervisor stop, then mlx-supervisor start",
        )
    return ok("version", installed + (", and it runs" if running else ""))


def check_python(
    version: tuple[int, int, int] = sys.version_info[:3],
    system: str = sys.platform,
    machine: str = platform.machine(),
) -> Finding:
    """The interpreter."""
    says = f"{'.'.join(map(str, version))} on {system}, {machine}"
    if version < _OLDEST:
        return fail(
            "python", says, "it needs Python 3.11 or newer", "uv tool install --python 3.12 mlx-supervisor"
        )
    if system == "darwin" and machine != "arm64":
        return fail(
            "python",
            says,
            "this Python runs under Rosetta or on an Intel Mac, where MLX does not work",
            "uv tool install --python cpython-3.12-macos-aarch64 mlx-supervisor",
        )
    return ok("python", says)


def check_mlx(
    ask: Callable[[], MlxFacts] = ask_mlx, system: str = sys.platform
) -> tuple[Finding, MlxFacts | None]:
    """mlx, mlx-lm, and where they compute."""
    try:
        facts = ask()
    except NoMlxError as error:
        return fail("mlx", str(error), "without mlx no model can be loaded", _REINSTALL), None
    says = f"mlx {facts.mlx}, mlx-lm {facts.mlx_lm}, on {facts.backend}"
    if system == "darwin" and facts.backend != "metal":
        return fail("mlx", says, "Metal is not available, so models would run on the CPU", _REINSTALL), facts
    return ok("mlx", says), facts


def check_memory(machine: Machine, budget: str = "auto") -> Finding:
    """What models may hold, by `memory.budget`, and whether somebody has set the GPU's limit too high."""
    total = format_size(machine.memory_bytes)
    may = f"models may take {format_size(budget_of(budget, machine))}"
    if machine.gpu_bytes is None:
        return ok("memory", f"{total}; {may} of it")
    says = f"the GPU may hold {format_size(machine.gpu_bytes)} of {total}"
    if budget != "auto":
        says += f"; {may} (memory.budget)"
    if machine.gpu_source == "setting":
        says += " (iogpu.wired_limit_mb is set)"
        if machine.gpu_bytes > machine.memory_bytes - _LEFT_FOR_THE_SYSTEM_BYTES:
            return warn(
                "memory",
                says,
                f"less than {format_size(_LEFT_FOR_THE_SYSTEM_BYTES)} are left for everything else; "
                "a full GPU can freeze the machine",
                "sudo sysctl iogpu.wired_limit_mb=0",
            )
    return ok("memory", says)


def check_blas(facts: MlxFacts | None, system: str = sys.platform) -> Finding | None:
    """OpenBLAS, where the CPU computes; None where that is of no interest."""
    if system != "linux" or facts is None or facts.backend != "cpu":
        return None
    if facts.blas is None:
        return warn(
            "blas",
            "there is no OpenBLAS",
            "float32 models compute several times slower than this CPU can",
            "sudo apt install libopenblas0-pthread",
        )
    return ok("blas", facts.blas)


def check_descriptors(
    limits: tuple[int, int] | None = None, unlimited: int = resource.RLIM_INFINITY
) -> Finding:
    """How many files and connections may be open. The program raises the soft limit by itself."""
    _, hard = limits if limits is not None else resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != unlimited and hard < _FEW_DESCRIPTORS:
        return warn(
            "descriptors",
            f"at most {hard} may be open",
            "each client takes one or two, so that many of them at once will have to wait",
            f"ulimit -Hn {_FEW_DESCRIPTORS * 10}, in the shell or service that starts it",
        )
    return ok("descriptors", "no limit" if hard == unlimited else f"up to {hard}")

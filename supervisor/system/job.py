"""What a service manager is told to run: the command, its environment, its folder and its log."""

import itertools
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec

ManagerName = Literal["launchd", "systemd"]
LOG_NAME: Final = "service.log"

_NAMES: Final = frozenset(
    {
        "TRANSFORMERS_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "XDG_CACHE_HOME",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "NO_PROXY",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
    }
)
_PREFIXES: Final = ("HF_", "MLX_")
_SECRET_NAME: Final = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
_SECRET_VALUE: Final = re.compile(r"://[^/@\s]*:[^/@\s]*@")
# Said by --home; what tells a process that it is something else than the supervisor, or has the machine now.
_OURS: Final = frozenset({"MLX_SUPERVISOR_HOME", "MLX_SUPERVISOR_LEASE", "MLX_SUPERVISOR_WORKER"})
_STANDARD_PATH: Final = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin")


class Job(msgspec.Struct, frozen=True):
    """One service. Every path is absolute."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    home: Path
    """The state folder, and the working directory."""

    @property
    def log(self) -> Path:
        """Where the manager sends what the program prints: refusals and crashes."""
        return self.home / "logs" / LOG_NAME


class Environment(msgspec.Struct, frozen=True):
    """What was found around us for the service, and the names of what was left out as secret."""

    values: Mapping[str, str]
    secrets: tuple[str, ...]


def found_environment(environ: Mapping[str, str], *, user_home: Path) -> Environment:
    """The variables that a service needs from `environ`, because managers pass none of a shell's.

    PATH without what is relative or absent, HOME, the settings of the hub's client, of MLX and of
    this program, proxies and certificates. A key or a token never gets into a service file.
    """
    values = {"HOME": str(user_home), "PATH": _path(environ.get("PATH", ""))}
    secrets: list[str] = []
    for name in sorted(environ):
        if name in _OURS or not (name.upper() in _NAMES or name.startswith(_PREFIXES)):
            continue
        if _SECRET_NAME.search(name) or _SECRET_VALUE.search(environ[name]):
            secrets.append(name)
        elif environ[name] and environ[name].isprintable():
            values[name] = environ[name]
    return Environment(values, tuple(secrets))


def _path(path: str) -> str:
    folders = [folder for folder in path.split(os.pathsep) if os.path.isabs(folder) and os.path.isdir(folder)]
    return os.pathsep.join(dict.fromkeys([*folders, *_STANDARD_PATH]))


def home_of(command: tuple[str, ...]) -> Path | None:
    """The state folder that a service's command names with --home."""
    for name, value in itertools.pairwise(command):
        if name == "--home":
            return Path(value)
    return None


def write_atomically(path: Path, content: bytes) -> None:
    """Write `path` whole or not at all, 0600: it may tell what a person has set.

    Raises OSError.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

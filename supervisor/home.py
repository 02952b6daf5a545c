"""The state folder: private, locked by one supervisor, with room for socket paths.

Everything that is trusted later (sockets, the lock, the record of running workers) lies in here, so
the folder has to be ours alone before anything in it is read or written.
"""

import contextlib
import errno
import fcntl
import os
import re
import shlex
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from shared import __version__
from shared.sockets import MAX_PATH_BYTES

VARIABLE: Final = "MLX_SUPERVISOR_HOME"
_LONGEST_SOCKET_NAME: Final = len("w-9999999.sock")
_SAFE_NAME_CHARACTERS: Final = 80

# A verb that looks whether a supervisor runs holds the lock for some microseconds.
_LOCK_TRIES: Final = 10
_LOCK_RETRY_S: Final = 0.02


class HomeError(Exception):
    """Raised when the state folder can't be used. The message is safe to print and says what to do."""


class NoHomeError(HomeError):
    """Raised when the state folder does not exist and was not to be created."""


class Holder(NamedTuple):
    """The supervisor that holds the lock; its pid is None when the lock file does not tell."""

    pid: int | None
    version: str | None


def home_path(chosen: Path | None, environ: Mapping[str, str]) -> Path:
    """The state folder's absolute path: `chosen` (--home), MLX_SUPERVISOR_HOME, or ~/.mlx-supervisor."""
    try:
        path = (chosen or Path(environ.get(VARIABLE) or "~/.mlx-supervisor")).expanduser()
    except RuntimeError:
        raise HomeError(f"there is no home folder to put the state folder in; set {VARIABLE}") from None
    # Not resolved: a symlink as the last part must still be seen as one.
    return Path(os.path.abspath(path))


class Home:
    """The state folder at `path`; `run` is where the sockets are, which is not always inside."""

    def __init__(self, path: Path, run: Path) -> None:
        self.path = path
        self.run = run
        self.config = path / "config.toml"
        self.models = path / "models"
        self.logs = path / "logs"
        self.saved_state = path / "kv"
        self.state_db = path / "state.db"
        self.control_socket = run / "control.sock"

    @classmethod
    def open(cls, path: Path, environ: Mapping[str, str] = os.environ) -> "Home":
        """The folder at `path`, created with its subfolders where missing, and checked.

        Raises HomeError when it can't be made, is a symlink, or is not ours alone.
        """
        path = Path(os.path.abspath(path))
        with _told(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            _private_folder(path)
            for name in ("run", "logs", "kv"):
                _private_folder(path / name)
            models = path / "models"
            # Large files: a symlink to another disk is the owner's good right.
            if not models.is_symlink():
                _private_folder(models)
            elif not models.is_dir():
                raise HomeError(f"{models} is a symlink that leads to no folder")
            return cls(path, _socket_folder(path, environ))

    @classmethod
    def find(cls, path: Path) -> "Home":
        """The folder at `path` as a supervisor left it; nothing is created.

        Raises NoHomeError when there is none, HomeError when it is not ours alone.
        """
        path = Path(os.path.abspath(path))
        with _told(path):
            for folder in (path, path / "run"):
                if not os.path.lexists(folder):
                    raise NoHomeError(f"{path} is not the state folder of a supervisor")
                _check_private(folder)
            run = path / "run"
            return cls(path, run if _fits(run) else _recorded(run) or run)

    def worker_socket(self, number: int) -> Path:
        """The socket of the worker with this number."""
        return self.run / f"w-{number}.sock"

    def worker_log(self, model_id: str) -> Path:
        """The log file of the model's workers. Different ids never share one."""
        safe = re.sub(r"[^A-Za-z0-9._-]", "-", model_id)[:_SAFE_NAME_CHARACTERS]
        if safe != model_id:
            safe += f"-{_digest(model_id.encode('utf-8', 'replace'))}"
        return self.logs / f"worker-{safe}.log"

    @property
    def lock_file(self) -> Path:
        return self.path / "run" / "lock"

    def lock(self) -> "HomeLock":
        """Take the folder for life: the lock ends with the process, however that ends.

        Raises HomeError, which names the holder's pid, when another supervisor has it.
        """
        with _told(self.lock_file):
            for attempt in range(_LOCK_TRIES):
                if attempt:
                    time.sleep(_LOCK_RETRY_S)
                # Close-on-exec, so that no worker goes on holding it.
                descriptor = os.open(
                    self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
                )
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(descriptor)
                    continue
                if _is_same_file(descriptor, self.lock_file):
                    if self.run != self.path / "run":
                        # A supervisor that has just ended may have removed it after we looked.
                        _make_recorded(self.path / "run", self.run)
                    return HomeLock(self, descriptor)
                # Somebody removed the file between the two calls: what was locked has no name any more.
                os.close(descriptor)
        holder = self.holder() or Holder(None, None)
        pid = f"pid {holder.pid}" if holder.pid else "pid unknown"
        version = f", version {holder.version}" if holder.version else ""
        raise HomeError(
            f"another supervisor ({pid}{version}) runs with {self.path}; stop it with "
            f"`mlx-supervisor stop`, or start this one with another --home and --port"
        )

    def holder(self) -> Holder | None:
        """The supervisor that holds the lock now, or None."""
        with _told(self.lock_file):
            try:
                descriptor = os.open(self.lock_file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                return None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                words = os.pread(descriptor, 200, 0).decode("utf-8", "replace").split()
                pid = int(words[0]) if words and words[0].isdecimal() else None
                return Holder(pid, words[1] if len(words) > 1 else None)
            else:
                return None
            finally:
                os.close(descriptor)


class HomeLock:
    """The lock on a state folder, held until `close` or the end of the process."""

    def __init__(self, home: Home, descriptor: int) -> None:
        self._home = home
        self._descriptor: int | None = descriptor
        # The lock is the lock; the text is only for people. A full disk must not stop a start.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()} {__version__}\n".encode(), 0)

    def hand_over(self) -> int:
        """The lock's descriptor for the program that takes the place of this one; `close` is not for it.

        There will be no sockets, so a folder that was made for them goes.
        """
        assert self._descriptor is not None
        self._remove_socket_folder()
        os.set_inheritable(self._descriptor, True)
        return self._descriptor

    def close(self) -> None:
        """Let go of the folder. The file stays: removing it would let two processes lock two files."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        self._remove_socket_folder()
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
        os.close(descriptor)

    def _remove_socket_folder(self) -> None:
        run = self._home.path / "run"
        if self._home.run != run:
            # Not empty means that something is wrong with a worker's end, and the sweep will want it.
            with contextlib.suppress(OSError):
                self._home.run.rmdir()
                (run / "sockets").unlink()


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn what the system refuses into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise HomeError(f"{error.filename or path} is a symlink; it was left alone") from error
        raise HomeError(f"can't use {error.filename or path}: {error.strerror}") from error


def _private_folder(path: Path) -> None:
    """Make the folder unless it is there, and check it. Raises HomeError, or OSError from the system."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    _check_private(path)


def _check_private(path: Path) -> None:
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        raise HomeError(
            f"{path} is a symlink; give the folder it leads to instead, so that nobody can turn it"
        )
    if not stat.S_ISDIR(status.st_mode):
        raise HomeError(f"{path} is not a folder; move it away or choose another with --home")
    if status.st_uid != os.geteuid():
        raise HomeError(
            f"{path} belongs to user {status.st_uid}, not to you ({os.geteuid()}); "
            "choose a folder of your own with --home"
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise HomeError(
            f"{path} must be open to you alone, but its mode is {mode:04o}; "
            f"run: chmod 700 {shlex.quote(str(path))}"
        )


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _fits(folder: Path) -> bool:
    """Whether every socket in `folder` has a path that the system takes."""
    return len(os.fsencode(folder)) + 1 + _LONGEST_SOCKET_NAME <= MAX_PATH_BYTES


def _socket_folder(home: Path, environ: Mapping[str, str]) -> Path:
    """`run`, or a short private folder elsewhere when paths in `run` would be too long for sockets.

    Its name is told by the state folder's path, and it is written down in `run/sockets`, because
    whoever looks for it later may run with another TMPDIR.
    """
    run = home / "run"
    if _fits(run):
        return run
    if (recorded := _recorded(run)) is not None:
        return recorded
    name = f"mlxs-{os.geteuid()}-{_digest(os.fsencode(home))}"
    reasons: list[str] = []
    for variable in ("XDG_RUNTIME_DIR", "TMPDIR", None):
        base = environ.get(variable, "") if variable else "/tmp"  # noqa: S108  # checked to be ours below
        folder = Path(base) / name
        if not folder.is_absolute() or not _fits(folder):
            continue
        try:
            _make_recorded(run, folder)
        except HomeError as error:
            reasons.append(str(error))
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}")
        else:
            return folder
    raise HomeError(
        f"{home} is too long a path for sockets in it, and no short folder could be made for them: "
        f"{'; '.join(reasons)}. Choose a shorter one with --home"
    )


def _digest(data: bytes) -> str:
    import hashlib  # brings OpenSSL, which most verbs of the command line can do without

    return hashlib.blake2b(data, digest_size=5).hexdigest()


def _make_recorded(run: Path, folder: Path) -> None:
    _private_folder(folder)
    (run / "sockets").write_text(f"{folder}\n")


def _recorded(run: Path) -> Path | None:
    """The short folder that was written down, if it still is what it should be."""
    try:
        folder = Path((run / "sockets").read_text().strip())
        _check_private(folder)
    except (OSError, UnicodeDecodeError, HomeError):
        return None
    return folder if folder.is_absolute() and _fits(folder) else None

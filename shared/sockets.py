"""Unix sockets that only their owner can open."""

import contextlib
import os
import socket
import stat
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

MAX_PATH_BYTES: Final = 103
"""macOS has room for 104 bytes with the closing NUL (sys/un.h); Linux for 108. One rule for both."""


class SocketPathError(Exception):
    """Raised when a socket can't be bound at a path; the message says why and what to do."""


def check_path(path: Path) -> None:
    """Raises SocketPathError when `path` would not fit into a socket address."""
    length = len(os.fsencode(path))
    if length > MAX_PATH_BYTES:
        raise SocketPathError(
            f"{path} is {length} bytes long; a Unix socket's path may have {MAX_PATH_BYTES}. "
            "Choose a shorter state folder with --home or MLX_SUPERVISOR_HOME"
        )


def remove_stale(path: Path) -> None:
    """Remove the socket file of a process that is gone.

    Only a socket that refuses connections is removed. Raises SocketPathError when something listens
    there, or when the path is a regular file, a symlink or anything else that we did not put there.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SocketPathError(
            f"{path} exists and is not a socket; it was left alone. Move it away and try again"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        except FileNotFoundError:
            return
        except OSError as error:
            raise SocketPathError(
                f"{path} could not be probed: {error.strerror}; it was left alone"
            ) from error
        else:
            raise SocketPathError(f"another process listens on {path}")


def bind_private(path: Path, *, backlog: int = 1024) -> socket.socket:
    """A listening socket at `path` that is 0600 from birth, non-blocking.

    Raises SocketPathError; see `check_path` and `remove_stale`.
    """
    check_path(path)
    remove_stale(path)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Between bind and chmod the file would be open to others; the mask leaves no such moment.
    previous = os.umask(0o177)
    try:
        server.bind(str(path))
    except OSError as error:
        server.close()
        raise SocketPathError(f"can't bind {path}: {error.strerror}") from error
    finally:
        os.umask(previous)
    server.listen(backlog)
    server.setblocking(False)
    return server


def unlink_quietly(path: Path) -> None:
    """Remove our own socket file at the end, whether or not it is still there."""
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


# macOS: sys/un.h. struct xucred { u_int cr_version; uid_t cr_uid; short cr_ngroups; gid_t cr_groups[16]; }
_SOL_LOCAL: Final = 0
_LOCAL_PEERCRED: Final = 0x001
_XUCRED_BYTES: Final = 76
_LOCAL_PEERPID: Final = 0x002


def peer_uid(connection: socket.socket, *, platform: str = sys.platform) -> int | None:
    """User id of the process at the other end; None where the OS does not tell."""
    if platform == "linux":
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", credentials)[1])
    if platform == "darwin":
        credentials = connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_BYTES)
        return int(struct.unpack_from("=II", credentials)[1])
    return None


def peer_pid(connection: socket.socket, *, platform: str = sys.platform) -> int | None:
    """The process that opened the connection, which another may have now; None where the OS does not tell."""
    pid = 0
    if platform == "linux":
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid = struct.unpack("3i", credentials)[0]
    elif platform == "darwin":
        (pid,) = struct.unpack("=i", connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID, 4))
    return pid or None  # 0 is one that can't be seen from here, as from within a container


def is_own_peer(
    connection: socket.socket, *, probe: Callable[[socket.socket], int | None] = peer_uid
) -> bool:
    """Whether the other end runs as us (or as root). The file's mode is the first wall, this the second."""
    uid = probe(connection)
    return uid is None or uid in (0, os.geteuid())

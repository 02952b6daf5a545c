"""Who is at the other end of a Unix socket."""

import os
import socket
import struct
import sys
from typing import cast

import pytest

from shared.sockets import peer_pid, peer_uid


class Mac:
    """A connection as macOS tells of it: sys/un.h and sys/ucred.h."""

    def __init__(self, uid: int, pid: int) -> None:
        self._told = {0x001: struct.pack("=IIh64x2x", 0, uid, 1), 0x002: struct.pack("=i", pid)}

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert level == 0 and size == len(self._told[option])
        return self._told[option]


@pytest.mark.skipif(sys.platform not in ("linux", "darwin"), reason="the system does not tell")
def test_the_system_tells_who_connected() -> None:
    connection, other = socket.socketpair(socket.AF_UNIX)
    with connection, other:
        assert (peer_uid(connection), peer_pid(connection)) == (os.geteuid(), os.getpid())


def test_macos_tells_user_and_process_by_options_of_its_own() -> None:
    mac = cast(socket.socket, Mac(501, 77))
    assert (peer_uid(mac, platform="darwin"), peer_pid(mac, platform="darwin")) == (501, 77)
    assert peer_pid(cast(socket.socket, Mac(501, 0)), platform="darwin") is None, "it can't be seen from here"


def test_elsewhere_nobody_is_known() -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        assert peer_uid(connection, platform="other") is None
        assert peer_pid(connection, platform="other") is None

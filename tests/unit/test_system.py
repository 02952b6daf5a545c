"""The public port and the descriptor limit."""

import os
import resource
import socket
import subprocess
import sys

import pytest

from supervisor.system.descriptors import raise_limit
from supervisor.system.listener import PortError, bind_public, public_url


def test_a_free_port_is_bound_and_named() -> None:
    with bind_public("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert public_url(listener) == f"http://127.0.0.1:{port}"
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass


def test_a_taken_port_names_its_holder() -> None:
    with bind_public("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PortError, match=rf"port {port} .* taken by .*\(pid {os.getpid()}\)"):
            bind_public("127.0.0.1", port)
        # Where the OS does not tell.
        with pytest.raises(PortError, match="taken by another process"):
            bind_public("127.0.0.1", port, find_holder=lambda _: None)


def test_an_unknown_host_is_refused_with_its_name() -> None:
    with pytest.raises(PortError, match=r"can't listen on 'no\.such\.invalid'"):
        bind_public("no.such.invalid", 0)


def test_the_soft_limit_is_raised_from_launchds_256() -> None:
    script = (
        "import resource; from supervisor.system.descriptors import raise_limit;"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1];"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard)); print(raise_limit())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 256


def test_a_high_limit_is_left_alone() -> None:
    before = raise_limit()
    assert raise_limit() == before == resource.getrlimit(resource.RLIMIT_NOFILE)[0]

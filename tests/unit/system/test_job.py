"""What goes into a service file from the shell that installs it, and what does not."""

import stat
from pathlib import Path

import pytest

from supervisor.system.job import Job, found_environment, home_of, write_atomically


def test_what_launchd_does_not_give_is_written_in(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    environ = {
        "PATH": f"{folder}:relative:{tmp_path / 'absent'}:{folder}:/usr/bin",
        "HF_HOME": "/models/hub",
        "HF_HUB_OFFLINE": "1",
        "https_proxy": "http://proxy.example:3128",
        "MLX_SUPERVISOR_SERVER_PORT": "9000",
        "MLX_SUPERVISOR_HOME": "/elsewhere",
        "MLX_SUPERVISOR_LEASE": "sh (pid 1)",
        "EDITOR": "ed",
        "HF_EMPTY": "",
        "HF_ODD": "a\nb",
    }
    found = found_environment(environ, user_home=Path("/Users/me"))
    assert found.secrets == ()
    path = found.values["PATH"].split(":")
    assert path[:2] == [str(folder), "/usr/bin"] and len(set(path)) == len(path)
    assert {name: value for name, value in found.values.items() if name != "PATH"} == {
        "HOME": "/Users/me",
        "HF_HOME": "/models/hub",
        "HF_HUB_OFFLINE": "1",
        "https_proxy": "http://proxy.example:3128",
        "MLX_SUPERVISOR_SERVER_PORT": "9000",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "hf_abc"),
        ("MLX_SUPERVISOR_SERVER_KEYS", "sk-1"),
        ("HTTPS_PROXY", "http://me:word@proxy.example"),
        ("http_proxy", "http://:word@proxy.example"),
    ],
)
def test_secrets_are_left_out_and_named(name: str, value: str) -> None:
    found = found_environment({name: value}, user_home=Path("/Users/me"))
    assert found.secrets == (name,)
    assert name not in found.values


def test_the_state_folder_is_read_off_the_command() -> None:
    assert home_of(("x", "service", "run", "--home", "/a b/c")) == Path("/a b/c")
    assert home_of(("x", "--home")) is None
    assert Job(("x",), {}, Path("/h")).log == Path("/h/logs/service.log")


def test_a_file_is_written_whole_and_private_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.plist"
    path.write_bytes(b"old")
    path.chmod(0o666)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_atomically(tmp_path / "folder", b"new")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["folder", "x.plist"]

"""The state folder: real folders, and real processes that fight for it."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from shared import __version__
from shared.sockets import MAX_PATH_BYTES, bind_private
from supervisor.home import Home, HomeError, NoHomeError, home_path

HOLD = """
import sys
from pathlib import Path
from supervisor.home import Home, HomeError
try:
    home = Home.open(Path(sys.argv[1]))
    lock = home.lock()
except HomeError as error:
    sys.exit(str(error))
{after}
print("locked", flush=True)
sys.stdin.read()
lock.close()
"""


class Holder:
    """A process that holds the lock on a folder until its input ends."""

    def __init__(self, path: Path, after: str = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD.format(after=after), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGKILL)

    def end(self, signal_number: int | None = None) -> None:
        if self.process.returncode is None:
            if signal_number is not None:
                self.process.send_signal(signal_number)
            self.process.communicate(timeout=20)


@pytest.fixture
def home_at() -> Iterator[Path]:
    """Short enough for sockets, whatever the test run's own folder is called."""
    with tempfile.TemporaryDirectory(prefix="home-", dir="/tmp") as name:
        yield Path(name) / "home"


@pytest.fixture
def short_base() -> Iterator[Path]:
    """A folder with a short path: pytest's own are nearly too long for sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="m") as name:
        yield Path(name)


def mode(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def written(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """What changes when a file is written or replaced; reading is allowed."""
    stats = {path: path.lstat() for path in folder.rglob("*")}
    return {path: (status.st_ino, status.st_size, status.st_mtime_ns) for path, status in stats.items()}


def test_everything_is_created_private(home_at: Path) -> None:
    previous = os.umask(0)
    try:
        home = Home.open(home_at / "deep" / "er")
    finally:
        os.umask(previous)
    assert {mode(path) for path in (home.path, home.path / "run", home.logs, home.models)} == {0o700}
    assert home.config == home.path / "config.toml"
    assert home.run == home.path / "run"
    assert home.control_socket == home.run / "control.sock"
    assert home.worker_socket(3) == home.run / "w-3.sock"
    assert Home.open(home.path).path == home.path


def test_where_the_folder_is(tmp_path: Path) -> None:
    environ = {"MLX_SUPERVISOR_HOME": str(tmp_path / "env")}
    assert home_path(tmp_path / "flag", environ) == tmp_path / "flag"
    assert home_path(None, environ) == tmp_path / "env"
    assert home_path(None, {}) == Path.home() / ".mlx-supervisor"
    assert home_path(Path("~/x"), {}) == Path.home() / "x"
    assert home_path(Path("x"), {}) == Path.cwd() / "x"


def test_open_to_others_is_refused_with_the_command_that_mends_it(tmp_path: Path) -> None:
    """Fault 36: a folder that others may enter."""
    path = tmp_path / "my home"
    path.mkdir(mode=0o755)
    with pytest.raises(HomeError) as caught:
        Home.open(path)
    command = str(caught.value).partition("run: ")[2]
    assert command == f"chmod 700 '{path}'"
    assert not (path / "run").exists(), "a folder that is not private was written to"
    subprocess.run(command, shell=True, check=True)
    Home.open(path)


@pytest.mark.parametrize("name", ["run", "logs"])
def test_subfolders_are_checked_too(home_at: Path, name: str) -> None:
    Home.open(home_at)
    (home_at / name).chmod(0o770)
    with pytest.raises(HomeError, match=rf"{name} must be open to you alone, but its mode is 0770"):
        Home.open(home_at)


@pytest.mark.parametrize("name", [".", "run", "logs"])
def test_a_symlink_is_refused(tmp_path: Path, name: str) -> None:
    """Fault 36: whoever made the symlink could turn it elsewhere later."""
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    path = tmp_path / "home"
    if name != ".":
        Home.open(path)
        (path / name).rmdir()
    (path / name if name != "." else path).symlink_to(target)
    with pytest.raises(HomeError, match="is a symlink"):
        Home.open(path)
    assert list(target.iterdir()) == []


def test_models_may_be_a_symlink_to_another_disk(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    home = Home.open(tmp_path / "home")
    home.models.rmdir()
    home.models.symlink_to(tmp_path / "disk")
    assert Home.open(home.path).models.is_dir()
    (tmp_path / "disk").rmdir()
    with pytest.raises(HomeError, match="leads to no folder"):
        Home.open(home.path)


def test_a_file_in_the_way_is_left_alone(home_at: Path) -> None:
    home_at.write_text("mine")
    with pytest.raises(HomeError, match="is not a folder"):
        Home.open(home_at)
    assert home_at.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_somebody_elses_folder_is_refused(home_at: Path) -> None:
    """Fault 36: a folder made by somebody else."""
    home_at.mkdir(mode=0o700)
    os.chown(home_at, 12345, 12345)
    with pytest.raises(HomeError, match="belongs to user 12345, not to you"):
        Home.open(home_at)


def test_what_the_system_refuses_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HomeError, match=r"can't use .*: (File exists|Not a directory)"):
        Home.open(tmp_path / "file" / "home")
    with pytest.raises(HomeError, match="File name too long"):
        Home.open(tmp_path / ("x" * 300))


def test_log_names_never_leave_the_folder_and_never_clash(home_at: Path) -> None:
    home = Home.open(home_at)
    assert home.worker_log("qwen3-8b").name == "worker-qwen3-8b.log"
    ids = ["a/b", "a-b", "a b", "../../etc/passwd", "x" * 5000, "x" * 5001, "\n", "ü", "\udc80"]
    logs = [home.worker_log(model_id) for model_id in ids]
    assert len(set(logs)) == len(ids)
    for log in logs:
        assert log.parent == home.logs
        assert len(log.name) < 120
        log.write_text("")


# Short socket folders.


def deep(base: Path, socket_bytes: int) -> Path:
    """A state folder in which the path of `w-9999999.sock` has so many bytes."""
    rest = socket_bytes - len(str(base / "x" / "run" / "w-9999999.sock")) + 1
    return base / ("h" * rest)


def test_the_longest_path_that_fits_stays_inside(short_base: Path) -> None:
    home = Home.open(deep(short_base, MAX_PATH_BYTES))
    assert home.run == home.path / "run"
    bind_private(home.worker_socket(9_999_999)).close()


def test_a_longer_path_gets_a_short_private_folder(short_base: Path) -> None:
    """Fault 14: never a cut-off bind."""
    home = Home.open(deep(short_base, MAX_PATH_BYTES + 1), {"TMPDIR": str(short_base)})
    assert home.run.parent == short_base
    assert mode(home.run) == 0o700
    bind_private(home.control_socket).close()
    # Whoever looks for it later finds it, also from an environment with another TMPDIR.
    assert Home.find(home.path).control_socket == home.control_socket
    assert Home.open(home.path, {}).run == home.run
    # Another state folder gets another one.
    other = Home.open(Path(f"{home.path}2"), {"TMPDIR": str(short_base)})
    assert other.run != home.run


def test_the_short_folder_goes_with_its_supervisor(short_base: Path) -> None:
    home = Home.open(deep(short_base, MAX_PATH_BYTES + 1), {"TMPDIR": str(short_base)})
    home.lock().close()
    assert not home.run.exists()
    # One that was removed between the look and the lock is made again.
    lock = home.lock()
    assert home.run.is_dir()
    assert Home.find(home.path).run == home.run
    lock.close()


def test_a_short_folder_of_somebody_else_is_never_used(short_base: Path) -> None:
    path = deep(short_base, MAX_PATH_BYTES + 1)
    first, second = short_base / "1", short_base / "2"
    first.mkdir()
    second.mkdir()
    home = Home.open(path, {"XDG_RUNTIME_DIR": str(first), "TMPDIR": str(second)})
    assert home.run.parent == first
    name = home.run.name
    home.lock().close()
    (first / name).symlink_to(second)
    home = Home.open(path, {"XDG_RUNTIME_DIR": str(first), "TMPDIR": str(second)})
    assert home.run == second / name
    home.run.chmod(0o777)
    assert Home.find(path).run == path / "run", "a folder open to others was trusted"


def test_no_place_for_short_paths_is_told(short_base: Path) -> None:
    path = deep(short_base, MAX_PATH_BYTES + 1)
    there = Path("/tmp") / Home.open(path, {}).run.name
    there.rmdir()
    there.symlink_to(short_base)
    try:
        with pytest.raises(HomeError, match=r"too long a path.*symlink.*--home"):
            Home.open(path, {"TMPDIR": str(short_base / ("t" * 100))})
    finally:
        there.unlink()


# The lock.


def test_the_second_supervisor_names_the_first_and_touches_nothing(home_at: Path) -> None:
    """Fault 11: two supervisors on one state folder."""
    with Holder(home_at) as first:
        assert first.said == "locked"
        files = written(home_at)
        second = subprocess.run(
            [sys.executable, "-c", HOLD.format(after=""), str(home_at)], capture_output=True, text=True
        )
        assert second.returncode == 1
        assert f"another supervisor (pid {first.process.pid}, version {__version__})" in second.stderr
        assert written(home_at) == files
        holder = Home.find(home_at).holder()
        assert holder is not None
        assert (holder.pid, holder.version) == (first.process.pid, __version__)
        first.end()
        assert Home.find(home_at).holder() is None
        Home.open(home_at).lock().close()


def test_the_lock_ends_with_its_process_although_a_worker_lives_on(home_at: Path) -> None:
    """Faults 3 and 13: after kill -9 a new supervisor starts at once, whatever the old one left."""
    start_worker = (
        "import subprocess\n"
        "worker = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], close_fds=False,\n"
        "    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)\n"
        "print(worker.pid, flush=True)"
    )
    with Holder(home_at, start_worker) as holder:
        worker = int(holder.said)
    try:
        os.kill(worker, 0)
        assert "pid" not in (home_at / "run" / "lock").read_text()
        assert (home_at / "run" / "lock").read_text().startswith(f"{holder.process.pid} ")
        home = Home.open(home_at)
        assert home.holder() is None
        home.lock().close()
    finally:
        os.kill(worker, signal.SIGKILL)


def test_a_lock_file_from_before_a_power_cut_is_no_lock(home_at: Path) -> None:
    """Fault 13. The pid in it may by now belong to anybody."""
    home = Home.open(home_at)
    home.lock_file.write_text(f"{os.getpid()} 0.0.9\n")
    assert home.holder() is None
    lock = home.lock()
    assert home.lock_file.read_text() == f"{os.getpid()} {__version__}\n"
    lock.close()
    lock.close()
    assert home.lock_file.read_text() == ""


@pytest.mark.parametrize("content", ["", "nonsense", "\x00\xff"])
def test_a_holder_that_could_not_write_its_pid_still_holds(home_at: Path, content: str) -> None:
    home = Home.open(home_at)
    lock = home.lock()
    home.lock_file.write_text(content)
    with pytest.raises(HomeError, match="another supervisor \\(pid unknown"):
        home.lock()
    lock.close()


def test_a_symlink_as_lock_is_left_alone(home_at: Path, tmp_path: Path) -> None:
    home = Home.open(home_at)
    target = tmp_path / "precious"
    target.write_text("data")
    home.lock_file.symlink_to(target)
    with pytest.raises(HomeError, match="is a symlink"):
        home.lock()
    assert target.read_text() == "data"


def test_looking_for_the_holder_does_not_get_in_the_way(home_at: Path) -> None:
    home = Home.open(home_at)
    looking = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path; from supervisor.home import Home\n"
            "home = Home.find(Path(sys.argv[1])); print(flush=True)\n"
            "while True: home.holder()",
            str(home_at),
        ],
        stdout=subprocess.PIPE,
    )
    try:
        assert looking.stdout is not None
        looking.stdout.readline()
        for _ in range(50):
            home.lock().close()
    finally:
        looking.kill()
        looking.communicate()


def test_find_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(NoHomeError):
        Home.find(tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []
    empty = tmp_path / "empty"
    empty.mkdir(mode=0o700)
    with pytest.raises(NoHomeError):
        Home.find(empty)
    assert list(empty.iterdir()) == []


def test_find_refuses_a_folder_that_others_could_have_prepared(tmp_path: Path) -> None:
    path = tmp_path / "home"
    Home.open(path)
    path.chmod(0o777)
    with pytest.raises(HomeError, match="open to you alone"):
        Home.find(path)

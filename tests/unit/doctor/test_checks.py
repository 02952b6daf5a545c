"""Each look of the doctor, with each outcome: what it finds, and whether it says what mends it."""

import json
import os
import resource
import sys
import urllib.error
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shared.status import FailureKind
from supervisor.catalog.catalog import ModelEntry
from supervisor.catalog.machine import Machine
from supervisor.doctor.examination import summary
from supervisor.doctor.finding import Finding, fail, ok, warn
from supervisor.doctor.outside import check_hub, check_port, check_service, has_login, who_listens
from supervisor.doctor.program import (
    MlxFacts,
    NoMlxError,
    ask_mlx,
    check_blas,
    check_descriptors,
    check_memory,
    check_mlx,
    check_python,
    check_version,
)
from supervisor.doctor.selftest import TrialError, Tried, check_worker, smallest, try_worker
from supervisor.doctor.state import (
    check_disk,
    check_garbage,
    check_home,
    check_lock,
    check_logs,
    check_models,
    check_settings,
    check_stale,
)
from supervisor.home import Holder, Home
from supervisor.settings import ModelSettings, ServerSettings, Settings
from supervisor.system.commands import Output, ServiceError
from supervisor.system.listener import PortError
from supervisor.system.service import Running, Status
from tests.fixtures.fake_shapes import COMMAND, Load
from tests.fixtures.models import write_fake_model

GIB = 2**30
RUNNING = Running(4711, "1.0", "http://127.0.0.1:8080")


def finding(found: Finding, status: str, *words: str) -> Finding:
    """Check what was found; whatever is not fine says what it means."""
    assert found.status == status, found
    assert (found.means is None) is (status == "ok"), found
    text = " ".join(filter(None, (found.says, found.means, found.mend)))
    assert all(word in text for word in words), found
    return found


# The program.


def test_version() -> None:
    finding(check_version(None, "1.0"), "ok", "1.0")
    finding(check_version(RUNNING, "1.0"), "ok", "it runs")
    found = finding(check_version(RUNNING, "1.1"), "warn", "1.1 is installed, 1.0 runs")
    assert found.mend is not None and found.mend.startswith("mlx-supervisor service restart")


def test_python() -> None:
    finding(check_python((3, 12, 4), "linux", "x86_64"), "ok", "3.12.4 on linux, x86_64")
    finding(check_python((3, 12, 4), "darwin", "arm64"), "ok")
    finding(check_python((3, 10, 1), "linux", "x86_64"), "fail", "3.11 or newer")
    finding(check_python((3, 12, 4), "darwin", "x86_64"), "fail", "Rosetta")


def test_mlx_is_asked_in_a_process_of_its_own() -> None:
    facts = ask_mlx()
    assert facts.mlx and facts.mlx_lm and facts.backend in ("cpu", "metal", "cuda")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import no_such_module", "No module named 'no_such_module'"),
        ("import os; os.kill(os.getpid(), 11)", "signal 11"),
        ("import sys; sys.exit(3)", "status 3"),
        ("print('hello')", "something else"),
    ],
)
def test_an_mlx_that_does_not_work(program: str, words: str) -> None:
    found, facts = check_mlx(lambda: ask_mlx((sys.executable, "-S", "-c", program)))
    assert facts is None
    finding(found, "fail", words, "no model can be loaded", "reinstall")
    with pytest.raises(NoMlxError):
        ask_mlx(("/no/such/program",))


def test_the_backend() -> None:
    cpu, metal = MlxFacts("1", "2", "cpu"), MlxFacts("1", "2", "metal")
    finding(check_mlx(lambda: cpu, "linux")[0], "ok", "mlx 1, mlx-lm 2, on cpu")
    finding(check_mlx(lambda: metal, "darwin")[0], "ok", "on metal")
    finding(check_mlx(lambda: cpu, "darwin")[0], "fail", "Metal is not available")


def test_memory() -> None:
    def mac(gpu_gib: int, source: Any) -> Machine:
        return Machine("Apple M4", "metal", 32 * GIB, gpu_gib * GIB, source)

    finding(check_memory(Machine("AMD", "cpu", 32 * GIB)), "ok", "models may take 24.0 GiB")
    finding(check_memory(mac(21, "rule")), "ok", "the GPU may hold 21.0 GiB of 32.0 GiB")
    finding(check_memory(mac(21, "rule"), "50%"), "ok", "models may take 16.0 GiB (memory.budget)")
    finding(check_memory(Machine("AMD", "cpu", 32 * GIB), "3GiB"), "ok", "models may take 3.0 GiB of it")
    finding(check_memory(mac(26, "setting")), "ok", "iogpu.wired_limit_mb is set")
    finding(check_memory(mac(31, "setting")), "warn", "freeze", "sudo sysctl iogpu.wired_limit_mb=0")


def test_blas() -> None:
    with_it = MlxFacts("1", "2", "cpu", "libopenblas.so.0")
    without = MlxFacts("1", "2", "cpu")
    assert check_blas(without, "darwin") is None
    assert check_blas(None, "linux") is None
    assert check_blas(MlxFacts("1", "2", "cuda"), "linux") is None
    for facts, status, word in ((with_it, "ok", "libopenblas"), (without, "warn", "apt install")):
        found = check_blas(facts, "linux")
        assert found is not None
        finding(found, status, word)


def test_descriptors() -> None:
    finding(check_descriptors((256, 256)), "warn", "at most 256", "ulimit -Hn")
    finding(check_descriptors((256, 10_240)), "ok", "up to 10240")
    finding(check_descriptors((256, resource.RLIM_INFINITY)), "ok", "no limit")
    finding(check_descriptors(), "ok")


# The state folder.


def test_the_state_folder(tmp_path: Path) -> None:
    path = tmp_path / "home"
    finding(check_home(path)[0], "ok", "the first start makes it")
    Home.open(path)
    found, home = check_home(path)
    finding(found, "ok", str(path), "yours alone")
    assert home is not None
    path.chmod(0o755)
    found, home = check_home(path)
    assert home is None
    assert finding(found, "fail", "0755").mend == f"chmod 700 {path}"
    path.chmod(0o700)
    (tmp_path / "link").symlink_to(path)
    finding(check_home(tmp_path / "link")[0], "fail", "symlink")


def test_a_long_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / ("long" * 25)
    run = Home.open(path).run
    assert run != path / "run"
    finding(check_home(path)[0], "ok", "its path is long", str(run))
    (path / "run" / "sockets").unlink()
    run.rmdir()


def test_the_lock() -> None:
    finding(check_lock(None, None), "ok", "none runs")
    finding(check_lock(Holder(4711, "1.0"), RUNNING), "ok", "http://127.0.0.1:8080/v1, pid 4711")
    finding(check_lock(Holder(4711, "1.0"), None), "warn", "pid 4711", "stuck", "mlx-supervisor stop")
    finding(check_lock(Holder(None, None), None), "warn", "pid unknown")


def test_the_logs(tmp_path: Path) -> None:
    home = Home.open(tmp_path / "home")
    finding(check_logs(home, None), "ok", str(home.logs))
    finding(check_logs(home, RUNNING), "ok", "nothing was lost")
    full = msgspec.structs.replace(RUNNING, lost_log_lines=12)
    finding(check_logs(home, full), "warn", "12 lines", "disk was full", "df -h")


def test_what_a_killed_supervisor_left(tmp_path: Path) -> None:
    home = Home.open(tmp_path / "home")
    finding(check_stale(home, None), "ok", "nothing")
    finding(check_stale(home, Holder(1, None)), "ok", "while a supervisor runs")
    finding(check_stale(home, None, lambda _: [11, 12]), "warn", "pid 11, 12", "mlx-supervisor start")
    (home.run / "w-1.sock").touch()
    finding(check_stale(home, None), "ok", "1 dead sockets")


def test_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    found, settings = check_settings(path, {})
    finding(found[0], "ok", "all defaults")
    path.write_text("[server]\nprot = 1\nport = 99999\n")
    found, settings = check_settings(path, {})
    assert [item.status for item in found] == ["fail", "fail"]
    finding(found[0], "fail", f"{path}:2: server.prot", "did you mean server.port?", f"edit {path}")
    assert settings == Settings()
    path.write_text("[server]\nport = 9999\n")
    found, settings = check_settings(path, {})
    finding(found[0], "ok", str(path))
    assert settings.server.port == 9999


def test_models_and_garbage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    home = Home.open(tmp_path / "home")
    found, usable = check_models(home, Settings())
    finding(found, "warn", "nothing to serve", "mlx-supervisor pull")
    write_fake_model(home.models / "whole")
    found, usable = check_models(home, Settings())
    finding(found, "ok", "1, all of them whole")
    (home.models / "broken").mkdir()
    found, usable = check_models(home, Settings())
    finding(found, "warn", "1 of 2 can't be loaded: broken: it has no config.json")
    assert [entry.id for entry in usable] == ["whole"]
    finding(check_garbage(home, Settings()), "ok", "none")
    left = home.models / ".importing-x-999999999"
    left.mkdir()
    with (left / "weights").open("wb") as file:
        file.truncate(2 * GIB)
    finding(check_garbage(home, Settings()), "warn", "2.0 GiB", "mlx-supervisor gc --dry-run")


def test_the_disk(tmp_path: Path) -> None:
    places = [("the state folder", tmp_path / "not" / "yet"), ("the cache", tmp_path)]
    for room, status in ((100 * GIB, "ok"), (3 * GIB, "warn"), (2**20, "fail")):
        found = check_disk(places, lambda _, room=room: room)  # type: ignore[misc]  # bound at once
        # Both are on one disk.
        assert len(found) == 1
        finding(found[0], status, "free for the state folder")
    finding(check_disk(places)[0], check_disk(places)[0].status)

    def broken(_: Path) -> int:
        raise OSError(5, "Input/output error")

    assert [item.status for item in check_disk(places, broken)] == ["fail", "fail"]


# Around it.


def test_the_port() -> None:
    server = ServerSettings(port=0)
    finding(check_port(server, None), "ok", "127.0.0.1:0 is free")
    finding(check_port(server, RUNNING), "ok", "8080 is held by the running supervisor")

    def taken(host: str, port: int, *, find_holder: Any) -> Any:
        raise PortError(f"port {port} on {host} is taken by {find_holder(port)}; stop it")

    found = check_port(ServerSettings(), None, taken, lambda port: f"nginx (pid {port})")
    finding(found, "fail", "port 8080 on 127.0.0.1 is taken by nginx (pid 8080)", "stop it")


def test_who_listens_on_a_mac_is_told_by_lsof() -> None:
    def lsof(command: list[str]) -> Output:
        assert command == ["lsof", "-nP", "-iTCP:8080", "-sTCP:LISTEN", "-Fpc"]
        return Output(0, "p501\ncnginx\nf6\np502\ncnginx\nf6\n")

    assert who_listens(8080, "darwin", lsof) == "nginx (pid 501)"
    assert who_listens(8080, "darwin", lambda _: Output(1)) is None
    assert who_listens(8080, "linux", lsof, lambda _: "python (pid 7)") == "python (pid 7)"

    def no_lsof(_: list[str]) -> Output:
        raise ServiceError("lsof is not on this machine's PATH")

    assert who_listens(8080, "darwin", no_lsof) is None


def service(*problems: str, installed: bool = True, serving: bool = True) -> Status:
    return Status(
        manager="launchd",
        file="f",
        installed=installed,
        serving=serving,
        phase="running",
        pid=1,
        last_exit=None,
        program="p",
        home="h",
        log="l",
        url=None,
        version=None,
        installed_version="1",
        refused=None,
        problems=list(problems),
        notes=[],
    )


def test_the_service() -> None:
    finding(check_service(service)[0], "ok", "running (launchd)")
    finding(check_service(lambda: service(installed=False))[0], "ok", "mlx-supervisor service install")
    found = check_service(
        lambda: service(
            "the service does not run; start it with: mlx-supervisor service start", serving=False
        )
    )
    assert finding(found[0], "warn", "does not serve").mend == "mlx-supervisor service start"
    odd = check_service(lambda: service("something odd: it is so"))
    assert finding(odd[0], "warn", "something odd: it is so").mend == "mlx-supervisor service logs"

    def no_manager() -> Status:
        raise ServiceError("there is no systemd here")

    finding(check_service(no_manager)[0], "ok", "there is no systemd here")


def test_the_hub(tmp_path: Path) -> None:
    none = {"HF_HOME": str(tmp_path)}

    def unreachable(_: str) -> int:
        raise urllib.error.URLError("no route to host")

    finding(check_hub(lambda _: 200, none), "ok", "https://huggingface.co answers")
    finding(check_hub(lambda _: 401, none), "ok")
    finding(check_hub(lambda _: 503, none), "warn", "status 503")
    finding(check_hub(unreachable, none), "warn", "no route to host", "those that are here work", "curl -I")
    finding(check_hub(unreachable, {**none, "HF_HUB_OFFLINE": "1"}), "ok", "HF_HUB_OFFLINE is set")
    finding(check_hub(unreachable, {**none, "HF_ENDPOINT": "file:///etc"}), "warn", "no address")
    finding(
        check_hub(lambda url: int(url == "http://mirror"), {**none, "HF_ENDPOINT": "http://mirror/"}), "ok"
    )
    assert not has_login(none)
    (tmp_path / "token").write_text("hf_x")
    found = finding(check_hub(lambda _: 200, none), "ok", "there is a login")
    assert "hf_x" not in json.dumps([found.says])
    assert has_login({"HF_TOKEN": "x"})


# A real worker.


def entry(model_id: str, weights_bytes: int, directory: Path = Path("/m")) -> ModelEntry:
    return ModelEntry(model_id, directory, ModelSettings(), weights_bytes=weights_bytes)


def test_which_model_is_tried() -> None:
    entries = [entry("large", 8 * GIB), entry("small", GIB), entry("medium", 2 * GIB)]
    chosen = smallest(entries, 16 * GIB)
    assert chosen is not None and chosen.id == "small"
    assert smallest(entries, GIB) is None
    finding(check_worker([], GIB), "warn", "there is no model")
    finding(check_worker(entries, GIB), "warn", "more than half of the 1.0 GiB")
    finding(
        check_worker(entries, 16 * GIB, lambda _: Tried(2.5, GIB)), "ok", "small generated", "2.5s", "1.0 GiB"
    )

    def broken(_: ModelEntry) -> Tried:
        raise TrialError("the architecture is not supported")

    finding(check_worker(entries, 16 * GIB, broken), "fail", "small did not", "the architecture is not")


def test_a_worker_is_tried_and_leaves_nothing(tmp_path: Path) -> None:
    whole = entry("whole", 4, write_fake_model(tmp_path / "whole"))
    before = set(Path("/tmp").glob("mlxs-*"))
    assert try_worker(whole, command=COMMAND, environ=fake_environ()).load_s >= 0
    broken = entry("broken", 4, write_fake_model(tmp_path / "broken", Load(fail=FailureKind.UNSUPPORTED)))
    with pytest.raises(TrialError, match="the fake worker was told to fail"):
        try_worker(broken, command=COMMAND, environ=fake_environ())
    hanging = (sys.executable, "-S", "-c", "import time; time.sleep(60)")
    with pytest.raises(TrialError, match="not ready within 0 s"):
        try_worker(whole, command=hanging, timeout_s=0.3)
    dying = (sys.executable, "-S", "-c", "import sys; sys.exit('no such thing')")
    with pytest.raises(TrialError, match="no such thing"):
        try_worker(whole, command=dying)
    with pytest.raises(TrialError, match="could not be started"):
        try_worker(whole, command=(str(tmp_path / "none"),))
    assert set(Path("/tmp").glob("mlxs-*")) == before


def fake_environ() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}


def test_the_summary_counts() -> None:
    good, odd, bad = ok("a", "b"), warn("a", "b", "c"), fail("a", "b", "c")
    assert summary([good]) == "all is well"
    assert summary([good, odd, bad, bad]) == "2 failures and 1 warning"
    assert summary([odd, odd]) == "2 warnings"

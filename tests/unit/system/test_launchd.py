"""The LaunchAgent, and launchctl's many ways to say no."""

import plistlib
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from supervisor.system.commands import Output, ServiceError
from supervisor.system.job import Job
from supervisor.system.launchd import LABEL, Launchd, parse_state, property_list
from supervisor.system.manager import JobState
from tests.fixtures.launchd import LoginSession, shell_program
from tests.fixtures.launchd_keys import DOCUMENTED, PROCESS_TYPES, is_of


@pytest.fixture
def job(tmp_path: Path) -> Job:
    home = tmp_path / "home of <mine> & co"
    (home / "logs").mkdir(parents=True)
    program = shell_program(tmp_path / "bin" / "mlx-supervisor", "exec sleep 60")
    return Job(
        (str(program), "service", "run", "--home", str(home)),
        {"HOME": "/Users/me", "PATH": "/usr/bin", "HF_HOME": "/models/<hub> & more"},
        home,
    )


def scripted(answers: dict[str, Output | list[Output]]) -> tuple[list[list[str]], Callable[..., Output]]:
    """A runner that gives each launchctl verb its answers in turn, the last one for ever."""
    calls: list[list[str]] = []

    def run(command: Sequence[str]) -> Output:
        calls.append(list(command[1:]))
        answer = answers.get(command[1], Output(0))
        if isinstance(answer, Output):
            return answer
        return answer.pop(0) if len(answer) > 1 else answer[0]

    return calls, run


def launchd(tmp_path: Path, run: Callable[..., Output], *, seconds: list[float] | None = None) -> Launchd:
    """launchd without waiting: the clock moves when somebody sleeps."""
    now = seconds if seconds is not None else [0.0]

    def sleep(duration_s: float) -> None:
        now[0] += duration_s

    return Launchd(tmp_path, uid=501, run=run, clock=lambda: now[0], sleep=sleep)


MISSING = Output(113, "", 'Could not find service "local.mlx-supervisor" in domain for user gui: 501\n')
EIO = Output(5, "", "Bootstrap failed: 5: Input/output error\nTry re-running it as root for richer errors.\n")
NO_DOMAIN = Output(125, "", "Bootstrap failed: 125: Domain does not support specified action\n")


def printed(state: str, **fields: object) -> Output:
    lines = "".join(f"\t{name.replace('_', ' ')} = {value}\n" for name, value in fields.items())
    return Output(0, f"gui/501/{LABEL} = {{\n\tstate = {state}\n{lines}}}\n")


# The property list.


def test_every_key_is_documented_and_of_its_type(job: Job) -> None:
    content = plistlib.loads(Launchd(Path("/Users/me"), uid=501).render(job))
    for key, value in content.items():
        assert key in DOCUMENTED, f"launchd knows no {key}"
        assert is_of(value, DOCUMENTED[key]), f"{key}: {value!r}"
    assert content["ProcessType"] in PROCESS_TYPES
    assert content["Label"] == LABEL


def test_it_is_kept_alive_on_failure_only_and_throttled(job: Job) -> None:
    content = property_list(job)
    assert content["KeepAlive"] == {"SuccessfulExit": False}
    assert content["RunAtLoad"] is True
    assert content["ThrottleInterval"] == 10
    # launchd's own time is kept to; a longer one would hold up every logout.
    assert "ExitTimeOut" not in content
    # The program is the foreground process, and its group goes with it.
    assert "AbandonProcessGroup" not in content


def test_every_path_is_absolute(job: Job) -> None:
    content = property_list(job)
    arguments = content["ProgramArguments"]
    assert isinstance(arguments, list)
    for path in (
        arguments[0],
        content["WorkingDirectory"],
        content["StandardOutPath"],
        content["StandardErrorPath"],
    ):
        assert isinstance(path, str) and Path(path).is_absolute()
    assert content["StandardOutPath"] == str(job.home / "logs" / "service.log")


def test_the_file_is_private_and_says_the_same_when_it_is_read(tmp_path: Path, job: Job) -> None:
    manager = Launchd(tmp_path, uid=501)
    assert manager.read() is None
    manager.write(job)
    assert manager.read() == job
    assert manager.file == tmp_path / "Library" / "LaunchAgents" / f"{LABEL}.plist"
    assert stat.S_IMODE(manager.file.stat().st_mode) == 0o600
    assert [item.name for item in manager.file.parent.iterdir()] == [f"{LABEL}.plist"]
    manager.remove()
    manager.remove()
    assert not manager.file.exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"not a plist", plistlib.dumps({}), plistlib.dumps(["x"]), plistlib.dumps({"ProgramArguments": 5})],
)
def test_a_file_that_is_not_ours_is_named_and_left_alone(tmp_path: Path, content: bytes) -> None:
    manager = Launchd(tmp_path, uid=501)
    manager.file.parent.mkdir(parents=True)
    manager.file.write_bytes(content)
    with pytest.raises(ServiceError, match="not a property list of ours; move it away"):
        manager.read()
    assert manager.file.read_bytes() == content


def test_a_symlink_in_the_files_place_is_left_alone(tmp_path: Path, job: Job) -> None:
    manager = Launchd(tmp_path, uid=501)
    manager.file.parent.mkdir(parents=True)
    manager.file.symlink_to(tmp_path / "dotfiles.plist")
    with pytest.raises(ServiceError, match="is a symlink"):
        manager.write(job)
    assert manager.file.is_symlink()


def test_a_folder_of_somebody_else_says_how_to_get_it_back(
    tmp_path: Path, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = Launchd(tmp_path, uid=501)
    manager.file.parent.mkdir(parents=True)
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    with pytest.raises(ServiceError, match=r"belongs to user 0.*sudo chown"):
        manager.write(job)


# What launchctl prints.


PRINTED = """\
gui/501/local.mlx-supervisor = {
\tactive count = 1
\tpath = /Users/me/Library/LaunchAgents/local.mlx-supervisor.plist
\ttype = LaunchAgent
\tstate = running

\tprogram = /opt/homebrew/bin/mlx-supervisor
\targuments = {
\t\t/opt/homebrew/bin/mlx-supervisor
\t\tpid = 9
\t}

\tdomain = gui/501 [100005]
\tminimum runtime = 10
\texit timeout = 5
\truns = 2
\tpid = 4711
\tlast terminating signal = Killed: 9

\tresource coalition = {
\t\tstate = active
\t\tpid = 12
\t}
}
"""


def test_only_the_jobs_own_lines_count() -> None:
    assert parse_state(PRINTED) == JobState("running", 4711, "signal 9 (Killed)", failed=True, stop_s=5.0)


@pytest.mark.parametrize(
    ("state", "fields", "expected"),
    [
        ("not running", {"last_exit_code": "0"}, JobState("stopped", None, "exit code 0")),
        ("not running", {"last_exit_code": "(never exited)"}, JobState("stopped")),
        ("not running", {"last_exit_code": 1}, JobState("stopped", None, "exit code 1", failed=True)),
        (
            "spawn scheduled",
            {"last_exit_code": 75},
            JobState("waiting to restart", None, "exit code 75", failed=True),
        ),
        ("xpcproxy", {"pid": 12}, JobState("starting", 12)),
        ("SIGTERMed", {"pid": 12}, JobState("stopping", 12)),
        (
            "not running",
            {"last_terminating_signal": "Terminated: 15"},
            JobState("stopped", None, "signal 15 (Terminated)"),
        ),
    ],
)
def test_states(state: str, fields: dict[str, object], expected: JobState) -> None:
    assert parse_state(printed(state, **fields).stdout) == expected


def test_a_program_that_launchd_could_not_start_is_explained() -> None:
    state = parse_state(printed("not running", last_exit_code="78: EX_CONFIG").stdout)
    assert state.failed and state.last_exit is not None
    assert "could not start the program" in state.last_exit and "service install" in state.last_exit


# What launchctl refuses.


def test_a_start_enables_loads_and_kicks_what_run_at_load_left(tmp_path: Path) -> None:
    calls, run = scripted({"print": [MISSING, printed("not running", last_exit_code="(never exited)")]})
    launchd(tmp_path, run).start()
    plist = str(tmp_path / "Library" / "LaunchAgents" / f"{LABEL}.plist")
    assert [call for call in calls if call[0] not in ("print", "print-disabled")] == [
        ["enable", f"gui/501/{LABEL}"],
        ["bootstrap", "gui/501", plist],
        ["kickstart", f"gui/501/{LABEL}"],
    ]


def test_what_has_begun_and_ended_already_is_not_started_twice(tmp_path: Path) -> None:
    """A program that refused its start has ended in good order before anybody looked."""
    calls, run = scripted({"print": [MISSING, printed("not running", last_exit_code="0")]})
    launchd(tmp_path, run).start()
    assert not [call for call in calls if call[0] == "kickstart"]


def test_a_running_service_is_left_alone(tmp_path: Path) -> None:
    calls, run = scripted({"print": printed("running", pid=1)})
    launchd(tmp_path, run).start()
    assert not [call for call in calls if call[0] in ("bootstrap", "kickstart", "bootout")]


def test_a_label_that_is_not_quite_gone_is_waited_for(tmp_path: Path) -> None:
    """`bootstrap` right after `bootout` says "Input/output error" for some seconds."""
    calls, run = scripted(
        {"print": [MISSING, MISSING, printed("running", pid=1)], "bootstrap": [EIO, Output(0)]}
    )
    launchd(tmp_path, run).start()
    assert len([call for call in calls if call[0] == "bootstrap"]) == 2


def test_somebody_elses_quicker_load_is_fine(tmp_path: Path) -> None:
    _, run = scripted({"print": [MISSING, printed("running", pid=1)], "bootstrap": EIO})
    launchd(tmp_path, run).start()


def test_an_input_output_error_that_stays_says_what_to_look_at(tmp_path: Path) -> None:
    _, run = scripted({"print": MISSING, "bootstrap": EIO})
    with pytest.raises(ServiceError, match=r"5: Input/output|richer.*plutil -lint"):
        launchd(tmp_path, run).start()


@pytest.mark.parametrize(
    "answers",
    [
        {"print": MISSING, "bootstrap": Output(119, "", "Bootstrap failed: 119: Service is disabled\n")},
        {
            "print": MISSING,
            "bootstrap": EIO,
            "print-disabled": Output(0, f'\t\t"{LABEL}" => disabled\n'),
        },
        {"print": MISSING, "bootstrap": EIO, "print-disabled": Output(0, f'\t\t"{LABEL}" => true\n')},
    ],
    ids=["119", "eio", "before macOS 13"],
)
def test_a_disabled_service_says_how_to_allow_it(tmp_path: Path, answers: dict[str, Output]) -> None:
    _, run = scripted(dict(answers))
    with pytest.raises(ServiceError, match=rf"disabled.*launchctl enable gui/501/{LABEL}"):
        launchd(tmp_path, run).start()


@pytest.mark.parametrize("verb", ["enable", "print", "bootstrap"])
def test_over_ssh_without_a_session_it_says_so(tmp_path: Path, verb: str) -> None:
    _, run = scripted({"print": MISSING, verb: NO_DOMAIN})
    with pytest.raises(ServiceError, match=r"no login session for user 501.*Log in at the screen"):
        launchd(tmp_path, run).start()


def test_a_domain_that_is_not_there_is_known_by_its_words(tmp_path: Path) -> None:
    _, run = scripted({"print": Output(113, "", "Could not find domain for user gui: 501\n")})
    with pytest.raises(ServiceError, match="no login session for user 501"):
        launchd(tmp_path, run).state()


def test_a_plist_with_a_wrong_owner_is_named(tmp_path: Path) -> None:
    bad = Output(122, "", "Bootstrap failed: 122: Path had bad ownership/permissions\n")
    _, run = scripted({"print": MISSING, "bootstrap": bad})
    with pytest.raises(ServiceError, match="owner or mode"):
        launchd(tmp_path, run).start()


def test_a_stop_waits_until_the_label_is_gone(tmp_path: Path) -> None:
    stopping = printed("SIGTERMed", pid=1)
    calls, run = scripted({"print": [stopping, stopping, stopping, MISSING]})
    seconds = [0.0]
    launchd(tmp_path, run, seconds=seconds).stop()
    assert seconds[0] > 0
    assert calls[0] == ["bootout", f"gui/501/{LABEL}"]


def test_a_stop_that_does_not_end_says_so(tmp_path: Path) -> None:
    _, run = scripted({"print": printed("SIGTERMed", pid=1)})
    with pytest.raises(ServiceError, match=r"35 s after.*launchctl print"):
        launchd(tmp_path, run).stop()


@pytest.mark.parametrize(
    "answer",
    [
        Output(3, "", "Boot-out failed: 3: No such process\n"),
        Output(113, "", 'Could not find service "x" in domain\n'),
        Output(36, "", "Boot-out failed: 36: Operation now in progress\n"),
    ],
)
def test_what_is_not_loaded_or_stops_already_can_be_stopped(tmp_path: Path, answer: Output) -> None:
    _, run = scripted({"bootout": answer, "print": MISSING})
    launchd(tmp_path, run).stop()


def test_a_stop_that_is_refused_repeats_launchds_words(tmp_path: Path) -> None:
    _, run = scripted({"bootout": Output(1, "", "Boot-out failed: 1: Operation not permitted\n")})
    with pytest.raises(ServiceError, match=r"would not stop the service: .*Operation not permitted"):
        launchd(tmp_path, run).stop()


def test_a_kickstart_that_comes_too_late_is_no_error(tmp_path: Path) -> None:
    busy = Output(37, "", "Could not kickstart service: 37: Operation already in progress\n")
    _, run = scripted({"print": printed("not running"), "kickstart": busy})
    launchd(tmp_path, run).start()
    launchd(tmp_path, run).retry()


def test_the_shown_commands_are_the_ones_that_run(tmp_path: Path, job: Job) -> None:
    with LoginSession(tmp_path) as session:
        manager = Launchd(tmp_path, uid=session.uid, run=session.run)
        manager.write(job)
        manager.start()
        ran = [" ".join(["launchctl", *call]) for call in session.calls if not call[0].startswith("print")]
        assert ran == manager.commands("start")
        session.calls.clear()
        manager.stop()
        ran = [" ".join(["launchctl", *call]) for call in session.calls if not call[0].startswith("print")]
        assert ran == manager.commands("stop")

"""The service as a LaunchAgent of macOS: its property list, and launchctl driven for the user.

Source of the keys: launchd.plist(5). Source of the error numbers: `launchctl error N`. What launchctl
does beyond its manual, and is handled here:
- `bootstrap` of a label that is loaded, disabled, or not quite gone yet all say "5: Input/output error";
- `bootout` returns while the program still has its seconds to stop, and the label stays taken meanwhile;
- a program that launchd can't even start (no such file, no such folder, a log it can't open) "exits" with 78.
"""

import os
import plistlib
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from supervisor.system.commands import Output, Runner, ServiceError, run_command
from supervisor.system.job import Job, ManagerName, home_of, write_atomically
from supervisor.system.manager import JobState, Phase

LABEL: Final = "local.mlx-supervisor"
THROTTLE_S: Final = 10
"""At least so long between two starts of a program that crashes."""

_GONE_S: Final = 35.0
"""How long `stop` waits: launchd kills after its exit timeout, and needs seconds to forget the label."""
_SETTLE_S: Final = 15.0
"""How long "Input/output error" is taken for a label that is not quite gone yet."""
_RUN_AT_LOAD_S: Final = 2.0
_POLL_S: Final = 0.2

_IO_ERROR: Final = 5
_NO_PROCESS: Final = 3
_IN_PROGRESS: Final = frozenset({36, 37})
_NO_DOMAIN: Final = frozenset({112, 125})
_NO_SERVICE: Final = 113
_DISABLED: Final = 119
_BAD_OWNER: Final = 122
_CODE: Final = re.compile(r"(?:failed|error): (\d+):")
_FIELD: Final = re.compile(r"^\t([a-z][a-z ]*) = (.+)$", re.MULTILINE)
_SPAWN_FAILED: Final = 78


def property_list(job: Job, *, label: str = LABEL) -> dict[str, object]:
    """The LaunchAgent.

    KeepAlive is on failure only: a program that was told to stop, or refused to start for a reason that
    only a person can mend, exits with 0 and stays away. There is no ExitTimeOut: the system's own is
    asked for when the program runs, and the stop is made to fit.
    """
    return {
        "Label": label,
        "ProgramArguments": list(job.command),
        "EnvironmentVariables": dict(job.environment),
        "WorkingDirectory": str(job.home),
        "StandardOutPath": str(job.log),
        "StandardErrorPath": str(job.log),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": THROTTLE_S,
        # Answers are waited for by a person: no throttling of CPU and disk as for background work.
        "ProcessType": "Interactive",
    }


class Launchd:
    """launchd in the login session of the user `uid`, whose home folder is `user_home`."""

    name: ManagerName = "launchd"

    def __init__(
        self,
        user_home: Path,
        *,
        uid: int | None = None,
        label: str = LABEL,
        run: Runner = run_command,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.file = user_home / "Library" / "LaunchAgents" / f"{label}.plist"
        self._label = label
        self._uid = os.getuid() if uid is None else uid
        self._domain = f"gui/{self._uid}"
        self._target = f"{self._domain}/{label}"
        self._run = run
        self._clock = clock
        self._sleep = sleep

    # The file.

    def render(self, job: Job) -> bytes:
        return plistlib.dumps(property_list(job, label=self._label), sort_keys=False)

    def read(self) -> Job | None:
        try:
            content = plistlib.loads(self.file.read_bytes())
            command = tuple(str(word) for word in content["ProgramArguments"])
            environment = {str(k): str(v) for k, v in content.get("EnvironmentVariables", {}).items()}
            folder = Path(content.get("WorkingDirectory", "/"))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ServiceError(f"{self.file} can't be read: {error.strerror}") from None
        except (plistlib.InvalidFileException, ValueError, KeyError, TypeError, AttributeError):
            raise ServiceError(
                f"{self.file} is not a property list of ours; move it away and install again"
            ) from None
        return Job(command, environment, home_of(command) or folder)

    def write(self, job: Job) -> None:
        folder = self.file.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            owner = folder.stat().st_uid
            if owner != os.geteuid() or not os.access(folder, os.W_OK):
                raise ServiceError(
                    f"{folder} belongs to user {owner} and you can't write there, perhaps since another "
                    f'program was installed as root; run: sudo chown "$(id -un)" "{folder}"'
                )
            if self.file.is_symlink():
                raise ServiceError(f"{self.file} is a symlink; it was left alone. Remove it and try again")
            write_atomically(self.file, self.render(job))
        except OSError as error:
            raise ServiceError(f"can't write {self.file}: {error.strerror}") from None

    def remove(self) -> None:
        try:
            self.file.unlink(missing_ok=True)
        except OSError as error:
            raise ServiceError(f"can't remove {self.file}: {error.strerror}") from None

    # The service.

    def state(self) -> JobState:
        printed = self._run(["launchctl", "print", self._target])
        if not printed.ok:
            if _code(printed) in _NO_DOMAIN:
                raise self._no_session()
            return JobState("not loaded", disabled=self._is_disabled())
        return parse_state(printed.stdout)

    def start(self) -> None:
        # A label that was ever disabled refuses with "Input/output error" until it is enabled.
        self._must(["launchctl", "enable", self._target])
        state = self.state()
        if state.phase in ("not loaded", "stopping"):
            self._bootstrap()
            state = self._begun()
            if state.last_exit is not None:
                return  # it has begun, and ended already
        if state.phase in ("stopped", "waiting to restart"):
            started = self._run(["launchctl", "kickstart", self._target])
            if not started.ok and _code(started) not in _IN_PROGRESS:
                raise self._refused("start the service", started)

    def stop(self) -> None:
        out = self._run(["launchctl", "bootout", self._target])
        if not out.ok and _code(out) not in {_NO_PROCESS, _NO_SERVICE, *_IN_PROGRESS}:
            raise self._refused("stop the service", out)
        end = self._clock() + _GONE_S
        while self.state().phase != "not loaded":
            if self._clock() >= end:
                raise ServiceError(
                    f"launchd still has the service {_GONE_S:.0f} s after it was told to drop it; "
                    f"look at it with: launchctl print {self._target}"
                )
            self._sleep(_POLL_S)

    def retire(self) -> None:
        self.stop()

    def retry(self) -> None:
        out = self._run(["launchctl", "kickstart", "-k", self._target])
        if not out.ok and _code(out) not in _IN_PROGRESS:
            raise self._refused("start the service anew", out)

    def commands(self, verb: Literal["start", "stop", "retire"]) -> list[str]:
        if verb == "start":
            return [
                f"launchctl enable {self._target}",
                f"launchctl bootstrap {self._domain} {self.file}",
            ]
        return [f"launchctl bootout {self._target}"]

    def notes(self) -> list[str]:
        return []

    def _bootstrap(self) -> None:
        """Load the property list, over a label that may need seconds to be free."""
        end = self._clock() + _SETTLE_S
        while True:
            out = self._run(["launchctl", "bootstrap", self._domain, str(self.file)])
            if out.ok:
                return
            if _code(out) not in {_IO_ERROR, *_IN_PROGRESS}:
                raise self._refused("load the service", out)
            if self.state().phase not in ("not loaded", "stopping"):
                return  # somebody else was quicker
            if self._clock() >= end:
                raise self._refused("load the service", out)
            self._sleep(_POLL_S * 2)

    def _begun(self) -> JobState:
        """The state after a load, once RunAtLoad has had its effect, which it does not always have."""
        end = self._clock() + _RUN_AT_LOAD_S
        while (state := self.state()).phase == "stopped" and state.last_exit is None:
            if self._clock() >= end:
                break
            self._sleep(_POLL_S)
        return state

    def _is_disabled(self) -> bool:
        listed = self._run(["launchctl", "print-disabled", self._domain])
        # `true` is how systems before macOS 13 say it.
        found = re.search(rf'"{re.escape(self._label)}" => (\w+)', listed.stdout)
        return found is not None and found[1] in ("disabled", "true")

    def _must(self, command: list[str]) -> None:
        out = self._run(command)
        if not out.ok:
            raise self._refused(f"run `{' '.join(command)}`", out)

    def _refused(self, what: str, out: Output) -> ServiceError:
        code = _code(out)
        if code in _NO_DOMAIN:
            return self._no_session()
        if code == _DISABLED or (code == _IO_ERROR and self._is_disabled()):
            return ServiceError(
                f"the service is disabled and launchd won't load it; allow it in System Settings, General, "
                f"Login Items, or run: launchctl enable {self._target}"
            )
        if code == _BAD_OWNER:
            return ServiceError(
                f"launchd refuses {self.file} because of its owner or mode; "
                "it must be yours and nobody else may write to it. Install again"
            )
        if code == _NO_SERVICE:
            return ServiceError("the service is not loaded; start it with: mlx-supervisor service start")
        hint = ""
        if code == _IO_ERROR:
            hint = f"; launchd says no more than that. Check the file with: plutil -lint {self.file}"
        return ServiceError(f"launchd would not {what}: {out.last_line}{hint}")

    def _no_session(self) -> ServiceError:
        return ServiceError(
            f"there is no login session for user {self._uid} on this Mac, so there is no launchd to ask "
            "(over ssh alone there is none). Log in at the screen once, or turn on automatic login"
        )


def parse_state(printed: str) -> JobState:
    """The state in what `launchctl print` printed. Only lines of the job itself count, not of its parts."""
    fields: dict[str, str] = {}
    for name, value in _FIELD.findall(printed):
        fields.setdefault(name, value.strip())
    pid = int(fields["pid"]) if fields.get("pid", "").isdecimal() else None
    last_exit, failed = _last_exit(fields)
    stop_s = float(fields["exit timeout"]) if fields.get("exit timeout", "").isdecimal() else None
    return JobState(_phase(fields.get("state", ""), pid), pid, last_exit, failed, stop_s=stop_s)


def _phase(state: str, pid: int | None) -> Phase:
    # Its words: running, not running, exited, spawn scheduled, spawning, xpcproxy, SIGTERMed, SIGKILLed.
    if "SIG" in state:
        return "stopping"
    if state == "running" and pid is not None:
        return "running"
    if state in ("spawning", "xpcproxy", "running"):
        return "starting"
    return "waiting to restart" if state == "spawn scheduled" else "stopped"


def _last_exit(fields: dict[str, str]) -> tuple[str | None, bool]:
    if (signal := fields.get("last terminating signal")) is not None:
        name, _, number = signal.rpartition(": ")
        return f"signal {number} ({name})" if name else f"signal {signal}", number != "15"
    code = fields.get("last exit code", "").partition(":")[0]
    if not code.isdecimal():
        return None, False
    if int(code) == _SPAWN_FAILED:
        return (
            "launchd could not start the program (78): a file or folder that the service names is gone, "
            "or its log can't be opened; `mlx-supervisor service install` writes it anew"
        ), True
    return f"exit code {code}", code != "0"


def _code(out: Output) -> int:
    """The error number that launchctl gave, in words or as its exit code."""
    if "Could not find domain" in out.stderr:
        return 112  # whatever the exit code, which differs between systems
    found = _CODE.search(out.stderr) or _CODE.search(out.stdout)
    return int(found[1]) if found else out.code

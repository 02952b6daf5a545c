"""The service as a systemd user unit: its text, and `systemctl --user` driven for the user.

Source of the settings: systemd.service(5), systemd.exec(5), systemd.kill(5).
"""

import getpass
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from supervisor.system.commands import Output, Runner, ServiceError, run_command
from supervisor.system.job import Job, ManagerName, home_of, write_atomically
from supervisor.system.manager import JobState, Phase

UNIT: Final = "mlx-supervisor.service"

EXIT_REFUSED: Final = 78
"""EX_CONFIG of sysexits.h: only a person can mend it, so systemd does not start the program again."""
EXIT_PASSING: Final = 75
"""EX_TEMPFAIL: what was in the way may go away by itself, so systemd tries again."""

# `systemctl is-active` and friends answer in codes; `show` tells everything, in any state, with code 0.
_ASKED: Final = (
    "LoadState",
    "ActiveState",
    "MainPID",
    "Result",
    "ExecMainCode",
    "ExecMainStatus",
    "UnitFileState",
    "TimeoutStopUSec",
)
_WORDS: Final = re.compile(r'"((?:[^"\\]|\\.)*)"|(\S+)')
# siginfo's si_code, as ExecMainCode has it.
_CLD_EXITED: Final = "1"


def unit(job: Job) -> str:
    """The unit's text. Raises ServiceError for a path or a value that no unit can hold."""
    environment = "\n".join(
        f"Environment={_quoted(f'{name}={value}')}" for name, value in job.environment.items()
    )
    program, *arguments = job.command
    # No `$` in the program's own path is taken for a variable, in the arguments it would be.
    command = " ".join([_quoted(program), *(_quoted(word).replace("$", "$$") for word in arguments)])
    return f"""\
[Unit]
Description=mlx-supervisor: language models behind one port
# It never gives up on a crash; RestartSec is what keeps the starts apart.
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
ExecStart={command}
WorkingDirectory={_path(job.home)}
{environment}
StandardOutput=append:{_path(job.log)}
StandardError=inherit
UMask=0077

Restart=on-failure
RestartSec=5
# Refused for a reason that only a person can mend.
RestartPreventExitStatus={EXIT_REFUSED}
# The first start may import the model that comes along.
TimeoutStartSec=300
TimeoutStopSec=20
WatchdogSec=30

# SIGTERM to the supervisor alone: it ends its workers in good order. SIGKILL to whatever is left.
KillMode=mixed
# A worker that runs out of memory must not take the others along.
OOMPolicy=continue
LimitNOFILE=65536
NoNewPrivileges=yes

[Install]
WantedBy=default.target
"""


class Systemd:
    """The user's own systemd. `environ` is where the unit's folder and the user's name are read from."""

    name: ManagerName = "systemd"

    def __init__(
        self, user_home: Path, *, environ: Mapping[str, str] = os.environ, run: Runner = run_command
    ) -> None:
        configuration = environ.get("XDG_CONFIG_HOME", "")
        base = Path(configuration) if os.path.isabs(configuration) else user_home / ".config"
        self.file = base / "systemd" / "user" / UNIT
        self._run = run

    # The file.

    def render(self, job: Job) -> bytes:
        return unit(job).encode()

    def read(self) -> Job | None:
        try:
            text = self.file.read_text()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a text"
            raise ServiceError(f"{self.file} can't be read: {reason}") from None
        lines = [line.partition("=") for line in text.splitlines()]
        commands = [tuple(_unquoted(value)) for name, _, value in lines if name == "ExecStart"]
        if not commands or not commands[0]:
            raise ServiceError(f"{self.file} is not a unit of ours; move it away and install again")
        settings = [_unquoted(value) for name, _, value in lines if name == "Environment"]
        pairs = [word.partition("=") for words in settings for word in words]
        folder = next((value for name, _, value in lines if name == "WorkingDirectory"), "/")
        program, *arguments = commands[0]
        command = (program, *(word.replace("$$", "$") for word in arguments))
        return Job(command, {name: value for name, _, value in pairs}, home_of(command) or Path(folder))

    def write(self, job: Job) -> None:
        content = self.render(job)
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            if self.file.is_symlink():
                raise ServiceError(f"{self.file} is a symlink; it was left alone. Remove it and try again")
            if self.file.parent.stat().st_uid != os.geteuid():
                raise ServiceError(f"{self.file.parent} is not yours; give it back to yourself with chown")
            write_atomically(self.file, content)
        except OSError as error:
            raise ServiceError(f"can't write {self.file}: {error.strerror}") from None
        self._must("daemon-reload")

    def remove(self) -> None:
        try:
            self.file.unlink(missing_ok=True)
        except OSError as error:
            raise ServiceError(f"can't remove {self.file}: {error.strerror}") from None
        self._must("daemon-reload")

    # The service.

    def state(self) -> JobState:
        out = self._must("show", UNIT, *(f"--property={name}" for name in _ASKED))
        return parse_state(out.stdout)

    def start(self) -> None:
        self._must("enable", "--quiet", UNIT)
        # Refusals and crashes of before are forgotten, or the start would be refused for their number.
        self._systemctl("reset-failed", UNIT)
        # Not waited for: the reason for a start that is refused is in our own record.
        self._must("start", "--no-block", UNIT)

    def stop(self) -> None:
        out = self._systemctl("stop", UNIT)
        if not out.ok and "not loaded" not in out.stderr:
            raise self._refused("stop", out)

    def retire(self) -> None:
        if self.state().phase != "not loaded":
            self._must("disable", "--quiet", "--now", UNIT)
            self._systemctl("reset-failed", UNIT)

    def retry(self) -> None:
        self._must("restart", "--no-block", UNIT)

    def commands(self, verb: Literal["start", "stop", "retire"]) -> list[str]:
        if verb == "start":
            return [
                "systemctl --user daemon-reload",
                f"systemctl --user enable {UNIT}",
                f"systemctl --user start {UNIT}",
            ]
        if verb == "retire":
            return [f"systemctl --user disable --now {UNIT}"]
        return [f"systemctl --user stop {UNIT}"]

    def notes(self) -> list[str]:
        """Whether the service lives beyond the user's last session."""
        user = getpass.getuser()
        try:
            out = self._run(["loginctl", "show-user", user, "--property=Linger", "--value"])
        except ServiceError:
            return []
        if out.stdout.strip() != "no":
            return []
        return [
            "systemd stops this service when you log out of your last session, and starts it when you log "
            f"in; to have it run from boot on: loginctl enable-linger {user}"
        ]

    def _systemctl(self, *arguments: str) -> Output:
        return self._run(["systemctl", "--user", "--no-pager", *arguments])

    def _must(self, *arguments: str) -> Output:
        out = self._systemctl(*arguments)
        if not out.ok:
            raise self._refused(arguments[0], out)
        return out

    def _refused(self, verb: str, out: Output) -> ServiceError:
        if "Failed to connect to bus" in out.stderr or "XDG_RUNTIME_DIR" in out.stderr:
            return ServiceError(
                "there is no systemd of your own to ask: this is a container, or a shell of another user "
                f"(su, sudo). Log in as {getpass.getuser()}, by ssh or at the screen, and try again; "
                "without systemd, run `mlx-supervisor start`"
            )
        if "masked" in out.stderr:
            return ServiceError(f"the unit is masked; run: systemctl --user unmask {UNIT}")
        return ServiceError(f"systemctl --user {verb} failed: {out.last_line}")


def parse_state(shown: str) -> JobState:
    """The state in what `systemctl show` printed."""
    fields = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    pid = int(fields.get("MainPID") or 0) or None
    phase: Phase
    match fields.get("LoadState", ""), fields.get("ActiveState", ""):
        case ("not-found" | "", _):
            phase = "not loaded"
        case (_, "active" | "reloading"):
            phase = "running"
        case (_, "activating"):
            phase = "starting" if pid else "waiting to restart"
        case (_, "deactivating"):
            phase = "stopping"
        case _:
            phase = "stopped"
    result = fields.get("Result", "success")
    return JobState(
        phase,
        pid,
        _last_exit(fields, result),
        failed=result != "success",
        disabled=fields.get("UnitFileState") in ("disabled", "masked"),
        stop_s=_seconds(fields.get("TimeoutStopUSec", "")),
    )


def _last_exit(fields: Mapping[str, str], result: str) -> str | None:
    code, status = fields.get("ExecMainCode", "0"), fields.get("ExecMainStatus", "0")
    if code in ("", "0"):
        return None
    word = f"exit code {status}" if code == _CLD_EXITED else f"signal {status}"
    return word if result in ("success", "exit-code", "signal") else f"{word} ({result})"


def _seconds(span: str) -> float | None:
    return float(span[:-1]) if re.fullmatch(r"\d+s", span) else None


def _quoted(text: str) -> str:
    """One word of a unit's command or environment line."""
    if not text.isprintable():
        raise ServiceError(f"{text!r} has a character that a systemd unit can't hold")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def _unquoted(line: str) -> list[str]:
    words = [quoted or plain for quoted, plain in _WORDS.findall(line)]
    return [re.sub(r"\\(.)", r"\1", word).replace("%%", "%") for word in words]


def _path(path: Path) -> str:
    if not str(path).isprintable():
        raise ServiceError(f"{str(path)!r} has a character that a systemd unit can't hold")
    return str(path).replace("%", "%%")

"""The service, whoever manages it: install, uninstall, start, stop, status.

Nothing here knows launchctl or systemctl; see `manager.Manager` for what is asked of them.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from shared import __version__
from supervisor.home import Home, HomeError, NoHomeError
from supervisor.settings import ServerSettings
from supervisor.system.commands import ServiceError
from supervisor.system.job import Environment, Job, ManagerName, found_environment
from supervisor.system.launchd import LABEL, Launchd
from supervisor.system.listener import PortError, bind_public
from supervisor.system.managed import Refusal, forget_refusal, read_refusal
from supervisor.system.manager import JobState, Manager
from supervisor.system.paths import is_there
from supervisor.system.userunit import Systemd

SERVING_S: Final = 60.0
"""How long a start may take until the control socket answers."""

_POLL_S: Final = 0.2
_JUDGED_S: Final = 2.0
"""Managers tell of an earlier run for a moment; before that an end is not believed."""


class Running(msgspec.Struct, frozen=True):
    """The supervisor that answers on the control socket: the part of `GET /api/status` needed here."""

    pid: int
    version: str
    url: str
    lost_log_lines: int = 0
    """Lines that its logs could not take."""


Probe = Callable[[Path], Running | None]
"""The supervisor that runs with this state folder and answers; None if none does."""


class Status(msgspec.Struct, frozen=True):
    """Everything that is known of the service. `problems` are sentences, each with what mends it."""

    manager: ManagerName
    file: str
    installed: bool
    serving: bool
    """Whether the service itself serves, not a supervisor that somebody started by hand."""
    phase: str
    pid: int | None
    last_exit: str | None
    program: str | None
    home: str
    log: str
    url: str | None
    version: str | None
    """Of the supervisor that runs now."""
    installed_version: str
    refused: Refusal | None
    problems: list[str]
    notes: list[str]


def manager_of(
    name: ManagerName | None,
    *,
    platform: str = sys.platform,
    environ: Mapping[str, str] = os.environ,
    label: str = LABEL,
) -> Manager:
    """The manager called `name`, or this system's own. Raises ServiceError where there is none.

    `label` is launchd's name of the service; it is another one if Homebrew installed it.
    """
    if environ.get("SUDO_USER"):
        raise ServiceError("the service is your own, not root's: run this without sudo")
    user_home = Path(environ.get("HOME") or "~").expanduser()
    match name or {"darwin": "launchd", "linux": "systemd"}.get(platform):
        case "launchd":
            return Launchd(user_home, label=label)
        case "systemd":
            return Systemd(user_home, environ=environ)
        case _:
            raise ServiceError(f"there is no service manager for {platform}; run `mlx-supervisor start`")


def new_job(
    program: Sequence[str],
    manager: ManagerName,
    home: Path,
    options: Sequence[str],
    environ: Mapping[str, str],
) -> tuple[Job, Environment]:
    """The job that runs `program` as a service with these options of `start`, and what was found for it."""
    user_home = Path(environ.get("HOME") or "~").expanduser()
    found = found_environment(environ, user_home=user_home)
    command = (*program, "service", "run", "--manager", manager, "--home", str(home), *options)
    return Job(command, found.values, home), found


class Service:
    """The one service of this user. Methods raise ServiceError."""

    def __init__(
        self,
        manager: Manager,
        probe: Probe,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.manager = manager
        self._probe = probe
        self._clock = clock
        self._sleep = sleep

    def is_current(self, job: Job) -> bool:
        """Whether the service file is what `job` would make it."""
        try:
            return self.manager.file.read_bytes() == self.manager.render(job)
        except OSError:
            return False

    def obstacles(self, job: Job, server: ServerSettings) -> list[str]:
        """What would keep the job from serving: a state folder that is not ours, another supervisor, the
        port."""
        state = self.manager.state()
        running = self._probe(job.home)
        ours = running is not None and running.pid == state.pid
        try:
            holder = Home.find(job.home).holder()
        except NoHomeError:
            holder = None
        except HomeError as error:
            return [str(error)]
        if holder is not None and holder.pid != state.pid:
            version = f", version {holder.version}" if holder.version else ""
            return [
                f"another supervisor (pid {holder.pid or 'unknown'}{version}) runs with {job.home}; "
                "stop it first, with `mlx-supervisor stop`"
            ]
        if ours and running is not None and running.url.endswith(f":{server.port}"):
            return []  # the port is held by the very service
        try:
            bind_public(server.host, server.port).close()
        except PortError as error:
            return [str(error)]
        return []

    def install(self, job: Job) -> Running:
        """Write the service file and start what it names; a running older one is stopped first.

        Doing it again changes nothing and restarts nothing.
        """
        state = self.manager.state()
        running = self._serving(job.home, state)
        if self.is_current(job) and running is not None and running.version == __version__:
            return running
        try:
            Home.open(job.home)  # the manager opens the log in there before the program runs
        except HomeError as error:
            raise ServiceError(str(error)) from None
        if state.phase != "not loaded":
            self.manager.stop()  # also one that has ended: what launchd has loaded is the old file
        if not self.is_current(job):
            self.manager.write(job)
        return self._start(job)

    def uninstall(self) -> bool:
        """Stop the service and remove its file; nothing else. False if there was nothing to remove."""
        was_there = self.manager.file.exists() or self.manager.file.is_symlink()
        if self.manager.state().phase != "not loaded":
            self.manager.retire()
        elif not was_there:
            return False
        self.manager.remove()
        return True

    def start(self) -> Running:
        """Start it unless it serves, and wait until it does. Tries anew what waits for an obstacle to go."""
        job = self._installed()
        state = self.manager.state()
        if (running := self._serving(job.home, state)) is not None:
            return running
        if state.phase == "running" and read_refusal(job.home) is not None:
            forget_refusal(job.home)
            self.manager.retry()
            return self._await(job)
        return self._start(job)

    def stop(self) -> None:
        """Stop it until the next login or `start`. What is not running is left as it is."""
        self._installed()
        if self.manager.state().phase != "not loaded":
            self.manager.stop()

    def restart(self) -> Running:
        """Stop, with the time that open answers need, and start what is installed now."""
        self.stop()
        return self._start(self._installed())

    def _installed(self) -> Job:
        job = self.manager.read()
        if job is None:
            raise ServiceError(
                "the service is not installed; install it with: mlx-supervisor service install"
            )
        return job

    def _start(self, job: Job) -> Running:
        if not is_there(job.command):
            raise ServiceError(f"{_gone(job)}. Install it again: mlx-supervisor service install")
        forget_refusal(job.home)
        self.manager.start()
        return self._await(job)

    def _serving(self, home: Path, state: JobState) -> Running | None:
        running = self._probe(home) if state.pid is not None else None
        return running if running is not None and running.pid == state.pid else None

    def _await(self, job: Job) -> Running:
        """Wait until it serves. Polled, because neither manager announces what it can't know."""
        began = self._clock()
        while True:
            state = self.manager.state()
            if (running := self._serving(job.home, state)) is not None:
                return running
            waited = self._clock() - began
            if (refusal := read_refusal(job.home)) is not None:
                raise ServiceError(_refused(refusal))
            if waited > _JUDGED_S and state.phase in ("stopped", "waiting to restart") and state.last_exit:
                raise ServiceError(
                    f"the program ended as soon as it was started: {state.last_exit}. Its last words are in "
                    f"{job.log}: {last_line(job.log) or 'none'}"
                )
            if waited > SERVING_S:
                raise ServiceError(
                    f"the service was started {SERVING_S:.0f} s ago and does not answer yet; "
                    "see what it does with: mlx-supervisor service logs"
                )
            self._sleep(_POLL_S)

    def status(self, home: Path, program: Sequence[str]) -> Status:
        """What is known of the service. `home` and `program` are what this command line would use."""
        job = self.manager.read()
        state = self.manager.state()
        folder = job.home if job else home
        running = self._probe(folder)
        serving = running is not None and running.pid == state.pid
        refusal = None if serving else read_refusal(folder)
        problems = list(_problems(job, state, running, serving, refusal, program))
        return Status(
            manager=self.manager.name,
            file=str(self.manager.file),
            installed=job is not None,
            serving=serving,
            phase=state.phase,
            pid=state.pid,
            last_exit=state.last_exit,
            program=job.command[0] if job else None,
            home=str(folder),
            log=str(job.log) if job else "",
            url=running.url if running else None,
            version=running.version if running else None,
            installed_version=__version__,
            refused=refusal,
            problems=problems,
            notes=self.manager.notes() if job else [],
        )


def _problems(
    job: Job | None,
    state: JobState,
    running: Running | None,
    serving: bool,
    refusal: Refusal | None,
    program: Sequence[str],
) -> Iterator[str]:
    if job is None:
        yield "the service is not installed; install it with: mlx-supervisor service install"
        if running is not None:
            yield f"a supervisor that was started by hand runs (pid {running.pid}, version {running.version})"
        return
    again = "mlx-supervisor service install"
    if not is_there(job.command):
        yield f"{_gone(job)}. Install it again: {again}"
    elif tuple(job.command[: len(program)]) != tuple(program):
        yield f"the service runs {job.command[0]}, this is {program[0]}; to switch to this one: {again}"
    if running is not None and not serving:
        yield (
            f"the supervisor that serves {job.home} (pid {running.pid}, version {running.version}) is not "
            "the service's; stop it with `mlx-supervisor stop`, then: mlx-supervisor service start"
        )
    elif running is not None and running.version != __version__:
        yield (
            f"version {running.version} runs, version {__version__} is installed; open answers get their "
            "time when you switch: mlx-supervisor service restart"
        )
    elif refusal is not None:
        yield _refused(refusal)
    elif state.phase in ("not loaded", "stopped"):
        reason = f" (its last end: {state.last_exit})" if state.last_exit and state.failed else ""
        yield f"the service does not run{reason}; start it with: mlx-supervisor service start"
    elif state.phase == "waiting to restart":
        yield f"it ended ({state.last_exit}) and will be started again; see: mlx-supervisor service logs"
    elif running is None:
        yield "it does not answer yet; see what it does with: mlx-supervisor service logs"
    if state.disabled:
        yield "it is disabled and won't start at login; allow it with: mlx-supervisor service start"


def _refused(refusal: Refusal) -> str:
    moment = time.strftime("%Y-%m-%d %H:%M", time.localtime(refusal.at))
    if refusal.passing:
        return f"it can't start yet: {refusal.reason} (since {moment}; it is tried again by itself)"
    return f"it refused to start at {moment}: {refusal.reason}. Mend it, then: mlx-supervisor service start"


def _gone(job: Job) -> str:
    return f"the program that the service names is gone: {job.command[0]}"


def last_line(log: Path) -> str:
    """The last line of a log; empty if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 4096))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")

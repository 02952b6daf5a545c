"""Running under a service manager: refusals it understands, a stop that fits, a log that stays small.

launchd and systemd start a program again when it fails. Against a broken configuration that is a storm
of starts that ends only when a person acts. So a start that is refused is told in the manager's terms:

| what is in the way                  | launchd                    | systemd                       |
| a person has to mend it             | exit 0: stays away         | exit 78: prevented from again |
| it may go away (port, another one)  | waits 30 s, exit 75: again | exit 75: again after RestartSec |

The reason is kept in `run/refused.json`, where `service status` finds it.
"""

import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from shared import __version__
from shared.sockets import unlink_quietly
from supervisor.home import Home, HomeError
from supervisor.settings import Settings, SettingsError, load_settings
from supervisor.system.commands import ServiceError
from supervisor.system.job import LOG_NAME, ManagerName
from supervisor.system.listener import PortError
from supervisor.system.manager import Manager
from supervisor.system.userunit import EXIT_PASSING, EXIT_REFUSED

RETRY_S: Final = 30.0
"""Under launchd: so long a start waits that was refused for a reason that may pass."""
STOP_S: Final = 20.0
"""What a manager gives a program to stop, unless it says otherwise."""

_FAREWELL_S: Final = 2.0
"""Of the stop: the last frames, and closing everything."""
_LOG_BYTES: Final = 2**20
_LOG_KEPT_BYTES: Final = 2**18


class Refusal(msgspec.Struct, frozen=True):
    """A start that was refused."""

    at: float
    """Wall clock, seconds since 1970."""
    pid: int
    version: str
    reason: str
    passing: bool
    """Whether it is tried again without a person."""


def record_path(home: Path) -> Path:
    return home / "run" / "refused.json"


def read_refusal(home: Path) -> Refusal | None:
    """The last refusal, unless a start has succeeded since."""
    try:
        return msgspec.json.decode(record_path(home).read_bytes(), type=Refusal)
    except (OSError, msgspec.MsgspecError):
        return None


def forget_refusal(home: Path) -> None:
    unlink_quietly(record_path(home))


def is_passing(cause: BaseException | None, home: Home | None) -> bool:
    """Whether what is in the way may go away without a person: a taken port, an address that is not
    there yet, another supervisor with this state folder."""
    if isinstance(cause, HomeError):
        return home is not None and home.holder() is not None
    return isinstance(cause, PortError)


class Managed:
    """One start of the program by a service manager."""

    def __init__(
        self, manager: ManagerName, home: Path, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._manager = manager
        self._sleep = sleep
        self.home: Home | None = None
        try:
            self.home = Home.open(home)
        except HomeError:
            # The start itself says it, in full; nothing may be written into a folder that is not ours.
            return
        forget_refusal(home)

    def prepare(
        self,
        manager: Manager,
        config: Path | None,
        environ: Mapping[str, str],
        flags: Mapping[str, object],
    ) -> dict[str, object]:
        """Keep the manager's log small, and the flags that make the stop fit into the manager's time.

        `config`, `environ` and `flags` are what the settings will be read from.
        """
        if self.home is None:
            return {}
        try:
            trim_log(self.home.logs / LOG_NAME)
        except OSError as error:
            sys.stderr.write(f"the log could not be cut: {error}\n")
        try:
            settings = load_settings(
                config or self.home.config, environ=environ, flags=flags, required=config is not None
            )
        except SettingsError:
            return {}  # the start says it
        stop_s = stop_time(manager)
        fitted = fitted_stop(settings, stop_s)
        if fitted:
            limits = " and ".join(f"{name} {value}" for name, value in fitted.items())
            sys.stderr.write(f"{manager.name} kills {stop_s:g} s after it says stop; cut to fit: {limits}\n")
        return fitted

    def run(self, start: Callable[[], int], refused: type[Exception]) -> int:
        """The exit status of `start`, or what the manager takes for a start that raised `refused`.

        The reason is the exception's text, its kind the exception's cause.
        """
        try:
            return start()
        except refused as refusal:
            passing = is_passing(refusal.__cause__, self.home)
            if self._manager == "launchd":
                # Told to stop from here on, it has nothing to give up.
                signal.signal(signal.SIGTERM, _leave)
            self._record(str(refusal), passing)
            if self._manager == "systemd":
                return EXIT_PASSING if passing else EXIT_REFUSED
            if not passing:
                return 0
            # launchd only knows "failed, again". Waiting here keeps the starts apart.
            self._sleep(RETRY_S)
            return EXIT_PASSING

    def _record(self, reason: str, passing: bool) -> None:
        moment = time.strftime("%Y-%m-%d %H:%M:%S")
        again = "; it is tried again" if passing else ""
        sys.stderr.write(f"{moment} refused to start: {reason}{again}\n")
        sys.stderr.flush()
        if self.home is None:
            return
        record = Refusal(time.time(), os.getpid(), __version__, reason, passing)
        path = record_path(self.home.path)
        try:
            path.write_bytes(msgspec.json.encode(record))
        except OSError as error:
            sys.stderr.write(f"{path} could not be written: {error.strerror}\n")


def _leave(_number: int, _frame: object) -> NoReturn:
    sys.exit(0)


def fitted_stop(settings: Settings, stop_s: float) -> dict[str, object]:
    """Flags that make the stop end before the manager kills, `stop_s` after SIGTERM; none if it does."""
    budget_s = stop_s - _FAREWELL_S
    drain_s, grace_s = settings.watch.drain_s, settings.watch.kill_grace_s
    if drain_s + grace_s <= budget_s:
        return {}
    grace_s = min(grace_s, max(0.5, budget_s / 4))
    return {
        "watch.drain": f"{max(0.0, budget_s - grace_s):.1f}s",
        "watch.kill_grace": f"{grace_s:.1f}s",
    }


def stop_time(manager: Manager) -> float:
    """Seconds between the manager's SIGTERM and its SIGKILL, as far as it tells."""
    try:
        return manager.state().stop_s or STOP_S
    except ServiceError:
        return STOP_S


def trim_log(path: Path) -> None:
    """Cut the manager's log to its end if it has grown large, as after a night of crashes.

    The manager opened it to append, so what is written next goes behind what is kept. Raises OSError.
    """
    try:
        if not stat.S_ISREG(path.lstat().st_mode) or path.lstat().st_size <= _LOG_BYTES:
            return
    except FileNotFoundError:
        return
    with path.open("r+b") as log:
        log.seek(-_LOG_KEPT_BYTES, os.SEEK_END)
        kept = log.read().partition(b"\n")[2]
        log.seek(0)
        log.write(kept)
        log.truncate()

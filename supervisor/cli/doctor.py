"""Why something is odd, in ten seconds."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from supervisor.cli.options import HomeOption, JsonOption, chosen_home
from supervisor.cli.terminal import Style, clean, say, say_json, styled

if TYPE_CHECKING:
    from supervisor.doctor.finding import Finding
    from supervisor.system.service import Status

_STYLES: Final[dict[str, Style]] = {"ok": "good", "warn": "busy", "fail": "bad"}
_WIDTH: Final = 14


def doctor(
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out mlx, the hub and the worker, which take seconds.")
    ] = False,
    home: HomeOption = None,
    json: JsonOption = False,
) -> None:
    """Look at everything the supervisor needs, and try a worker. Exits with 1 if something fails.

    \b
    Example:
      mlx-supervisor doctor
    """
    from supervisor.cli.service import probe
    from supervisor.doctor.examination import Examination, examine, summary

    path = chosen_home(home)
    found: list[Finding] = []
    for finding in examine(path, probe=probe, service=lambda: _service_status(path), quick=quick):
        found.append(finding)
        if not json:
            _say_finding(finding)
    failed = any(finding.status == "fail" for finding in found)
    if json:
        import msgspec

        say_json(msgspec.to_builtins(Examination(not failed, tuple(found))))
    else:
        say(f"\n{summary(found)}")
    if failed:
        raise typer.Exit(1)


def _say_finding(finding: "Finding") -> None:
    status = styled(f"{finding.status:<5}", _STYLES[finding.status])
    sys.stdout.write(f"{status} {finding.check:<{_WIDTH}} {clean(finding.says)}\n")
    indent = " " * (_WIDTH + 7)
    for word, text in (("", finding.means), ("mend: ", finding.mend)):
        if text is not None:
            sys.stdout.write(f"{indent}{word}{clean(text)}\n")
    sys.stdout.flush()


def _service_status(path: Path) -> "Status":
    from supervisor.cli.service import probe
    from supervisor.system.paths import ProgramError, program
    from supervisor.system.service import Service, manager_of

    try:
        ours = program()
    except ProgramError:
        ours = (sys.executable,)
    return Service(manager_of(None), probe).status(path, ours)

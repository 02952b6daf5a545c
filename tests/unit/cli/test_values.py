"""What may be typed as an option's value. Wrong ones are wrong usage: exit code 2."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer

from supervisor.cli.app import command as whole_program
from supervisor.cli.values import read_without_pydantic


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["start", "--port", "x"], "'--port': 'x' is not a whole number"),
        (["start", "--port", "80.5"], "'--port': '80.5' is not a whole number"),
        (["start", "--port"], "'--port' requires an argument"),
        (["chat", "--temperature", "hot"], "'--temperature': 'hot' is not a number"),
        (["chat", "--temperature", "nan"], "'--temperature': nan is less than 0"),
        (["chat", "--temperature", "2.1"], "'--temperature': 2.1 is more than 2"),
        (["chat", "--max-tokens", "0"], "'--max-tokens': 0 is less than 1"),
        (["load"], "Missing argument 'MODEL'"),
        (["ps", "--jsn"], "No such option: --jsn"),
        (["loda"], "No such command 'loda'. Did you mean 'load'"),
    ],
)
def test_wrong_usage_is_told_with_exit_code_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        whole_program()(arguments)
    assert caught.value.code == 2
    assert complaint in capsys.readouterr().err


def test_values_arrive_typed() -> None:
    """One of each kind, through a verb of our own."""
    seen: list[object] = []
    probe = typer.Typer(rich_markup_mode=None)

    @probe.command()
    def verb(
        file: Path,
        port: int = 1,
        share: float = 0.5,
        model: list[str] | None = None,
        name: str | None = None,
        loud: bool = False,
    ) -> None:
        seen.append((file, port, share, model, name, loud))

    command = typer.main.get_command(probe)
    read_without_pydantic(command, {})
    command(
        ["a", "--port", "2", "--share", "1", "--model", "x", "--model", "y", "--loud"], standalone_mode=False
    )
    command(["b"], standalone_mode=False)
    assert seen == [
        (Path("a"), 2, 1.0, ["x", "y"], None, True),
        (Path("b"), 1, 0.5, None, None, False),
    ]


def test_the_program_says_so_too() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "supervisor", "start", "--port", "x"], capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "'x' is not a whole number" in ran.stderr

"""Verbs are quick because they import little."""

import subprocess
import sys

import pytest

HEAVY = ("rich", "http.client", "msgspec", "orjson", "httpx", "fastapi", "pydantic", "psutil", "asyncio")


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--help"], HEAVY),
        (["ps", "--help"], HEAVY),
        (["--version"], (*HEAVY, "typer")),
        (["ps", "--home", "/nowhere"], ("pydantic", "rich", "msgspec", "httpx", "fastapi", "asyncio")),
    ],
)
def test_a_verb_imports_nothing_that_it_does_not_need(arguments: list[str], absent: tuple[str, ...]) -> None:
    program = (
        f"import sys; sys.argv[1:] = {arguments!r}\n"
        "from supervisor.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout or "no supervisor runs" in ran.stderr
    assert set(ran.stderr.split()) & set(absent) == set()

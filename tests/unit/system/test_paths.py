"""Finding our own program again."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.system.paths import NAME, ProgramError, is_there, program


def script(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_script_is_named_as_it_was_called(tmp_path: Path) -> None:
    """A package manager's link survives the upgrade that throws away what it leads to today."""
    target = script(tmp_path / "cellar" / "0.1.0" / "bin")
    link = tmp_path / "bin" / NAME
    link.parent.mkdir()
    link.symlink_to(target)
    assert program(str(link), prefix=str(tmp_path / "cellar")) == (str(link),)


def test_a_relative_call_becomes_absolute(tmp_path: Path) -> None:
    path = script(tmp_path / "env" / "bin")
    found = program(f"bin/{NAME}", prefix=str(tmp_path / "env"), folder=str(tmp_path / "env"))
    assert found == (str(path),)


def test_the_script_beside_the_interpreter_is_preferred_to_dash_m(tmp_path: Path) -> None:
    path = script(tmp_path / "env" / "bin")
    assert program("/somewhere/supervisor/__main__.py", prefix=str(tmp_path / "env")) == (str(path),)


def test_without_a_script_it_is_the_interpreter(tmp_path: Path) -> None:
    found = program("x.py", executable="/env/bin/python", prefix=str(tmp_path), installed=True)
    assert found == ("/env/bin/python", "-m", "supervisor")


def test_source_code_that_is_not_installed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"not installed.*make setup"):
        program("x.py", prefix=str(tmp_path), installed=False)


def test_an_environment_in_a_cache_is_refused(tmp_path: Path) -> None:
    (tmp_path / "CACHEDIR.TAG").touch()
    path = script(tmp_path / "archive" / "env" / "bin")
    with pytest.raises(ProgramError, match=r"cache in .*uv tool install"):
        program(str(path), prefix=str(tmp_path / "archive" / "env"))


def test_a_tag_in_the_environment_itself_is_no_cache(tmp_path: Path) -> None:
    path = script(tmp_path / "env" / "bin")
    (tmp_path / "env" / "CACHEDIR.TAG").touch()
    assert program(str(path), prefix=str(tmp_path / "env")) == (str(path),)


def test_what_is_found_here_runs_from_the_root_folder_without_an_environment() -> None:
    """As launchd would start it."""
    command = program("pytest")
    assert is_there(command) and all(map(os.path.isabs, command[:1]))
    done = subprocess.run(
        [*command, "--version"], cwd="/", env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.startswith("mlx-supervisor "), done.stderr


def test_a_program_that_is_gone_is_not_there(tmp_path: Path) -> None:
    assert not is_there(())
    assert not is_there((str(tmp_path / "gone"),))
    assert not is_there((str(tmp_path),))
    assert is_there((sys.executable,))

"""An environment for each tool, under build/: theirs and ours don't agree on libraries."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "build" / "conformance"
_UV = ROOT / ".venv" / "bin" / "uv"


def environment(name: str) -> Path:
    """The folder of programs of an environment with what `requirements/conformance-NAME.txt` locks."""
    locked = ROOT / "requirements" / f"conformance-{name}.txt"
    folder = BUILT / name
    stamp = folder / "locked"
    digest = hashlib.sha256(locked.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != digest:
        shutil.rmtree(folder, ignore_errors=True)
        _run(_UV, "venv", "--quiet", "--python", sys.executable, folder)
        python = folder / "bin" / "python"
        _run(
            _UV,
            "pip",
            "install",
            "--quiet",
            "--python",
            python,
            "--no-deps",
            "--require-hashes",
            "-r",
            locked,
        )
        stamp.write_text(digest)
    return folder / "bin"


def node_modules(name: str) -> Path:
    """A folder with what `inside/NAME` wants: what its package-lock.json names, or without one just the
    versions in its package.json. Needs npm.

    Programs that come as a package for each platform have no lock: npm takes one only with all of them in
    it, and not every registry has them all.
    """
    source = Path(__file__).parent / "inside" / name
    folder = BUILT / name
    stamp = folder / "locked"
    locked = (source / "package-lock.json").exists()
    wanted = (source / ("package-lock.json" if locked else "package.json")).read_bytes()
    digest = hashlib.sha256(wanted).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        shutil.copy(path, folder)
    if not stamp.exists() or stamp.read_text() != digest:
        command = ("ci",) if locked else ("install", "--no-package-lock")
        _run("npm", *command, "--no-audit", "--no-fund", "--loglevel", "error", cwd=folder)
        stamp.write_text(digest)
    return folder


def _run(*command: str | Path, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")

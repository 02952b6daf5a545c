"""The rules of the house: who may import whom. Parsed from source, so nothing is imported to check it."""

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SIDES = ("supervisor", "worker", "shared")
HEAVY = {"mlx", "mlx_lm", "transformers", "tokenizers", "numpy", "safetensors", "sentencepiece", "llguidance"}

# From top to bottom: a module imports only from its own floor or one further down.
SUPERVISOR_FLOORS = (
    ("__main__",),
    ("cli",),
    ("doctor",),
    ("in_process",),
    ("server",),
    ("reloading",),
    ("front",),
    ("routes",),
    ("responses",),
    ("relay",),
    ("pings",),
    ("workers",),
    ("catalog",),
    ("settings", "history", "system", "console"),
    ("telemetry", "home", "http", "database", "pulling"),
)
WORKER_FLOORS = (
    ("__main__",),
    ("app",),
    ("public",),
    ("admin", "api"),
    ("decisions", "embeddings"),
    ("completion",),
    ("adapters", "guides", "prompts", "reply"),
    ("engine", "text", "model", "gguf", "request", "shard"),
    ("serving", "terminal"),
)


def modules(side: str) -> Iterator[tuple[str, Path]]:
    for path in sorted((ROOT / side).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


@functools.cache
def imports(name: str, path: Path) -> set[str]:
    """Absolute names of everything that the module imports, wherever in the file."""
    found: set[str] = set()
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                anchor = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
                base = f"{anchor}.{base}".rstrip(".")
            found.add(base)
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return found


@pytest.mark.parametrize("side", SIDES)
def test_sides_do_not_know_each_other(side: str) -> None:
    forbidden = {"supervisor": {"worker"}, "worker": {"supervisor"}, "shared": {"supervisor", "worker"}}[side]
    for name, path in modules(side):
        roots = {imported.partition(".")[0] for imported in imports(name, path)}
        assert not roots & forbidden, f"{name} imports {roots & forbidden}"


@pytest.mark.parametrize("side", ["supervisor", "shared"])
def test_the_front_imports_nothing_heavy(side: str) -> None:
    for name, path in modules(side):
        roots = {imported.partition(".")[0] for imported in imports(name, path)}
        assert not roots & HEAVY, f"{name} imports {roots & HEAVY}"


def test_the_hub_s_client_is_imported_by_the_program_that_downloads_alone() -> None:
    for name, path in modules("supervisor"):
        found = imports(name, path)
        if not name.startswith("supervisor.pulling"):
            assert not {imported for imported in found if imported.startswith("supervisor.pulling")}, name
            assert not {"huggingface_hub", "httpx2"} & {item.partition(".")[0] for item in found}, name


@pytest.mark.parametrize(("side", "floors"), [("supervisor", SUPERVISOR_FLOORS), ("worker", WORKER_FLOORS)])
def test_imports_go_downward(side: str, floors: tuple[tuple[str, ...], ...]) -> None:
    level = {part: depth for depth, parts in enumerate(floors) for part in parts}
    for name, path in modules(side):
        if "." not in name:
            continue
        part = name.split(".")[1]
        assert part in level, f"{name} has no floor in the house"
        for imported in imports(name, path):
            root, _, rest = imported.partition(".")
            target = rest.partition(".")[0]
            if root == side and target in level:
                assert level[part] <= level[target], f"{name} imports {imported}, which is further up"


def test_no_import_cycles() -> None:
    graph: dict[str, set[str]] = {}
    names = {name for side in SIDES for name, _ in modules(side)}
    for side in SIDES:
        for name, path in modules(side):
            graph[name] = {
                imported for imported in imports(name, path) if imported in names and imported != name
            }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, "import cycle: " + " -> ".join((*trail, name))
        if name not in done:
            for imported in graph[name]:
                # A package's own __init__ is always imported before its modules: no cycle by itself.
                if not name.startswith(imported + "."):
                    visit(imported, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_no_locked_package_ships_our_names() -> None:
    """Three plain top-level names are fine while nothing else in the environment has them."""
    for entry in map(Path, sys.path):
        for side in SIDES:
            if entry.is_dir() and entry.name == "site-packages":
                assert not (entry / side).exists() and not (entry / f"{side}.py").exists()


def test_the_lock_holds_no_addresses() -> None:
    for path in (ROOT / "requirements").glob("*.txt"):
        text = path.read_text()
        assert "://" not in text and "--index" not in text and "--find-links" not in text, path
        for line in text.splitlines():
            assert line.startswith("    --hash=sha256:") or "==" in line, f"{path}: {line!r}"

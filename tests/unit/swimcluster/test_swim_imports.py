"""The import rules: the core is pure, and the library knows nothing of the server."""

from __future__ import annotations

import ast
from pathlib import Path

import swimcluster

ROOT = Path(swimcluster.__file__).parent
FORBIDDEN_IN_CORE = {"trio", "socket", "time", "random", "asyncio", "threading", "secrets", "os", "ssl", "select"}


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def core_files() -> list[Path]:
    """Return swim.py and all that it imports, transitively."""
    found: dict[str, Path] = {}
    waiting = ["swimcluster.swim"]
    while waiting:
        module = waiting.pop()
        path = ROOT / (module.removeprefix("swimcluster.").replace(".", "/") + ".py")
        if module in found or not path.is_file():
            continue
        found[module] = path
        waiting += [name for name in imported(path) if name.startswith("swimcluster.")]
    return list(found.values())


def test_the_core_touches_no_clock_no_socket_no_randomness_of_its_own():
    files = core_files()
    assert len(files) > 25
    for path in files:
        tops = {name.split(".")[0] for name in imported(path)}
        assert not tops & FORBIDDEN_IN_CORE, path.name


def test_the_library_never_imports_the_server():
    for path in ROOT.rglob("*.py"):
        assert not any(name.split(".")[0] == "saiserve" for name in imported(path)), path


def test_the_library_needs_three_distributions_only():
    import sys

    allowed = {"trio", "msgpack", "blake3", "swimcluster", "outcome"} | set(sys.stdlib_module_names)
    for path in ROOT.rglob("*.py"):
        extra = {"hypothesis"} if path.name == "strategies.py" else set()
        assert {name.split(".")[0] for name in imported(path)} <= allowed | extra, path


def test_files_stay_readable():
    for path in core_files():
        assert len(path.read_text().splitlines()) <= 400, path.name

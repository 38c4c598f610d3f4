"""Which module may know of what: the machine of nothing outside, the library of three packages."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from swimcluster.checkpoint import OUTSIDE, is_machine_module

PACKAGE = Path(__file__).parents[3] / "swimcluster"
MODULES = {
    ".".join(("swimcluster", *path.relative_to(PACKAGE).with_suffix("").parts)): path
    for path in PACKAGE.rglob("*.py")
    if path.name != "__init__.py"
}
DEPENDENCIES = {"trio", "msgpack", "blake3"}
LINES_MAX = 400
WORLD = {
    "asyncio",
    "io",
    "os",
    "pickle",
    "random",
    "secrets",
    "select",
    "socket",
    "ssl",
    "subprocess",
    "threading",
    "time",
    "trio",
}


def imported(path: Path) -> set[str]:
    """Return the first parts of every import in a file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names.add(node.module or "")
    return names


@pytest.mark.parametrize("module", sorted(MODULES))
def test_the_library_imports_three_packages_and_the_standard_library(module: str) -> None:
    roots = {name.split(".")[0] for name in imported(MODULES[module])}
    if module == "swimcluster.testing.strategies":
        roots.discard("hypothesis")  # for those who test with it; nothing else imports this module
    assert roots - DEPENDENCIES - {"swimcluster"} <= set(sys.stdlib_module_names)


@pytest.mark.parametrize("module", sorted(module for module in MODULES if is_machine_module(module)))
def test_the_machine_knows_no_socket_clock_chance_or_loop(module: str) -> None:
    names = imported(MODULES[module])
    assert not {name.split(".")[0] for name in names} & WORLD
    assert not names & OUTSIDE, "the machine does not import the driver; a checkpoint may name its modules only"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_files_stay_readable(module: str) -> None:
    assert len(MODULES[module].read_text().splitlines()) <= LINES_MAX


def test_the_names_that_are_outside_the_machine_exist() -> None:
    assert MODULES.keys() >= OUTSIDE


def test_the_machine_and_its_simulator_load_without_trio() -> None:
    program = "import sys, swimcluster.swim, swimcluster.testing.world; sys.exit('trio' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], cwd=PACKAGE.parent, timeout=60, check=False)
    assert result.returncode == 0

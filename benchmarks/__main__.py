"""`python -m benchmarks NAME [ARGUMENT ...]`: run one of the benchmarks; each has a `--help`."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from types import ModuleType

import benchmarks
from saiserve.bench.processes import stop_like_ctrl_c

SHARED = frozenset({"__main__", "ranks"})
"""Modules that are no benchmarks."""


def names() -> list[str]:
    """What can be run: modules and packages of this one."""
    return sorted({module.name for module in pkgutil.iter_modules(benchmarks.__path__)} - SHARED)


def module_of(name: str) -> ModuleType:
    """Where a benchmark's `main` is: its module, or the `__main__` of its package."""
    full = f"benchmarks.{name}"
    spec = importlib.util.find_spec(full)
    is_package = spec is not None and spec.submodule_search_locations is not None
    return importlib.import_module(f"{full}.__main__" if is_package else full)


def main() -> int:
    """Run the named benchmark with the remaining arguments; its exit code is ours."""
    if len(sys.argv) < 2 or sys.argv[1] not in names():
        print(f"usage: python -m benchmarks NAME [ARGUMENT ...]\nNAME: {', '.join(names())}", file=sys.stderr)
        return 2
    stop_like_ctrl_c()
    name = sys.argv[1]
    sys.argv = [f"python -m benchmarks {name}", *sys.argv[2:]]
    return int(module_of(name).main())


if __name__ == "__main__":
    sys.exit(main())

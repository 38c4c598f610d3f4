"""`python -m benchmarks NAME [ARGUMENT ...]`: run one of the benchmarks; each has a `--help`."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys

import benchmarks


def names() -> list[str]:
    """What can be run: modules and packages of this one."""
    return sorted(module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name != "__main__")


def main() -> int:
    """Run the named benchmark with the remaining arguments; its exit code is ours."""
    if len(sys.argv) < 2 or sys.argv[1] not in names():
        print(f"usage: python -m benchmarks NAME [ARGUMENT ...]\nNAME: {', '.join(names())}", file=sys.stderr)
        return 2
    name = f"benchmarks.{sys.argv[1]}"
    sys.argv = [f"python -m {name}", *sys.argv[2:]]
    package = importlib.util.find_spec(f"{name}.__main__") if _is_package(name) else None
    module = importlib.import_module(package.name if package is not None else name)
    return int(module.main())


def _is_package(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.submodule_search_locations is not None


if __name__ == "__main__":
    sys.exit(main())

"""Runs llama.cpp's own server tests against a node: `python -m tests.peers.llama_server_tests [--beside] [FILE ...]`.

The tests come with the sources of llama-cpp-python, which `make peers` unpacks; they are run where they lie. `--beside`
runs llama-server itself the same way, with SmolLM2 too, when `make peers` has built it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PEERS: Final = ROOT / ".peers"
TESTS: Final = PEERS / "llama_cpp_python-0.3.36/vendor/llama.cpp/tools/server/tests"
LLAMA_SERVER: Final = PEERS / "bin/llama-server"
OURS: Final = ROOT / "tests/peers/llama-server"
THEIRS: Final = ROOT / "tests/peers/llama-server-itself"
PORT: Final = "18090"

FILES: Final = (
    "template", "compat_anthropic", "security", "chat_completion", "completion", "tokenize", "basic", "embedding",
    "rerank", "compat_oai_responses", "ctx_shift", "ignore_eos", "infill",
)  # fmt: skip
MEASURED: Final[dict[str, tuple[int, int]]] = {
    "template": (35, 0),
    "compat_anthropic": (26, 4),
    "security": (23, 6),
    "chat_completion": (35, 17),
    "completion": (29, 10),
    "tokenize": (2, 1),
    "basic": (6, 2),
    "embedding": (16, 17),
    "rerank": (12, 4),
    "compat_oai_responses": (1, 2),
    "ctx_shift": (0, 5),
    "ignore_eos": (2, 0),
}
"""Passed and failed by llama-server of the same sources with SmolLM2 for every model of a hub."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one file went."""

    file: str
    passed: int
    failed: tuple[str, ...]
    skipped: int


def run_file(file: str, server: Path = OURS, *, only: Sequence[str] = ()) -> Outcome:
    """Run one file's tests against the program `server`; `only` are tests to run instead of all.

    Raises:
        RuntimeError: pytest itself did not run; the end of its output says why.
    """
    environment = os.environ | {
        "LLAMA_SERVER_BIN_PATH": str(server),
        "SAISERVE_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "PORT": os.environ.get("PORT", PORT),
    }
    chosen = [f"unit/test_{file}.py::{name}" for name in only] or [f"unit/test_{file}.py"]
    with tempfile.TemporaryDirectory(prefix="saiserve-peer-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-p", "tests.peers.offline", "-p", "no:cacheprovider"]
        command += ["-q", "--tb=line", f"--junitxml={report}", *chosen]
        done = subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True, check=False)
        if not report.exists():
            raise RuntimeError(f"pytest did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return _outcome(file, report)


def _outcome(file: str, report: Path) -> Outcome:
    failed: list[str] = []
    passed = skipped = 0
    for case in ElementTree.parse(report).iter("testcase"):  # written by the pytest just run
        ends = {child.tag for child in case}
        if ends & {"failure", "error"}:
            failed.append(str(case.get("name")))
        elif "skipped" in ends:
            skipped += 1
        else:
            passed += 1
    return Outcome(file, passed, tuple(failed), skipped)


def main(arguments: Sequence[str]) -> int:
    """Run the files and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.peers.llama_server_tests", description=__doc__)
    parser.add_argument("--beside", action="store_true", help="run llama-server too, instead of the recorded figures")
    parser.add_argument("files", nargs="*", help=f"of {', '.join(FILES)}; default: all")
    options = parser.parse_args(arguments)
    if not TESTS.exists():
        print(f"llama.cpp's tests are not at {TESTS}: run `make peers`", file=sys.stderr)
        return 2
    if options.beside and not LLAMA_SERVER.exists():
        print(f"llama-server is not at {LLAMA_SERVER}: run `make peers`", file=sys.stderr)
        return 2
    print(f"{'file':22} {'saiserve':>14} {'llama-server':>14}   passed/failed")
    for file in options.files or FILES:
        ours = run_file(file)
        theirs = MEASURED.get(file)
        if options.beside:
            other = run_file(file, THEIRS)
            theirs = (other.passed, len(other.failed))
        shown = f"{theirs[0]}/{theirs[1]}" if theirs else "not measured"
        print(f"{file:22} {f'{ours.passed}/{len(ours.failed)}':>14} {shown:>14}", flush=True)
        for name in ours.failed:
            print(f"    {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

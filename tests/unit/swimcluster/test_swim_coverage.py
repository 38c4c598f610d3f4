"""The core is tested to its last branch: the tests of the machine run under coverage, and nothing may be missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from swimcluster.checkpoint import is_machine_module

ROOT = Path(__file__).parents[3]
TESTS = ("tests/unit/swimcluster", "tests/golden", "tests/property/swimcluster/test_swim_codec_properties.py")
RUN_S = 800


@pytest.mark.slow
def test_every_line_and_branch_of_the_core_is_run(tmp_path: Path) -> None:
    data, report = tmp_path / "coverage", tmp_path / "coverage.json"
    coverage = [sys.executable, "-m", "coverage"]
    # Hypothesis draws the same each time, so that one outcome stands for all.
    environment = {**os.environ, "CI": "1", "COVERAGE_FILE": str(data)}

    def run(*arguments: str) -> None:
        done = subprocess.run(
            [*coverage, *arguments],
            check=False,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=RUN_S,
        )
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]

    no_cache = ("-p", "no:cacheprovider")
    run("run", "--branch", "--source=swimcluster", "-m", "pytest", "-q", *no_cache, "-m", "not slow", *TESTS)
    run("json", "-o", str(report))
    measured = json.loads(report.read_text())["files"]
    missing = {
        path.name: (found["missing_lines"], found["missing_branches"])
        for path in (ROOT / "swimcluster").glob("[!_]*.py")
        if is_machine_module(f"swimcluster.{path.stem}")
        and ((found := measured[str(path.relative_to(ROOT))])["missing_lines"] or found["missing_branches"])
    }
    assert missing == {}, "lines and branches that no test of these runs"

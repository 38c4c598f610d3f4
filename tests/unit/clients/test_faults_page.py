"""The page of what clients trip over: every row names tests, and they exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/clients/faults.md"
HEADS = "| what goes wrong"


def test_every_row_names_tests_that_exist() -> None:
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ") and "---" not in line]
    faults = [row for row in rows if not row.startswith(HEADS)]
    written = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    there = set(re.findall(r"def (test_\w+)\(", written))
    assert len(faults) >= 80
    for fault in faults:
        named = re.findall(r"`(test_\w+)`", fault.rsplit(" | ", 1)[1])
        assert named, fault
        assert not [name for name in named if name not in there], fault


def test_no_row_stands_twice() -> None:
    rows = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ") and "---" not in line]
    faults = [row for row in rows if not row.startswith(HEADS)]
    assert len(faults) == len({row.split(" | ")[0] for row in faults})

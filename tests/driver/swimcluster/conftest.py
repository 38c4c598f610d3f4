"""Says at the end of a run which tests of this folder were left out and why, so that a green run hides nothing."""

from __future__ import annotations

from collections import Counter

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = Counter(
        str(report.longrepr[2])
        for report in terminalreporter.stats.get("skipped", [])
        if "tests/driver/swimcluster" in report.nodeid and isinstance(report.longrepr, tuple)
    )
    for reason, count in reasons.items():
        terminalreporter.write_line(f"NOT RUN: {count} tests of swimcluster's driver: {reason}", yellow=True)

"""No test of this folder is about a fast machine; and at its end a run says which were left out and why."""

from __future__ import annotations

from collections import Counter

import pytest

from swimcluster import state_file
from swimcluster.transport import udp
from tests.fakes.patience import WAIT_S


@pytest.fixture(autouse=True)
def _nothing_is_too_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines for sockets and disks that a stop of this process would break; a test of one sets its own."""
    monkeypatch.setattr(udp, "CONNECT_DEADLINE_S", WAIT_S)
    monkeypatch.setattr(udp, "REQUEST_DEADLINE_S", WAIT_S)
    monkeypatch.setattr(state_file, "FINAL_WRITE_S", WAIT_S)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = Counter(
        str(report.longrepr[2])
        for report in terminalreporter.stats.get("skipped", [])
        if "tests/driver/swimcluster" in report.nodeid and isinstance(report.longrepr, tuple)
    )
    for reason, count in reasons.items():
        terminalreporter.write_line(f"NOT RUN: {count} tests of swimcluster's driver: {reason}", yellow=True)

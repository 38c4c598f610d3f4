"""Hostile text never starts a log line or reaches a terminal as a control sequence."""

from __future__ import annotations

import logging

import pytest

from saiserve.logs import LINE_CHARACTERS_MAX, ROUTE_LOGGER, LineFormatter, one_line, set_up_logging


@pytest.mark.parametrize(
    "text", ["a\r\n2026-01-01 INFO forged", "\x1b[2J", "a\x00b", "\x85", "\u2028x", "tab\tbed", "x" * 10_000]
)
def test_text_becomes_one_bounded_printable_line(text: str) -> None:
    line = one_line(text)
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line
    assert len(line) <= LINE_CHARACTERS_MAX * 4


def test_a_traceback_is_one_line_too() -> None:
    try:
        raise ValueError("bad\nthing")
    except ValueError:
        import sys

        record = logging.LogRecord("saiserve.x", logging.ERROR, __file__, 1, "failed %s", ("a\nb",), sys.exc_info())
    line = LineFormatter().format(record)
    assert "\n" not in line
    assert "ValueError" in line
    assert " ERROR saiserve.x: failed a\\nb" in line


@pytest.mark.parametrize("on", [True, False])
def test_the_route_log_is_silent_unless_asked_for(on: bool, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    try:
        set_up_logging("info", route_log=on)
        logging.getLogger(ROUTE_LOGGER).info("routed")
        assert ("routed" in capsys.readouterr().err) is on
    finally:
        root.handlers[:], _ = before
        root.setLevel(before[1])

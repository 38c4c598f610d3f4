"""The time that attempts are told."""

from __future__ import annotations

import trio

from saiserve.dispatch.attempt import NS


def clock_ns() -> int:
    """This process's monotonic time in nanoseconds, virtual in tests."""
    return round(trio.current_time() * NS)

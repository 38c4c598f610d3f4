"""A clock for members of one process that does not count the time for which the process stood still."""

from __future__ import annotations

import time
from typing import Final

import trio

STEP_S: Final = 0.02
"""Longest time that passes at once, shorter than any probe's time-out here."""


class SteadyClock:
    """Nanoseconds since it was made. Where all members of a cluster have it, no stop of the process is a silence."""

    def __init__(self) -> None:
        self._read_at = time.monotonic_ns()
        self._passed = 0

    def __call__(self) -> int:
        """Return the time that has passed."""
        now = time.monotonic_ns()
        self._passed += min(now - self._read_at, round(STEP_S * 1e9))
        self._read_at = now
        return self._passed

    async def run(self) -> None:
        """Read it often, so that what is not counted is a stop and not a rest."""
        while True:
            self()
            await trio.sleep(STEP_S / 4)

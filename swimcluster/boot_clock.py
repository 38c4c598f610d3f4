"""The driver's clock: nanoseconds that go on counting while the machine is suspended.

trio's clock (perf_counter) stops during suspend on Linux, so a member that slept would believe that no time
had passed. The protocol core takes any int clock; this is the one a running node gives it.
"""

from __future__ import annotations

import time

CLOCK_ID: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""CLOCK_BOOTTIME on Linux; elsewhere CLOCK_MONOTONIC, which may stop in suspend (macOS counts it there)."""


def boot_now() -> int:
    """Nanoseconds since some fixed moment; never goes back, suspend included where the system can tell."""
    return time.clock_gettime_ns(CLOCK_ID)

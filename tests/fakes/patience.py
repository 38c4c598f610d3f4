"""Settings of members on the real clock under which a machine that stands still for seconds is not taken for a dead one.

A test that wants to see a death does not use them; one that wants to see anything else does, as its members may be
stopped at any point by whatever else runs beside them.
"""

from __future__ import annotations

from typing import Any, Final

STOOD_STILL_S: Final = 30.0
"""Longest stop that is survived."""
WAIT_S: Final = 60.0
"""Longest wait for something that comes: it bounds a hang, not the speed."""

PATIENT: Final[dict[str, Any]] = {
    "probe_interval_s": STOOD_STILL_S + 1,
    "probe_timeout_s": STOOD_STILL_S,
    "exchange_timeout_s": WAIT_S,
    "leave_timeout_s": WAIT_S,
}

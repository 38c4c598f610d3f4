"""How this machine and this process are doing: CPU, memory, and how late the event loop runs.

The loop's lag is the price of sharing a machine with an engine, so it is measured and published, not assumed.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psutil
import trio

LAG_INTERVAL_S: Final = 0.2
"""How often the loop is asked to be on time. Each time takes a core from an engine for a moment."""
LAG_SAMPLES: Final = 300
"""One minute of samples."""


@dataclass(frozen=True, slots=True)
class HostReading:
    """CPU in percent of all cores, memory in MiB, over the whole machine."""

    cpu_percent: int
    ram_used_mib: int
    ram_total_mib: int


class HostMeter:
    """Reads the machine; the CPU figure covers the time since the reading before."""

    def __init__(self) -> None:
        self._last = self._read()

    def read(self) -> HostReading:
        """Read now, or say the last reading again where the system gives none; never blocks."""
        with suppress(OSError):  # no descriptor left, for now
            self._last = self._read()
        return self._last

    def _read(self) -> HostReading:
        memory = psutil.virtual_memory()
        return HostReading(
            cpu_percent=round(min(100.0, psutil.cpu_percent(None))),
            ram_used_mib=(memory.total - memory.available) >> 20,
            ram_total_mib=memory.total >> 20,
        )


class LoopLag:
    """Lateness of wake-ups of this event loop, over the last minute, in seconds."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=LAG_SAMPLES)

    async def run(self) -> None:
        """Sample for ever."""
        while True:
            due = trio.current_time() + LAG_INTERVAL_S
            await trio.sleep_until(due)
            self.add(trio.current_time() - due)

    def add(self, lateness_s: float) -> None:
        """Take one sample."""
        self._samples.append(max(0.0, lateness_s))

    def percentile(self, share: float) -> float:
        """The lateness that `share` (0–1) of the samples do not exceed; 0 before the first sample."""
        if not self._samples:
            return 0.0
        ranked = sorted(self._samples)
        return ranked[min(len(ranked) - 1, int(share * len(ranked)))]

    def worst_recent(self, seconds: float = 1.0) -> float:
        """The worst lateness of the last `seconds`."""
        count = max(1, int(seconds / LAG_INTERVAL_S))
        recent = list(self._samples)[-count:]
        return max(recent, default=0.0)

"""The machine's readings are in range, and lateness is what it is called."""

from __future__ import annotations

import pytest
import trio

from saiserve.host import LAG_INTERVAL_S, HostMeter, LoopLag


def test_readings_are_in_range() -> None:
    reading = HostMeter().read()
    assert 0 <= reading.cpu_percent <= 100
    assert 0 < reading.ram_used_mib <= reading.ram_total_mib


def test_percentiles_of_lateness() -> None:
    lag = LoopLag()
    assert lag.percentile(0.99) == 0.0
    assert lag.worst_recent() == 0.0
    for number in range(100):
        lag.add(number / 1000)
    assert lag.percentile(0.5) == pytest.approx(0.050)
    assert lag.percentile(0.99) == pytest.approx(0.099)
    assert lag.percentile(1.0) == pytest.approx(0.099)
    assert lag.worst_recent(0.04) == pytest.approx(0.099)
    lag.add(-1.0)
    assert min(lag._samples) == 0.0


@pytest.mark.autojump
async def test_an_idle_loop_is_never_late() -> None:
    lag = LoopLag()
    with trio.move_on_after(10):
        await lag.run()
    assert 0.9 * 10 / LAG_INTERVAL_S <= len(lag._samples) <= 10 / LAG_INTERVAL_S
    assert lag.percentile(1.0) == pytest.approx(0.0, abs=1e-6)

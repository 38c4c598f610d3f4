"""Dropped requests disturb nobody, and the node ends in time; `SOAK=n` multiplies the sizes (docs/engine-process.md)."""

from __future__ import annotations

import os

import pytest

from benchmarks.soak import aborts, mixed

pytestmark = pytest.mark.slow
TIMES = int(os.environ.get("SOAK", "1"))
ROUNDS, REQUESTS = 4 * TIMES, 60 * TIMES


@pytest.mark.parametrize("model", ["smol", "gemma"])
async def test_dropped_requests_disturb_nobody(model: str) -> None:
    tally = await aborts(model, rounds=ROUNDS, long_tokens=40, prompt_tokens=600)
    assert not tally.faults
    assert tally.counts["dropped"] > ROUNDS
    assert tally.counts["long stream"] >= 1
    assert tally.counts["long prompt"] >= 1


async def test_every_kind_of_request_beside_dropped_ones() -> None:
    tally = await mixed("smol", requests=REQUESTS)
    assert not tally.faults
    assert tally.counts["dropped"] > 0
    assert sum(tally.counts.values()) - tally.counts["dropped"] > REQUESTS / 2

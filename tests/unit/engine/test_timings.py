"""Where an engine says its time went."""

from __future__ import annotations

import pytest

from saiserve.engines.llamacpp.timings import Timings
from saiserve.engines.waits import NS, Waits


def test_a_wait_is_counted_in_its_class_and_in_all_longer_ones() -> None:
    waits = Waits()
    for seconds in (0.005, 0.05, 0.3, 100.0):
        waits.add(int(seconds * NS))
    values = waits.values("queue_seconds")
    assert values["queue_seconds_sum"] == pytest.approx(100.355)
    assert values["queue_seconds_le_0.01"] == 1
    assert values["queue_seconds_le_0.05"] == 2
    assert values["queue_seconds_le_0.5"] == 3
    assert values["queue_seconds_le_60"] == 3
    assert values["queue_seconds_le_+Inf"] == 4


def test_a_step_lasts_from_the_end_of_the_one_before() -> None:
    timings = Timings()
    timings.step(started_at=100, ended_at=200, llama_ns=90, sampling_ns=5, python_ns=7, rows=4)
    timings.step(started_at=220, ended_at=320, llama_ns=90, sampling_ns=5, python_ns=7, rows=4)
    counters = timings.counters()
    assert counters["step_seconds"] == pytest.approx(220 / NS)
    assert counters["llama_seconds"] == pytest.approx(180 / NS)
    assert counters["sampling_seconds"] == pytest.approx(10 / NS)
    assert counters["python_seconds"] == pytest.approx(14 / NS)
    assert counters["batch_rows"] == 4
    assert timings.steps == 2


def test_a_rest_between_steps_is_no_work() -> None:
    timings = Timings()
    timings.step(started_at=100, ended_at=200, llama_ns=90, sampling_ns=5, python_ns=7, rows=1)
    timings.rest()
    timings.step(started_at=5_000, ended_at=5_100, llama_ns=90, sampling_ns=5, python_ns=7, rows=1)
    assert timings.counters()["step_seconds"] == pytest.approx(200 / NS)

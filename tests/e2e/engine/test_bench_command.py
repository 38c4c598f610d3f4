"""`saiserve bench` on real weights."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import time

import pytest

from acceptance.processes import below, is_running


@pytest.mark.slow
def test_bench_measures_a_node_of_its_own_and_leaves_nothing_running() -> None:
    command = [sys.executable, "-m", "saiserve.cli", "bench", "smollm2-135m", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    told = done.stderr.splitlines()
    assert told[0] == "saiserve: starting with smollm2-135m"
    assert [line.partition(" of ")[0] for line in told[1:]] == [f"saiserve: {number}" for number in range(1, 7)]
    assert result["model"] == "smollm2-135m"
    values = {row["name"]: row["value"] for row in result["rows"]}
    assert {"decode, 1 stream", "decode, 16 streams together", "16 behind one prompt: output"} <= values.keys()
    assert all(math.isfinite(value) and value > 0 for value in values.values()), values
    assert all(row["ratio"] is None for row in result["rows"])
    assert result["engine"]["lanes"] == 16
    assert result["engine"]["prefix_hit_tokens"] > 15 * 350
    assert result["engine"]["cells_total"] == 16 * 2048
    assert all(0 <= result["engine"][name] <= 16 * 2048 for name in ("cells_idle", "cells_used"))
    assert 0 < result["engine"]["queue_s_mean"] <= 60
    assert 0 < result["engine"]["loop_lag_s_p99"] <= result["engine"]["loop_lag_s_max"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_bench_that_is_ended_ends_the_node_it_started(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "saiserve.cli", "bench", "smollm2-135m", "--json"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as bench:
        try:
            deadline = time.monotonic() + 120
            while not (nodes := [node.pid for node in below(bench.pid)]):
                assert bench.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            bench.send_signal(number)
            assert bench.wait(timeout=120) == 130
            assert not [node for node in nodes if is_running(node)]
        finally:
            bench.kill()

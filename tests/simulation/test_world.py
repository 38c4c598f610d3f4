"""The world itself, driven by a machine that knows nothing of membership."""

# ruff: noqa: RUF059

from __future__ import annotations

import subprocess
import sys
from collections import deque

import pytest

from swimcluster.testing import (
    Constant,
    Coverage,
    Crash,
    Hold,
    Network,
    Pause,
    SendsFail,
    SlowCpu,
    StuckError,
    Suspend,
    Uniform,
    World,
    fork,
    play,
)
from swimcluster.testing.network import MILLISECOND, SECOND
from tests.fakes.ticker import A, B, Ticker, numbers, pair


def test_time_passes_and_packets_arrive_after_the_latency():
    world, a, b = pair()
    world.run_for(0.1051)
    assert numbers(b) == list(range(1, 11))
    assert b.machine.heard[0][0] == b.local(11 * MILLISECOND)


def test_clocks_of_two_nodes_are_far_apart():
    world, a, b = pair()
    assert abs(a.local(0) - b.local(0)) > SECOND


def test_a_drifting_clock_maps_there_and_back():
    world, a, b = pair(drift_ppm=200)
    for now in (0, 1, 12_345_678_901, 3600 * SECOND):
        assert a.world(a.local(now)) <= now
        assert a.local(a.world(a.local(now))) == a.local(now)
    world.run_for(1)
    assert len(a.machine.ticks) in (99, 100)


def test_equal_seeds_give_equal_digests_and_others_do_not():
    def digest(seed):
        world, _, _ = pair(Network(seed=seed, latency=Uniform(1, MILLISECOND), loss=0.3), seed=seed)
        world.run_for(1)
        return world.digest()

    assert digest(1) == digest(1)
    assert digest(1) != digest(2)


def test_the_digest_is_the_same_in_another_interpreter_with_another_hash_seed():
    program = (
        "from swimcluster.testing import Network, Uniform\n"
        "from swimcluster.testing.network import MILLISECOND\n"
        "from tests.fakes.ticker import pair\n"
        "w, _, _ = pair(Network(seed=5, latency=Uniform(1, MILLISECOND), loss=0.3), seed=5)\n"
        "w.run_for(1)\n"
        "print(w.digest())\n"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_streams_with_different_labels_are_independent():
    assert fork(1, "x").random() != fork(1, "y").random()
    assert fork(1, "x", 2).random() == fork(1, "x/2").random()


def test_a_paused_process_reads_everything_in_one_burst_before_its_timers_run():
    world, a, b = pair()
    play(world, [Pause(at_ns=SECOND, for_ns=500 * MILLISECOND, member="b")])
    world.run_for(2)
    at = b.local(1500 * MILLISECOND)
    burst = [n for when, n in b.machine.heard if when == at]
    assert 48 < len(burst) < 52
    assert not [t for t in b.machine.ticks if b.local(SECOND + 10 * MILLISECOND) < t < at]


def test_a_suspended_host_keeps_nothing_that_arrived():
    world, a, b = pair()
    play(world, [Suspend(at_ns=SECOND, for_ns=500 * MILLISECOND, member="b")])
    world.run_for(2)
    assert 48 < a.machine.count - len(numbers(b)) < 52


def test_a_suspended_host_still_learns_that_its_own_exchange_failed():
    """Its driver counts the time-out itself; a machine that hears no outcome waits for it for ever."""
    world, a, b = pair()
    world.network.cut(["b"], ["a"])
    world.call(b, lambda machine, now: machine.ask(now, 1))
    play(world, [Suspend(at_ns=SECOND // 2, for_ns=SECOND, member="b")])
    world.run_for(2)
    assert b.machine.outcomes == [(b.local(1500 * MILLISECOND), 1, None)]


def test_a_held_process_keeps_its_timers_and_releases_both_directions():
    world, a, b = pair()
    play(world, [Hold(at_ns=SECOND, for_ns=500 * MILLISECOND, member="b")])
    world.run_for(1.4)
    assert len(b.machine.ticks) == 140
    assert 98 < len(numbers(a)) < 101
    world.run_for(0.2)
    assert numbers(a) == list(range(1, 160))


def test_a_slow_processor_queues_its_input():
    world, a, b = pair()
    play(world, [SlowCpu(at_ns=0, for_ns=SECOND, member="b", service_ns=20 * MILLISECOND)])
    world.run_for(1)
    assert len(numbers(b)) < 55
    assert b.inbox


def test_refused_sends_are_told_to_the_machine():
    world, a, b = pair()
    play(world, [SendsFail(at_ns=0, for_ns=SECOND, member="a")])
    world.run_for(0.5)
    assert numbers(b) == []
    assert a.machine.failed_sends > 45


def test_a_restart_is_a_new_life_and_old_answers_are_void():
    world, a, b = pair()
    world.call(a, lambda machine, now: machine.ask(now, 1))
    play(world, [Crash(at_ns=0, for_ns=MILLISECOND, member="a", keep_disk=False)])
    a.disk["x"] = b"y"
    world.run_for(3)
    assert a.life == 2
    assert a.disk == {}
    assert a.machine.outcomes == []


def test_a_machine_that_never_gets_on_is_called_stuck():
    world = World(seed=1)
    node = world.add("a", A)
    world.boot(node, lambda node, now: Ticker(B, now, every_ns=0))
    with pytest.raises(StuckError, match="a wants to be woken"):
        world.run_for(1)


def test_a_fault_in_a_machine_carries_the_seed_and_the_place():
    class Bad(Ticker):
        def receive_datagram(self, now, source, data):
            raise RuntimeError("boom")

    world = World(seed=77, network=Network(latency=Constant(1)))
    world.boot(world.add("a", A), lambda node, now: Ticker(B, now))
    world.boot(world.add("b", B), lambda node, now: Bad(A, now))
    with pytest.raises(RuntimeError) as caught:
        world.run_for(1)
    assert "in b, datagram" in caught.value.__notes__[0]
    assert "seed 77" in caught.value.__notes__[0]


def test_coverage_counts_what_happened_and_names_what_did_not():
    coverage = Coverage()
    world, a, b = pair(observers=[coverage])
    play(world, [Crash(at_ns=SECOND, for_ns=SECOND, member="a"), Pause(at_ns=SECOND, for_ns=1, member="b")])
    world.run_for(3)
    assert coverage.counts["fault:Crash"] == 1
    assert coverage.counts["boot"] == 3
    assert coverage.missing(world, ["fault:Crash", "fault:Cut", "network:lost"]) == ["fault:Cut", "network:lost"]


def test_inputs_beyond_the_buffer_are_dropped_and_counted():
    world, a, b = pair()
    world.pause(b)
    world.run_for(30)
    assert len(b.inbox) == 2048
    assert b.overflowed > 900


def test_a_full_buffer_loses_no_outcome_of_an_own_exchange():
    world, a, b = pair()
    world.network.cut(["b"], ["a"])
    world.call(b, lambda machine, now: machine.ask(now, 1, timeout_ns=25 * SECOND))
    world.pause(b)
    world.run_for(30)
    assert b.overflowed > 900
    world.resume(b)
    assert b.machine.outcomes == [(b.local(30 * SECOND), 1, None)]


def test_digest_covers_remarks():
    one, two = deque([pair()[0], pair()[0]])
    one.note("x")
    assert one.digest() != two.digest()

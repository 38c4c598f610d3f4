"""The world itself, driven by a machine that knows nothing of membership."""

# ruff: noqa: A001, A002, A006, RUF059

from __future__ import annotations

import subprocess
import sys
from collections import deque
from dataclasses import dataclass

import pytest

from swimcluster.address import Address
from swimcluster.testing import (
    Burst,
    Constant,
    Coverage,
    Crash,
    Cut,
    Hold,
    LogNormal,
    Network,
    Node,
    Pause,
    Rebind,
    Replay,
    SendsFail,
    SlowCpu,
    StuckError,
    Suspend,
    Trouble,
    Uniform,
    Weather,
    World,
    fork,
    play,
)
from swimcluster.testing.network import MILLISECOND, SECOND

A, B = Address("10.0.0.1", 1), Address("10.0.0.2", 1)


@dataclass(frozen=True)
class Packet:
    destination: Address
    data: bytes


@dataclass(frozen=True)
class Ask:
    id: int
    destination: Address
    data: bytes
    timeout_ns: int = SECOND


class Ticker:
    """Sends its count to the peer every 10 ms; asks when told to; keeps all it hears with the time on its clock."""

    def __init__(self, peer: Address, now: int, every_ns: int = 10 * MILLISECOND) -> None:
        self.peer, self.due, self.every_ns = peer, now + every_ns, every_ns
        self.count = 0
        self.heard: list[tuple[int, bytes]] = []
        self.sources: list[Address] = []
        self.outcomes: list[tuple[int, int, bytes | None]] = []
        self.failed_sends = 0
        self.ticks: list[int] = []
        self.out: list[object] = []

    def receive_datagram(self, now, source, data):
        self.heard.append((now, data))
        self.sources.append(source)

    def exchange_received(self, now, source, data):
        return b"re:" + data

    def exchange_replied(self, now, id, data):
        self.outcomes.append((now, id, data))

    def exchange_failed(self, now, id):
        self.outcomes.append((now, id, None))

    def send_failed(self, now, destination):
        self.failed_sends += 1

    def ask(self, now, id, timeout_ns=SECOND):
        self.out.append(Ask(id, self.peer, b"q%d" % id, timeout_ns))

    def advance(self, now):
        self.ticks.append(now)
        self.due = now + self.every_ns
        self.count += 1
        self.out.append(Packet(self.peer, b"%d" % self.count))

    def next_deadline(self):
        return self.due

    def transmits(self):
        out, self.out = self.out, []
        return out

    def events(self):
        return []


def pair(network: Network | None = None, seed: int = 0, **world_options) -> tuple[World, Node, Node]:
    world = World(seed=seed, network=network or Network(latency=Constant(MILLISECOND)), **world_options)
    a, b = world.add("a", A), world.add("b", B)
    world.boot(a, lambda node, now: Ticker(B, now))
    world.boot(b, lambda node, now: Ticker(A, now))
    return world, a, b


def numbers(node: Node) -> list[int]:
    return [int(data) for _, data in node.machine.heard]


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
        "from tests.simulation.test_world import pair, Network, Uniform, MILLISECOND\n"
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


def test_loss_comes_out_at_its_rate():
    world, a, b = pair(Network(seed=3, latency=Constant(1), loss=0.2))
    world.run_for(50)
    assert 0.78 < len(numbers(b)) / a.machine.count < 0.82


def test_burst_loss_loses_in_runs():
    network = Network(seed=4, latency=Constant(1))
    network.trouble(Trouble(burst=Burst(enter=0.02, leave=0.2)))
    world, a, b = pair(network)
    world.run_for(100)
    missing = sorted(set(range(1, a.machine.count)) - set(numbers(b)))
    follows = sum(n + 1 in missing for n in missing) / len(missing)
    assert 0.05 < len(missing) / a.machine.count < 0.14
    assert follows > 0.7


def test_a_cut_is_one_way_and_mends():
    world, a, b = pair()
    play(world, [Cut(at_ns=SECOND, for_ns=SECOND, sources=frozenset("a"), destinations=None)])
    world.run_for(3)
    assert 100 < a.machine.count - len(numbers(b)) + 1 < 103
    assert len(numbers(a)) == b.machine.count - 1


def test_datagrams_can_be_cut_while_exchanges_pass():
    world, a, b = pair()
    world.network.cut(None, None, exchanges=False)
    world.call(a, lambda machine, now: machine.ask(now, 7))
    world.run_for(1)
    assert numbers(b) == []
    assert [(id, data) for _, id, data in a.machine.outcomes] == [(7, b"re:q7")]


def test_an_exchange_across_a_cut_fails_at_its_timeout():
    world, a, b = pair()
    world.network.cut(["a"], ["b"])
    world.call(a, lambda machine, now: machine.ask(now, 1, 300 * MILLISECOND))
    world.run_for(1)
    assert a.machine.outcomes == [(a.local(300 * MILLISECOND), 1, None)]


def test_an_exchange_with_a_live_host_without_listener_is_refused_soon():
    world, a, b = pair()
    world.stop(b)
    world.call(a, lambda machine, now: machine.ask(now, 1))
    world.run_for(0.1)
    assert a.machine.outcomes[0][2] is None
    world.stop(a, host_down=True)


def test_an_exchange_with_a_host_that_is_down_waits_for_its_timeout():
    world, a, b = pair()
    world.stop(b, host_down=True)
    world.call(a, lambda machine, now: machine.ask(now, 1))
    world.run_for(0.9)
    assert a.machine.outcomes == []
    world.run_for(0.2)
    assert len(a.machine.outcomes) == 1


def test_half_open_and_slow_exchanges():
    network = Network(seed=1, latency=Constant(MILLISECOND))
    number = network.trouble(Trouble(half_open=1.0))
    world, a, b = pair(network)
    world.call(a, lambda machine, now: machine.ask(now, 1))
    world.run_for(2)
    network.mend(number)
    network.trouble(Trouble(exchange_delay_ns=400 * MILLISECOND))
    world.call(a, lambda machine, now: machine.ask(now, 2))
    world.run_for(2)
    first, second = a.machine.outcomes
    assert first[1:] == (1, None)
    assert second[1:] == (2, b"re:q2")
    assert second[0] - a.local(2 * SECOND) == 404 * MILLISECOND


def test_a_lost_segment_delays_an_exchange_instead_of_losing_it():
    world, a, b = pair(Network(seed=2, latency=Constant(MILLISECOND), loss=0.3))
    for id in range(50):
        world.call(a, lambda machine, now, id=id: machine.ask(now, id, 20 * SECOND))
    world.run_for(30)
    assert sum(data is not None for _, _, data in a.machine.outcomes) > 45


def test_duplicates_reordering_and_corruption_happen():
    network = Network(seed=6, latency=Constant(MILLISECOND))
    world, a, b = pair(network)
    play(world, [Weather(0, 10 * SECOND, Trouble(duplicate=0.1, reorder=0.1))])
    world.run_for(10)
    heard = numbers(b)
    assert len(heard) > len(set(heard))
    assert heard != sorted(heard)
    world, a, b = pair(network)
    network.trouble(Trouble(corrupt=1.0))
    world.run_for(0.05)
    assert [data for _, data in b.machine.heard] != [b"1", b"2", b"3", b"4"]


def test_longer_datagrams_than_the_mtu_vanish():
    world, a, b = pair()
    world.network.trouble(Trouble(mtu=1))
    world.run_for(0.5)
    assert numbers(b) == list(range(1, 10))


def test_a_narrow_path_makes_datagrams_wait_and_drops_what_would_wait_too_long():
    world, a, b = pair()
    # Every 10 ms one or two bytes, and room for fifty a second: half are too many.
    world.network.trouble(Trouble(sources=frozenset({"a"}), bytes_per_s=100))
    world.run_for(4)
    first, *_, last = b.machine.heard
    assert first[0] - b.local(10 * MILLISECOND) >= 10 * MILLISECOND
    assert 100 <= len(b.machine.heard) <= 250
    assert last[0] - b.local(int(last[1]) * 10 * MILLISECOND) <= 300 * MILLISECOND
    assert world.network.counts["crowded_out"] > 100
    assert len(a.machine.heard) > 390


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


def test_a_recorded_message_can_arrive_again():
    network = Network(latency=Constant(MILLISECOND), record=True)
    world, a, b = pair(network)
    play(world, [Replay(at_ns=SECOND, count=20), Replay(at_ns=SECOND, count=20, elsewhere=True)])
    world.run_for(3)
    assert network.counts["replayed"] == 40
    assert len(numbers(b)) > len(set(numbers(b)))


def test_a_node_behind_a_nat_is_seen_at_another_address():
    world, a, b = pair()
    elsewhere = Address("10.9.9.9", 5)
    play(world, [Rebind(at_ns=SECOND, member="a", address=elsewhere)])
    world.run_for(2)
    assert b.machine.sources[0] == A
    assert b.machine.sources[-1] == elsewhere
    assert len(numbers(a)) < b.machine.count - 95


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


def test_latencies_have_the_shape_they_name():
    rng = fork(1, "latency")
    drawn = sorted(LogNormal(1000, 0.5).draw(rng) for _ in range(20_001))
    assert 970 < drawn[10_000] < 1030
    assert 2900 < drawn[19_800] < 3500
    assert all(10 <= Uniform(10, 20).draw(rng) < 20 for _ in range(1000))


def test_inputs_beyond_the_buffer_are_dropped_and_counted():
    world, a, b = pair()
    world.pause(b)
    world.run_for(30)
    assert len(b.inbox) == 2048
    assert b.overflowed > 900


def test_digest_covers_remarks():
    one, two = deque([pair()[0], pair()[0]])
    one.note("x")
    assert one.digest() != two.digest()

"""What the simulated network does to packets and exchanges."""

# ruff: noqa: A001, A006, RUF059

from __future__ import annotations

from swimcluster.address import Address
from swimcluster.testing import (
    Burst,
    Constant,
    Cut,
    LogNormal,
    Network,
    Rebind,
    Replay,
    Trouble,
    Uniform,
    Weather,
    fork,
    play,
)
from swimcluster.testing.network import MILLISECOND, SECOND
from tests.fakes.ticker import A, numbers, pair


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


def test_a_trouble_is_told_alike_under_every_hash_seed():
    """Faults are noted in a run's digest by their text."""
    told = repr(Trouble(sources=frozenset("hgfedcba"), loss=0.5))
    assert "sources=frozenset({'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'})" in told
    assert "destinations=None" in told
    assert "loss=0.5" in told


def test_latencies_have_the_shape_they_name():
    rng = fork(1, "latency")
    drawn = sorted(LogNormal(1000, 0.5).draw(rng) for _ in range(20_001))
    assert 970 < drawn[10_000] < 1030
    assert 2900 < drawn[19_800] < 3500
    assert all(10 <= Uniform(10, 20).draw(rng) < 20 for _ in range(1000))

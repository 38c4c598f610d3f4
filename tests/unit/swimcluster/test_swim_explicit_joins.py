"""Explicit joins and remembered addresses: which make room, which fail at once, and how all of them end (P22)."""

from __future__ import annotations

import pytest

from swimcluster.address import Address
from swimcluster.events import JoinAttemptFailed, Joined
from swimcluster.joining import JOINS_MAX, SEEDS_MAX
from swimcluster.transmits import Exchange
from tests.fakes.swim_bench import Bench, address, machine


def known(swim) -> set[int]:
    return {seed.port for seed in swim.core.joiner._seeds}


def failures(swim) -> list[tuple[Address, ...]]:
    return [e.seeds for e in swim.events() if isinstance(e, JoinAttemptFailed) and e.is_explicit]


def test_a_remembered_address_makes_room_for_a_seed_and_no_seed_for_anything():
    swim = machine("a", 1)
    swim.learn_addresses(0, [address(port) for port in range(1000, 1000 + SEEDS_MAX)])
    swim.learn_addresses(0, [address(5)])
    assert 5 not in known(swim), "a further hint finds no room"
    swim.join(0, [address(6)])
    assert 6 in known(swim)
    assert 1000 not in known(swim), "the oldest hint went"
    assert len(known(swim)) == SEEDS_MAX
    swim.join(0, [address(port) for port in range(1000, 1000 + SEEDS_MAX)])
    assert {seed.is_hint for seed in swim.core.joiner._seeds.values()} == {False}
    swim.join(0, [address(7)])
    swim.learn_addresses(0, [address(8)])
    assert {6, 7, 8} & known(swim) == {6}, "seeds are kept for ever"


@pytest.mark.parametrize("seeds", [[], [Address("0.0.0.0", 7946)], [Address("::", 7946)]])
def test_a_join_without_a_seed_that_can_be_dialled_fails_at_once(seeds):
    swim = machine("a", 1)
    swim.join(0, seeds)
    assert failures(swim) == [tuple(seeds)]
    assert swim.transmits() == []


def test_joins_under_way_are_bounded_and_the_oldest_fails_for_the_newest():
    swim = machine("a", 1)
    for port in range(10, 10 + JOINS_MAX):
        swim.join(0, [address(port)])
    assert failures(swim) == []
    swim.join(0, [address(5)])
    swim.join(0, [address(6)])
    assert failures(swim) == [(address(10),), (address(11),)]
    assert len(swim.core.joiner._asked) == JOINS_MAX


def test_leaving_ends_the_joins_under_way_and_fails_those_that_follow():
    bench = Bench()
    bench.cluster(2)
    swim = bench.machines[2]
    swim.join(bench.now, [address(8), address(9)])
    swim.join(bench.now, [address(8)])
    assert failures(swim) == []
    swim.leave(bench.now)
    assert failures(swim) == [(address(8), address(9)), (address(8),)]
    swim.transmits()
    swim.join(bench.now, [address(1)])
    assert failures(swim) == [(address(1),)]
    assert not [sent for sent in swim.transmits() if isinstance(sent, Exchange)]


def test_joins_that_share_a_seed_end_each_by_its_own_last_one():
    bench = Bench()
    bench.cluster(2)
    bench.add("z", 9)
    bench.do(1, lambda swim, now: swim.join(now, [address(8), address(9)]))
    bench.do(1, lambda swim, now: swim.join(now, [address(8)]))
    bench.run(5, until=lambda: bench.all_see("a", "b", "z"))
    assert [event.seeds for event in bench.heard(JoinAttemptFailed, at="a")] == [(address(8),)]
    assert [event.seed for event in bench.heard(Joined, at="a")] == [address(9)]

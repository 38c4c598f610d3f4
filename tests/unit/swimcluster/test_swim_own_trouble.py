"""A node that doubts itself: blackouts, suspends, isolation (rules P14, P15, P23)."""

from __future__ import annotations

from swimcluster.events import (
    ClockGap,
    Isolated,
    MemberDied,
    MemberJoined,
    MemberSuspected,
)
from swimcluster.member import MemberState
from tests.fakes.swim_bench import Bench


def test_a_blackout_of_its_own_accuses_nobody_beyond_the_second():
    bench = Bench()
    bench.cluster(8)
    bench.cut = lambda source, destination: 1 in {source, destination}
    bench.run(18)
    assert bench.machines[1].statistics().accusations <= 2
    assert bench.machines[1].statistics().accusations_held > 0
    assert not bench.heard(MemberDied, at="a")
    bench.cut = lambda source, destination: False
    bench.run(60, until=lambda: bench.all_see(*"abcdefgh"))
    assert not bench.heard(MemberDied, at="a")


def test_accusations_are_held_no_longer_than_one_maximum_suspicion():
    bench = Bench()
    bench.cluster(5)
    bench.cut = lambda source, destination: 1 in {source, destination}
    bench.run(24 + 24 + 60)
    assert [member.name for member in bench.machines[1].members()] == ["a"]


def test_without_holding_a_cut_off_node_accuses_all():
    bench = Bench()
    bench.cluster(8, hold_accusations=False)
    bench.cut = lambda source, destination: 1 in {source, destination}
    bench.run(30)
    assert bench.machines[1].statistics().accusations >= 4


def test_a_suspended_node_extends_its_suspicions_and_accuses_nobody():
    bench = Bench()
    bench.cluster(3)
    bench.kill(3)
    bench.run(6, until=lambda: bench.view(1).get("c") is MemberState.SUSPECT)
    bench.run(1.0)
    bench.freeze(1)
    bench.run(60)
    bench.thaw(1)
    assert bench.view(1).get("c") is MemberState.SUSPECT
    gap = bench.heard(ClockGap, at="a")
    bench.run(1.0)
    gap = bench.heard(ClockGap, at="a")
    assert len(gap) == 1
    assert 59 < gap[0].gap_s < 61
    assert bench.machines[1].statistics().clock_gaps == 1
    bench.run(20, until=lambda: bench.all_see("a", "b"))


def test_a_node_back_from_suspend_is_told_and_refutes():
    bench = Bench()
    bench.cluster(3)
    bench.freeze(3)
    bench.run(15)
    assert "c" not in bench.view(1)
    bench.thaw(3)
    took = bench.run(10, until=lambda: bench.all_see("a", "b", "c"))
    assert took < 2
    assert bench.heard(MemberJoined, at="a")
    assert not any(event.member.name != "c" for event in bench.heard(MemberSuspected))


def test_a_blackout_and_a_running_hold_survive_a_clock_gap():
    bench = Bench()
    bench.cluster(5)
    bench.cut = lambda source, destination: 1 in {source, destination}
    bench.run(12)
    assert bench.machines[1].core.prober.blackout_until(bench.now) is not None
    bench.freeze(1)
    bench.run(100)
    bench.thaw(1)
    bench.run(0.5)
    assert bench.machines[1].core.prober.blackout_until(bench.now) is not None
    assert not bench.heard(MemberDied, at="a")


def test_a_node_that_hears_nobody_says_so_and_takes_it_back():
    bench = Bench()
    a, *_ = bench.cluster(3)
    assert not a.isolated
    bench.cut = lambda source, destination: 1 in {source, destination}
    bench.run(30, until=lambda: a.isolated)
    bench.cut = lambda source, destination: False
    bench.run(30, until=lambda: not a.isolated)
    assert [event.isolated for event in bench.heard(Isolated, at="a")] == [True, False]


def test_a_first_node_without_seeds_is_not_isolated():
    bench = Bench()
    a = bench.add("a", 1)
    bench.run(60)
    assert not a.isolated


def test_a_lone_node_survives_a_clock_gap():
    bench = Bench()
    bench.add("a", 1)
    bench.run(2)
    bench.freeze(1)
    bench.run(100)
    bench.thaw(1)
    bench.run(1)
    assert bench.heard(ClockGap)

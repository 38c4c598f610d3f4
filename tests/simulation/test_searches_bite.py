"""What searches rest on bites too: agreement after calm, counters that must not be zero, shrinking, exploring."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import simulations.search
from simulations import explore as exploring
from simulations.question import Parameters
from swimcluster.address import Address
from swimcluster.member import MemberState
from swimcluster.swim import Swim
from swimcluster.testing import (
    ChaosRun,
    Crash,
    Leave,
    Outcome,
    Partition,
    Rebind,
    SimulatedCluster,
    State,
    Suspend,
    chaos,
    explore,
    play,
)
from swimcluster.testing.faults import Schedule
from swimcluster.testing.network import SECOND

SEED, TICKS = 3, 300


def violations(machine: type, schedule: Schedule | None = None) -> tuple[str, ...]:
    return ChaosRun(SEED, ticks=TICKS, schedule=schedule, machine=machine).run().violations


def test_a_sound_machine_agrees_after_calm():
    assert chaos(SEED, ticks=TICKS).clean


class Stubborn(Swim):
    """Loses a member for good: whatever it is told later, it lists that one no more. Its events say the same."""

    def members(self):
        return tuple(m for m in super().members() if m.is_local or m.name != "n000")

    def events(self):
        return [e for e in super().events() if getattr(getattr(e, "member", None), "name", "") != "n000"]


def test_views_that_never_become_one_are_caught_after_calm():
    found = violations(Stubborn, ())
    assert any("no agreement after calm" in line and "has n000 missing" in line for line in found)


def test_an_address_given_to_two_hosts_is_mended_by_the_calm():
    """Whoever is not reached at the address it has can be found by nobody, and no protocol could bring it back."""
    twice = Address("10.100.0.1", 7946)
    faults = (Rebind(4 * SECOND, "n001", twice), Rebind(8 * SECOND, "n000", twice))
    run = ChaosRun(SEED, ticks=TICKS, schedule=faults)
    assert run.run().clean
    world = run.cluster.world
    assert {name: world.network.holder(world.nodes[name].address) for name in run.names} == {n: n for n in run.names}


def test_a_host_that_sleeps_while_it_joins_comes_back():
    """The dial of its seeds fails while it sleeps: they are dialled again."""
    returns = Leave(5 * SECOND, 10 * SECOND, "n002")
    faults = (
        returns,
        Partition(12 * SECOND, 8 * SECOND, frozenset({"n002"})),
        Suspend(15_500_000_000, 12 * SECOND, "n002"),
    )
    assert ChaosRun(SEED, ticks=TICKS, schedule=faults).run().clean


class Raises(Swim):
    """Falls over a second after its start."""

    def advance(self, now):
        self.began = getattr(self, "began", now)
        if now > self.began + SECOND:
            raise ZeroDivisionError("on purpose")
        super().advance(now)


def test_a_machine_that_raises_is_a_finding_with_its_place():
    found = violations(Raises, ())
    assert "ZeroDivisionError: on purpose" in found[0]
    assert f"seed {SEED}" in found[0]


def test_settling_says_when_the_limit_came_first():
    cluster = SimulatedCluster(3, seed=1)
    cluster.start_all()
    assert cluster.settle(limit_s=30) is not None
    play(cluster.world, [Partition(cluster.world.now, 600 * SECOND, frozenset({"n002"}))])
    cluster.world.run_for(40)
    assert cluster.settle(limit_s=5) is None
    assert cluster.differences()


# The question `search`


def outcome(seed: int, *broken: str, without: str = "") -> Outcome:
    coverage = {name: 1 for name in simulations.search.MUST_HAPPEN if name != without}
    return Outcome(seed, "digest", broken, coverage)


def outcome_of(seed: int, *, ticks: int) -> Outcome:
    return outcome(seed)


@pytest.mark.parametrize("absent", simulations.search.MUST_HAPPEN)
def test_a_search_in_which_something_never_happened_does_not_hold(absent, monkeypatch):
    monkeypatch.setattr(simulations.search, "chaos", lambda seed, *, ticks: outcome(seed, without=absent))
    answer = simulations.search.run(Parameters("quick", seeds=(1, 2)))
    assert not answer.holds
    assert any(absent in note for note in answer.notes)


def test_a_search_in_which_all_happened_and_nothing_broke_holds(monkeypatch):
    monkeypatch.setattr(simulations.search, "chaos", outcome_of)
    assert simulations.search.run(Parameters("quick", seeds=(1, 2))).holds


def test_a_violation_is_told_and_its_schedule_shrunk_to_what_breaks_it(monkeypatch):
    """Any crash of n001 breaks it: of all the faults of the seed one is left."""

    def broken(seed: int, *, ticks: int, schedule: Schedule | None = None) -> Outcome:
        faults = ChaosRun(seed, ticks=ticks).schedule if schedule is None else schedule
        hit = [fault for fault in faults if isinstance(fault, Crash)]
        return outcome(seed, *["n001 is gone"] * bool(hit))

    seed = next(s for s in range(1, 50) if any(isinstance(f, Crash) for f in ChaosRun(s, ticks=4000).schedule))
    monkeypatch.setattr(simulations.search, "chaos", broken)
    answer = simulations.search.run(Parameters("usual", seeds=(seed,), ticks=4000))
    assert not answer.holds
    assert "n001 is gone" in answer.notes[0]
    head, *faults = answer.notes[-1].splitlines()
    assert head.endswith("faults to 1:")
    assert [line.strip().partition("(")[0] for line in faults] == ["Crash"]


# The question `explore`


class Falls(Swim):
    """Shows others in an earlier life once its time went on."""

    def advance(self, now):
        self.is_late = True
        super().advance(now)

    def members(self):
        late = getattr(self, "is_late", False)
        return tuple(replace(m, epoch=0) if late and not m.is_local else m for m in super().members())


class NotThere(Swim):
    """Is not in its own view."""

    def members(self):
        return tuple(m for m in super().members() if not m.is_local)


class Late(Swim):
    """Wants to be woken in the past."""

    def next_deadline(self):
        deadline = super().next_deadline()
        return None if deadline is None else 0


@pytest.mark.parametrize(
    ("broken", "told"), [(Falls, "fell to"), (NotThere, "is not in its own view"), (Late, "has a deadline")]
)
def test_exploring_catches_a_machine_broken_in_one_way(broken, told):
    made, now = exploring.joined(2)
    for machine in made.values():
        machine.__class__ = broken
    found = explore(dict(made), now=now, depth=2, check=exploring.check)
    assert any(told in violation for violation in found.violations)


def test_exploring_catches_a_resurrection():
    made, now = exploring.joined(2)
    first, second = made
    victim = made[second].local
    gone = replace(victim, is_local=False, state=MemberState.DEAD)

    class Shows:
        def __init__(self, *departed: Any, back: Any = ()) -> None:
            self.local, self._departed, self._back = made[first].local, departed, back

        def members(self) -> tuple[Any, ...]:
            return (self.local, *self._back)

        def departed(self) -> tuple[Any, ...]:
            return self._departed

        def next_deadline(self) -> None:
            return None

    before = State(now, {first: Shows(gone)})
    after = State(now, {first: Shows(back=(replace(gone, state=MemberState.ALIVE),))})
    assert ["fell to" in fault for fault in exploring.check(before, after)] == [True]


def test_exploring_finds_nothing_in_a_sound_pair():
    made, now = exploring.joined(2)
    assert explore(dict(made), now=now, depth=3, check=exploring.check).violations == []


def test_an_exploration_with_a_violation_does_not_hold(monkeypatch):
    monkeypatch.setattr(exploring, "Swim", NotThere)
    row = exploring.explored(("joining", 2, 2, 0, 0), 1000)
    assert row["violations"]
    assert not row["holds"]

"""Each checker bites: a machine broken in one way is caught by the checker for it, and a sound one by none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from swimcluster.address import Address
from swimcluster.events import MemberDied, MemberJoined
from swimcluster.member import MemberState
from swimcluster.swim import Swim
from swimcluster.testing import (
    Answers,
    Ask,
    Broadcast,
    Checks,
    Crash,
    InvariantError,
    Leave,
    SimulatedCluster,
    Strangers,
    Trouble,
    Weather,
    play,
)
from swimcluster.testing import invariants as inv
from swimcluster.testing.network import SECOND
from swimcluster.transmits import Datagram

SIZE = 4
QUICK = {"preset": "local", "gossip_interval_s": 0.3, "probe_interval_s": 0.4, "probe_timeout_s": 0.1}


def check(
    checker: inv.Checker,
    machine: type = Swim,
    *,
    size: int = SIZE,
    seconds: float = 25,
    faults: Any = (),
    **settings: Any,
) -> list[str]:
    """Run a small cluster of `machine` under one checker; a crash and a restart by default."""
    cluster = SimulatedCluster(size, seed=3, machine=machine, **QUICK, **settings)
    checks = Checks(cluster, [checker])
    play(cluster.world, faults or [Crash(5 * SECOND, 10 * SECOND, "n001", keep_disk=False)])
    cluster.start_all(within_s=1)
    cluster.world.run_for(seconds)
    return checks.violations


def every_checker() -> list[inv.Checker]:
    return inv.default_checkers(SimulatedCluster(SIZE, seed=3, preset="local"))


@pytest.mark.parametrize("checker", every_checker(), ids=lambda c: type(c).__name__)
def test_a_sound_machine_is_caught_by_nobody(checker):
    assert check(checker) == []


class Forgets(Swim):
    """Takes a member back at a lower version than it has shown."""

    def members(self):
        self.looks = getattr(self, "looks", 0) + 1
        return tuple(
            replace(m, incarnation=0, epoch=1) if self.looks > 9 and not m.is_local else m for m in super().members()
        )


def test_a_fallen_version_is_caught():
    assert "fell from" in check(inv.VersionsRise(), Forgets)[0]


class Resurrects(Swim):
    """Shows a dead member alive again at the version it died at."""

    def members(self):
        back = (
            tuple(replace(m, state=MemberState.ALIVE) for m in super().departed()) if self.local.name == "n000" else ()
        )
        self.shown = getattr(self, "shown", 0) + bool(back)
        return (*super().members(), *back) if self.shown > 3 else super().members()

    def departed(self):
        return super().departed() if getattr(self, "shown", 0) <= 3 else ()


def test_a_resurrection_is_caught():
    assert "fell from DEAD" in check(inv.VersionsRise(), Resurrects)[0]


class SaysAliveAgain(Swim):
    """Tells of a death and at once of life again in the same version, hidden within one step."""

    def events(self):
        events = super().events()
        for event in list(events):
            if type(event).__name__ == "MemberDied":
                events.append(type(event)(replace(event.member, state=MemberState.ALIVE)))
        return events


def test_a_resurrection_hidden_within_one_step_is_caught():
    assert "MemberDied takes n001" in check(inv.VersionsRise(), SaysAliveAgain)[0]


class TwoFaced(Swim):
    """Shows its own metadata otherwise than it tells it."""

    def members(self):
        return tuple(replace(m, metadata=b"other") if m.is_local else m for m in super().members())


def test_two_contents_of_one_version_are_caught():
    assert "two contents" in check(inv.OneContentPerVersion(), TwoFaced)[0]


class Resigned(Swim):
    """Believes what others say of it."""

    @property
    def local(self):
        return replace(super().local, state=MemberState.SUSPECT)


def test_a_member_that_is_not_alive_to_itself_is_caught():
    assert "SUSPECT to itself" in check(inv.AliveToItself(), Resigned)[0]


class Absent(Swim):
    """Leaves itself out of its view."""

    def members(self):
        return tuple(m for m in super().members() if not m.is_local)


def test_a_member_that_is_not_in_its_own_view_is_caught():
    assert "not in its own view" in check(inv.AliveToItself(), Absent)[0]


class Shrinks(Swim):
    """Its own incarnation falls."""

    @property
    def local(self):
        self.asked = getattr(self, "asked", 2**20) - 1
        return replace(super().local, incarnation=self.asked)


def test_an_own_version_that_falls_is_caught():
    assert "own version fell" in check(inv.AliveToItself(), Shrinks)[0]


class Talkative(Swim):
    """Pads its datagrams."""

    def transmits(self):
        items = super().transmits()
        return [item if hasattr(item, "id") else replace(item, data=item.data + bytes(1400)) for item in items]


class Verbose(Swim):
    """Pads its exchanges."""

    def transmits(self):
        items = super().transmits()
        return [replace(item, data=item.data + bytes(1400)) if hasattr(item, "id") else item for item in items]


def test_a_datagram_over_its_budget_is_caught():
    checker = inv.WithinBudget(datagram_bytes=1400, exchange_bytes=2**20)
    assert "over 1400" in check(checker, Talkative, seconds=5)[0]


def test_an_exchange_over_its_budget_is_caught():
    checker = inv.WithinBudget(datagram_bytes=10**9, exchange_bytes=1400)
    assert "over 1400" in check(checker, Verbose, seconds=5)[0]


class Hoarder(Swim):
    """Lets a queue grow."""

    def statistics(self):
        statistics = super().statistics()
        statistics.updates_queued = 10**6
        return statistics


def test_a_queue_over_its_limit_is_caught():
    assert "updates_queued is 1000000" in check(inv.BoundedQueues({"updates_queued": 100}), Hoarder)[0]


class Late(Swim):
    """Names a deadline that has passed, once in a while."""

    def advance(self, now):
        super().advance(now)
        self.behind = now - 5 if now % 7 == 0 else None

    def next_deadline(self):
        behind, self.behind = getattr(self, "behind", None), None
        return behind if behind is not None else super().next_deadline()


def test_a_deadline_in_the_past_is_caught():
    assert "5 ns ago" in check(inv.DeadlinesAhead(), Late)[0]


def test_accusations_from_an_own_blackout_are_caught():
    def run(hold: bool) -> list[str]:
        cluster = SimulatedCluster(8, seed=3, **QUICK, hold_accusations=hold, local_health_max=0)
        checks = Checks(cluster, [inv.NoBlindAccusations(most=3, hold_s=7)])
        cluster.start_all()
        cluster.world.run_for(10)
        cluster.world.network.cut(None, ["n005"])
        cluster.world.run_for(17)
        return checks.violations

    assert "without any input" in run(hold=False)[0]
    assert run(hold=True) == []


class Ghostly(Swim):
    """Tells of a member's death, and much later that it has joined."""

    def events(self):
        events = super().events()
        self.dead = getattr(self, "dead", None) or next((e for e in events if type(e).__name__ == "MemberDied"), None)
        self.waited = getattr(self, "waited", 0) + (self.dead is not None)
        if self.waited == 400:
            events.append(MemberJoined(self.dead.member))
        return events


def test_a_ghost_is_caught():
    faults = [Crash(5 * SECOND, 200 * SECOND, "n001")]
    assert "n001 joined, whose process ended" in check(inv.NoGhosts(grace_s=10), Ghostly, seconds=60, faults=faults)[0]


def test_a_member_that_somebody_still_believes_in_is_no_ghost_and_one_that_all_gave_up_is():
    cluster = SimulatedCluster(3, seed=3, **QUICK)
    checker = inv.NoGhosts(grace_s=10)
    checks, world = Checks(cluster, [checker]), cluster.world
    cluster.start_all(within_s=1)
    assert cluster.settle(limit_s=20) is not None
    ended = cluster.machine("n002").local
    cluster.stop("n002")

    def tells(name: str, kind: type) -> None:
        checker.stepped(world, world.nodes[name], "datagram", [], [kind(ended)])

    tells("n001", MemberDied)
    world.now += 60 * SECOND
    tells("n001", MemberJoined)  # n000 was cut off all the while, and tells what it knows
    tells("n000", MemberDied)
    world.now += 9 * SECOND
    tells("n001", MemberJoined)
    assert checks.violations == []
    world.now += 2 * SECOND
    tells("n001", MemberJoined)
    assert "n002 joined, whose process ended 71.0 s ago" in checks.violations[0]


def test_a_stranger_is_caught():
    def run(cluster_name: str) -> list[str]:
        cluster = SimulatedCluster(3, seed=3, preset="local", cluster=cluster_name)
        checks = Checks(cluster, [inv.OnlyOurs()])
        stranger = Strangers(5 * SECOND, 20 * SECOND, Address("10.7.7.7", 7946), Address("10.0.0.0", 7946))
        play(cluster.world, [stranger])
        cluster.start_all()
        cluster.world.run_for(20)
        return checks.violations

    # The strangers' cluster is called "another": members that bear that name too let them in.
    assert "stranger0 is not a member" in run("another")[0]
    assert run("simulated") == []


class Mute(Swim):
    """Keeps deaths to itself."""

    def events(self):
        return [event for event in super().events() if type(event).__name__ != "MemberDied"]


def test_an_event_left_out_is_caught():
    assert "events missed" in check(inv.EventsTellAll(), Mute)[0]


class Changeling(Swim):
    """Keeps restarts to itself."""

    def events(self):
        return [e for e in super().events() if type(e).__name__ not in {"MemberRestarted", "MemberJoined"}]


def test_a_life_left_out_is_caught():
    assert "events missed" in check(inv.EventsTellAll(), Changeling)[0]


def test_a_violation_can_be_raised_at_once_with_the_seed():
    cluster = SimulatedCluster(3, seed=42, machine=Absent)
    Checks(cluster, raise_at_once=True)
    with pytest.raises(InvariantError, match="seed 42"):
        cluster.start_all(within_s=5)


def test_at_most_twenty_violations_are_kept():
    assert len(check(inv.AliveToItself(), Absent)) == inv.VIOLATIONS_MAX


class Denounces(Swim):
    """Tells that a member left and, a little later, that it died."""

    def events(self):
        events = super().events()
        for event in list(events):
            if type(event).__name__ == "MemberLeft":
                events.append(MemberDied(replace(event.member, incarnation=event.member.incarnation + 1)))
        return events


def test_a_member_that_left_and_is_reported_as_failed_is_caught():
    faults = [Leave(5 * SECOND, 10 * SECOND, "n001")]
    assert "MemberDied about n001, which has left" in check(inv.LeftIsNotFailed(), Denounces, faults=faults)[0]


class Polite(Swim):
    """Thanks for whatever arrives."""

    def receive_datagram(self, now, source, data):
        before = self.statistics().dropped_mac
        super().receive_datagram(now, source, data)
        self.thanks = [Datagram(source, b"?")] if self.statistics().dropped_mac > before else []

    def transmits(self):
        thanks, self.thanks = getattr(self, "thanks", []), []
        return [*super().transmits(), *thanks]


def test_an_answer_to_a_stranger_is_caught():
    faults = [Weather(5 * SECOND, 10 * SECOND, Trouble(corrupt=0.3))]
    assert "after one of a stranger (dropped_mac)" in check(inv.SilentToStrangers(), Polite, faults=faults)[0]
    assert check(inv.SilentToStrangers(), faults=faults) == []


class Repeats(Swim):
    """Hands on twice what applications should get once."""

    def events(self):
        events = super().events()
        return [*events, *[e for e in events if type(e).__name__ in {"BroadcastReceived", "ReplyReceived"}]]


@pytest.mark.parametrize(
    ("does", "words"),
    [(Broadcast(5 * SECOND, "n000", b"to all"), "BroadcastReceived"), (Ask(5 * SECOND, "n000", "n001", b"?"), "Reply")],
)
def test_a_message_handed_on_twice_is_caught(does, words):
    def run(machine: type) -> list[str]:
        cluster = SimulatedCluster(SIZE, seed=3, machine=machine, **QUICK)
        checks = Checks(cluster, [inv.ToldOnce()])
        Answers(cluster, lambda asked, by, payload: payload)
        play(cluster.world, [does])
        cluster.start_all(within_s=1)
        cluster.world.run_for(10)
        return checks.violations

    assert words in run(Repeats)[0]
    assert run(Swim) == []


def test_every_checker_runs_by_default_and_is_on_the_page():
    default = {type(checker).__name__ for checker in every_checker()}
    assert default == set(inv.__all__) - {"Checker", "Checks", "InvariantError", "default_checkers"}

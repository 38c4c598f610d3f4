"""Two processes of one name and instance confuse no checker: a sound machine is caught by none, a broken one still is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from swimcluster.address import Address
from swimcluster.events import MemberDied, MemberJoined, MemberSuspected
from swimcluster.swim import Swim
from swimcluster.testing import (
    Checks,
    Crash,
    Fault,
    Leave,
    Partition,
    SetMetadata,
    SimulatedCluster,
    Twin,
    faults,
    membership_faults,
    play,
)
from swimcluster.testing import invariants as inv
from swimcluster.testing.chaos import MENU
from swimcluster.testing.network import SECOND
from swimcluster.testing.randomness import fork

QUICK = {"preset": "local", "gossip_interval_s": 0.3, "probe_interval_s": 0.4, "probe_timeout_s": 0.1}
ELSEWHERE = Address("10.200.0.1", 7000)
ORIGINAL, COPY = "n001", "n001'0"


def check(checker: inv.Checker, machine: type, *others: Fault, for_s: int = 20, seconds: float = 30) -> list[str]:
    """Run four members under one checker; n001 is copied from the fifth second on."""
    cluster = SimulatedCluster(4, seed=3, machine=machine, **QUICK)
    checks = Checks(cluster, [checker])
    play(cluster.world, [Twin(5 * SECOND, for_s * SECOND, ORIGINAL, ELSEWHERE), *others])
    cluster.start_all(within_s=1)
    cluster.world.run_for(seconds)
    return checks.violations


# One content per version

BOTH_SPEAK = (SetMetadata(7 * SECOND, ORIGINAL, b"one"), SetMetadata(7 * SECOND, COPY, b"other"))


def shows(machine: Swim, metadata: bytes) -> tuple:
    """What a machine lists, n001 with `metadata` while it is in its first words."""
    members = super(type(machine), machine).members()
    return tuple(replace(m, metadata=metadata) if m.name == ORIGINAL and not m.is_local else m for m in members)


class Wavers(Swim):
    """Shows first one content of n001 and then another in one version."""

    def members(self):
        self.looks = getattr(self, "looks", 0) + 1
        return shows(self, b"one" if self.looks < 20 else b"other")


class EachItsOwn(Swim):
    """Shows n001 as nobody else does."""

    def members(self):
        return shows(self, self.local.name.encode())


def test_two_copies_that_speak_at_once_are_two_contents_and_no_violation():
    cluster = SimulatedCluster(4, seed=3, **QUICK)
    checker = inv.OneContentPerVersion()
    checks = Checks(cluster, [checker])
    play(cluster.world, [Twin(5 * SECOND, 20 * SECOND, ORIGINAL, ELSEWHERE), *BOTH_SPEAK])
    cluster.start_all(within_s=1)
    cluster.world.run_for(30)
    assert checks.violations == []
    assert max(map(len, checker.known.values())) == 2


@pytest.mark.parametrize("machine", [Wavers, EachItsOwn])
def test_a_copied_member_shown_as_neither_copy_says_is_caught(machine):
    assert "n001 has two contents" in check(inv.OneContentPerVersion(), machine)[0]


# Ghosts

AWAY = Partition(12 * SECOND, 20 * SECOND, frozenset({ORIGINAL}))


class Late(Swim):
    """Tells of a member's death, and much later that it has joined."""

    def events(self):
        events = super().events()
        died = [event.member for event in events if isinstance(event, MemberDied)]
        self.dead = getattr(self, "dead", None) or next(iter(died), None)
        self.waited = getattr(self, "waited", 0) + (self.dead is not None)
        return [*events, MemberJoined(self.dead)] if self.waited == 400 else events


def test_a_member_that_comes_back_after_its_copy_ended_is_no_ghost():
    joined = []

    class Counts(inv.NoGhosts):
        def stepped(self, world, node, kind, sent, events):
            joined.extend(e for e in events if isinstance(e, MemberJoined) and world.now > 20 * SECOND)
            super().stepped(world, node, kind, sent, events)

    assert check(Counts(grace_s=10), Swim, AWAY, for_s=3, seconds=60) == []
    assert ORIGINAL in {event.member.name for event in joined}


def test_the_ghost_of_a_member_whose_copies_have_all_ended_is_caught():
    gone = Crash(12 * SECOND, 200 * SECOND, ORIGINAL)
    assert "n001 joined, whose process ended" in check(inv.NoGhosts(grace_s=10), Late, gone, for_s=3, seconds=60)[0]


def test_the_ghost_of_a_member_that_drew_another_instance_is_caught():
    first: set[bytes] = set()

    class Remembers(inv.NoGhosts):
        def booted(self, world, node):
            super().booted(world, node)
            first.add(self.living[node.name])

    checker, gone = Remembers(grace_s=10), Crash(28 * SECOND, 200 * SECOND, ORIGINAL)
    assert "n001 joined, whose" in check(checker, Late, *BOTH_SPEAK, gone, for_s=15, seconds=80)[0]
    assert not checker.ended_at.keys() <= first


# Left is not failed

LEAVES = Leave(7 * SECOND, 60 * SECOND, ORIGINAL)


class Denounces(Swim):
    """Tells that a member left and at once that it died."""

    def events(self):
        told = []
        for event in super().events():
            told.append(event)
            if type(event).__name__ == "MemberLeft":
                told.append(MemberDied(replace(event.member, incarnation=event.member.incarnation + 1)))
        return told


def test_a_copy_that_goes_on_after_the_original_left_is_listed_by_nobody():
    """It is not at the address it speaks of (P16)."""
    seen: list[str] = []

    class Counts(inv.LeftIsNotFailed):
        def stepped(self, world, node, kind, sent, events):
            seen.extend(type(e).__name__ for e in events if getattr(getattr(e, "member", None), "name", "") == ORIGINAL)
            super().stepped(world, node, kind, sent, events)

    assert check(Counts(), Swim, LEAVES, SetMetadata(13 * SECOND, COPY, b"other"), seconds=60) == []
    assert not {"MemberJoined", "MemberDied"}.intersection(seen[seen.index("MemberLeft") :])


def test_a_copied_member_that_left_and_is_reported_as_failed_is_caught():
    assert "MemberDied about n001, which has left" in check(inv.LeftIsNotFailed(), Denounces, LEAVES)[0]


# Accusations


def accused(kind: str, times: Sequence[int]) -> list[str]:
    """What is found when n001 tells of suspicions by n001 in steps of one kind, one each second, hearing nothing else."""
    cluster = SimulatedCluster(4, seed=3, **QUICK)
    checker = inv.NoBlindAccusations(most=3, hold_s=60)
    checks = Checks(cluster, [checker])
    cluster.start_all(within_s=1)
    node, member = cluster.world.nodes[ORIGINAL], cluster.machine("n002").local
    for _ in times:
        checker.stepped(cluster.world, node, kind, [], [MemberSuspected(member, ORIGINAL)])
    return checks.violations


def test_suspicions_of_a_copy_that_are_heard_are_not_ones_own():
    assert accused("datagram", range(9)) == []
    assert "accusation 4 after" in accused("wake", range(4))[0]


# The search draws copies


def test_chaos_is_drawn_from_every_fault_there_is():
    kinds = {
        name
        for module in (faults, membership_faults)
        for name, kind in vars(module).items()
        if isinstance(kind, type) and kind.__module__ == module.__name__ and hasattr(kind, "at_ns")
    }
    rng = fork(1, "menu")
    drawn = {type(maker(rng, ["a", "b"], 0, SECOND)).__name__ for _, maker in MENU.values()}
    assert kinds - {"Fault"} <= drawn

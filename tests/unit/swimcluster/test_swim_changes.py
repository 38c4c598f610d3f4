"""Which events tell of a change of one member, as a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swimcluster.address import Address
from swimcluster.changes import told_by
from swimcluster.member import Member, MemberState

HELD = Member("b", Address("10.0.0.2", 7946), b"instance", 5, 3, MemberState.ALIVE, b"old")
SUSPECTED = replace(HELD, state=MemberState.SUSPECT)
DEAD = replace(HELD, state=MemberState.DEAD)
LEFT = replace(HELD, state=MemberState.LEFT)
LATER = replace(HELD, incarnation=4)
RESTARTED = replace(HELD, epoch=6, incarnation=0, instance=b"another!", address=Address("10.0.0.9", 7946))
READVERTISED = replace(HELD, epoch=6, incarnation=0, address=Address("10.0.0.9", 7946))


@pytest.mark.parametrize(
    ("before", "after", "events"),
    [
        (HELD, LATER, []),
        (HELD, replace(LATER, metadata=b"new"), ["MetadataChanged"]),
        (HELD, SUSPECTED, ["MemberSuspected"]),
        (SUSPECTED, SUSPECTED, []),
        (SUSPECTED, replace(LATER, state=MemberState.SUSPECT), ["MemberSuspected"]),
        (SUSPECTED, replace(SUSPECTED, metadata=b"new"), ["MetadataChanged"]),
        (SUSPECTED, LATER, ["MemberAlive"]),
        (SUSPECTED, replace(LATER, metadata=b"new"), ["MemberAlive", "MetadataChanged"]),
        (SUSPECTED, DEAD, ["MemberDied"]),
        (SUSPECTED, RESTARTED, ["MemberRestarted"]),
        (HELD, LEFT, ["MemberLeft"]),
        (HELD, RESTARTED, ["MemberRestarted"]),
        (HELD, replace(RESTARTED, state=MemberState.SUSPECT), ["MemberRestarted", "MemberSuspected"]),
        (HELD, replace(RESTARTED, metadata=b"new"), ["MemberRestarted"]),
        (HELD, READVERTISED, ["MemberMoved"]),
        (HELD, replace(RESTARTED, state=MemberState.DEAD), ["MemberDied"]),
        (DEAD, LEFT, ["MemberLeft"]),
        (DEAD, replace(DEAD, incarnation=4), []),
        (DEAD, LATER, ["MemberJoined"]),
        (DEAD, replace(LATER, state=MemberState.SUSPECT), ["MemberJoined", "MemberSuspected"]),
        (LEFT, RESTARTED, ["MemberJoined"]),
    ],
)
def test_a_change_is_told_by(before: Member, after: Member, events: list[str]) -> None:
    told = list(told_by(before, after, "c"))
    assert [type(event).__name__ for event in told] == events
    assert all(getattr(event, "member", None) == after for event in told)
    assert all(getattr(event, "previous", before) == before for event in told)
    assert all(getattr(event, "accuser", "c") == "c" for event in told)

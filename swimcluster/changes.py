"""Which events tell of a change: from one picture of a member to the next."""

from __future__ import annotations

from collections.abc import Iterator

from swimcluster.events import (
    Event,
    MemberAlive,
    MemberDied,
    MemberJoined,
    MemberLeft,
    MemberMoved,
    MemberRestarted,
    MemberSuspected,
    MetadataChanged,
)
from swimcluster.member import Member, MemberState

ALIVE, SUSPECT, DEAD, LEFT = MemberState.ALIVE, MemberState.SUSPECT, MemberState.DEAD, MemberState.LEFT


def told_by(before: Member, after: Member, accuser: str) -> Iterator[Event]:
    """Yield the events that tell of a change of what is held about one member, in the order programs get them."""
    was_live, is_live = not before.state.is_gone, not after.state.is_gone
    is_same_life = (before.epoch, before.instance) == (after.epoch, after.instance)
    if is_live and not was_live:
        yield MemberJoined(after)
    elif was_live and not is_live:
        yield MemberLeft(after) if after.state is LEFT else MemberDied(after)
    elif before.state is DEAD and after.state is LEFT:
        yield MemberLeft(after)
    elif is_live and before.instance != after.instance:
        yield MemberRestarted(after, before)
    elif is_live and before.address != after.address:
        yield MemberMoved(after, before)
    if is_same_life and before.state is SUSPECT and after.state is ALIVE:
        yield MemberAlive(after)
    is_same_version = is_same_life and before.incarnation == after.incarnation
    if after.state is SUSPECT and not (is_same_version and before.state is SUSPECT):
        yield MemberSuspected(after, accuser)
    if is_same_life and was_live and is_live and before.metadata != after.metadata:
        yield MetadataChanged(after)

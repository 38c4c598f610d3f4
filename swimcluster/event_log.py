"""What an operator should find in the log without subscribing to anything, at a bounded rate per kind of event."""

from __future__ import annotations

import logging

from swimcluster.events import (
    AddressConflict,
    ClockGap,
    Event,
    Isolated,
    JoinAttemptFailed,
    MemberDied,
    MemberJoined,
    MemberLeft,
    MemberMoved,
    MemberRestarted,
    NameConflict,
    NameTaken,
    Outlived,
    PeerRefused,
    SnapshotFault,
)
from swimcluster.line_budget import LineBudget

LEVELS: dict[type[Event], int] = {
    MemberJoined: logging.INFO,
    MemberDied: logging.INFO,
    MemberLeft: logging.INFO,
    MemberRestarted: logging.INFO,
    MemberMoved: logging.INFO,
    Outlived: logging.INFO,
    ClockGap: logging.WARNING,
    Isolated: logging.WARNING,
    JoinAttemptFailed: logging.WARNING,
    NameConflict: logging.WARNING,
    AddressConflict: logging.WARNING,
    PeerRefused: logging.WARNING,
    SnapshotFault: logging.WARNING,
    NameTaken: logging.ERROR,
}

logger = logging.getLogger("swimcluster")


class EventLog:
    """Writes the events of one cluster to the logger `swimcluster`."""

    def __init__(self) -> None:
        self._budget = LineBudget()

    def write(self, event: Event) -> None:
        """Log one event if its kind is for the log and has lines left."""
        kind = type(event)
        level = LEVELS.get(kind)
        if level is None or _is_told_elsewhere(event) or not logger.isEnabledFor(level):
            return
        suffix = self._budget.take(kind)
        if suffix is not None:
            logger.log(level, "%s%s", describe(event), suffix)


def _is_told_elsewhere(event: Event) -> bool:
    """Whether there is nothing to add to other lines: each seed refused, and said why."""
    return isinstance(event, JoinAttemptFailed) and bool(event.seeds) and set(event.seeds) <= set(event.refused)


def describe(event: Event) -> str:
    """Return one line for a person."""
    match event:
        case MemberJoined(member=m) | MemberDied(member=m) | MemberLeft(member=m):
            return f"{m.name} at {m.address} {VERBS[type(event)]}"
        case MemberRestarted(member=m, previous=p) | MemberMoved(member=m, previous=p):
            return f"{m.name} {VERBS[type(event)]}, from {p.address} to {m.address}"
        case JoinAttemptFailed(seeds=seeds, retry_in_s=retry_in_s, refused=refused):
            silent = ", ".join(str(seed) for seed in seeds if seed not in refused)
            return f"no answer from {silent or 'anybody'}; trying again in {retry_in_s:.1f} s"
        case Isolated(isolated=isolated):
            return "hears nobody although others are known" if isolated else "hears others again"
        case ClockGap(gap_s=gap_s):
            return f"stood still for {gap_s:.1f} s; running suspicions were extended"
        case NameTaken(name=name, holder=holder):
            return f"the name {name!r} is held by a live member at {holder}"
        case NameConflict(name=name, kept=kept, refused=refused):
            return f"two live processes claim {name!r}: {kept} keeps it, {refused} does not"
        case AddressConflict(name=name, address=address, holder=holder):
            return f"{name} advertises {address}, where {holder or 'another process'} answers: mend {name}'s address"
        case PeerRefused(address=address, reason=reason):
            return f"{address or 'somebody'}: {reason}"
        case SnapshotFault(reason=reason):
            return f"the address snapshot: {reason}"
        case Outlived(previous_epoch=previous, epoch=epoch):
            return f"took epoch {epoch} after {previous}: a later life of this name was remembered"
        case _:
            return repr(event)


VERBS: dict[type[Event], str] = {
    MemberJoined: "joined",
    MemberDied: "is dead",
    MemberLeft: "left",
    MemberRestarted: "restarted",
    MemberMoved: "moved",
}

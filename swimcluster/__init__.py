"""Membership for Python services: who else is alive, told by SWIM with Lifeguard.

`open_cluster` runs a member in a trio program, `swimcluster.threaded` in an asyncio or thread program; `Swim` is
the protocol alone, without I/O. docs/swimcluster/ has the guide, docs/protocol.md the rules.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from swimcluster.address import Address, parse_address
from swimcluster.config import Config
from swimcluster.errors import (
    AuthError,
    ClosedError,
    ConfigError,
    DecodeError,
    ExchangeError,
    JoinError,
    NameInUseError,
    PayloadTooLargeError,
    PayloadTypeError,
    RefusedError,
    SwimclusterError,
)
from swimcluster.events import (
    AddressConflict,
    BroadcastReceived,
    ClockGap,
    Event,
    EventsLost,
    Isolated,
    JoinAttemptFailed,
    Joined,
    LeaveFinished,
    MemberAlive,
    MemberDied,
    MemberJoined,
    MemberLeft,
    MemberMoved,
    MemberRestarted,
    MemberSuspected,
    MetadataChanged,
    NameConflict,
    NameTaken,
    Outlived,
    PeerRefused,
    ReachabilityChanged,
    ReplyReceived,
    RequestFailed,
    RequestReceived,
    Snapshot,
    SnapshotFault,
    UserMessage,
    VitalsChanged,
)
from swimcluster.member import Member, MemberState, Reachability
from swimcluster.statistics import Statistics
from swimcluster.swim import Swim
from swimcluster.transmits import Datagram, Exchange, JoinStatus, LeaveProgress, PendingReply
from swimcluster.transport import ExchangeHandler, Transport

if TYPE_CHECKING:
    from swimcluster.cluster import Cluster, open_cluster
    from swimcluster.rotation import Coverage
    from swimcluster.subscription import Subscription

# The names that need trio load it when they are first used: the core and the simulator run without it.
_DRIVER_NAMES = {
    "Cluster": "swimcluster.cluster",
    "Coverage": "swimcluster.rotation",
    "Subscription": "swimcluster.subscription",
    "open_cluster": "swimcluster.cluster",
}


def __getattr__(name: str) -> object:
    module = _DRIVER_NAMES.get(name)
    if module is None:
        raise AttributeError(f"module 'swimcluster' has no attribute {name!r}")
    return getattr(import_module(module), name)


__all__ = [
    "Address",
    "AddressConflict",
    "AuthError",
    "BroadcastReceived",
    "ClockGap",
    "ClosedError",
    "Cluster",
    "Config",
    "ConfigError",
    "Coverage",
    "Datagram",
    "DecodeError",
    "Event",
    "EventsLost",
    "Exchange",
    "ExchangeError",
    "ExchangeHandler",
    "Isolated",
    "JoinAttemptFailed",
    "JoinError",
    "JoinStatus",
    "Joined",
    "LeaveFinished",
    "LeaveProgress",
    "Member",
    "MemberAlive",
    "MemberDied",
    "MemberJoined",
    "MemberLeft",
    "MemberMoved",
    "MemberRestarted",
    "MemberState",
    "MemberSuspected",
    "MetadataChanged",
    "NameConflict",
    "NameInUseError",
    "NameTaken",
    "Outlived",
    "PayloadTooLargeError",
    "PayloadTypeError",
    "PeerRefused",
    "PendingReply",
    "Reachability",
    "ReachabilityChanged",
    "RefusedError",
    "ReplyReceived",
    "RequestFailed",
    "RequestReceived",
    "Snapshot",
    "SnapshotFault",
    "Statistics",
    "Subscription",
    "Swim",
    "SwimclusterError",
    "Transport",
    "UserMessage",
    "VitalsChanged",
    "open_cluster",
    "parse_address",
]

"""What happened, as frozen values. The machine makes them, the application reads them; nothing waits for a reader."""

from __future__ import annotations

from dataclasses import dataclass

from swimcluster.address import Address
from swimcluster.member import Member, Reachability


@dataclass(frozen=True, slots=True)
class MemberJoined:
    """A member is listed as live that was unknown or departed before."""

    member: Member


@dataclass(frozen=True, slots=True)
class MemberSuspected:
    """A live member is suspected; it can still refute. Route around it if you can."""

    member: Member
    accuser: str
    """Name of the first accuser; empty when it came by a state exchange."""


@dataclass(frozen=True, slots=True)
class MemberAlive:
    """A suspected member refuted the suspicion."""

    member: Member


@dataclass(frozen=True, slots=True)
class MemberDied:
    """A member was declared dead."""

    member: Member


@dataclass(frozen=True, slots=True)
class MemberLeft:
    """A member said that it leaves."""

    member: Member


@dataclass(frozen=True, slots=True)
class MemberRestarted:
    """A live name is now held by another process (another instance), perhaps elsewhere."""

    member: Member
    previous: Member


@dataclass(frozen=True, slots=True)
class MemberMoved:
    """A live member, the same process, advertises another address."""

    member: Member
    previous: Member


@dataclass(frozen=True, slots=True)
class MetadataChanged:
    """A live member replaced its metadata."""

    member: Member


@dataclass(frozen=True, slots=True)
class VitalsChanged:
    """Newer vitals with other contents arrived from a live member."""

    member: Member


@dataclass(frozen=True, slots=True)
class ReachabilityChanged:
    """This node's own opinion of the path to a member changed."""

    member: Member
    previous: Reachability


@dataclass(frozen=True, slots=True)
class NameConflict:
    """Two live processes claim one name. The greater life keeps it in every view; the other stops."""

    name: str
    kept: Address
    refused: Address


@dataclass(frozen=True, slots=True)
class AddressConflict:
    """A member, perhaps this node itself, advertises an address at which another process answers.

    Nobody lists that member, so its advertised address must be mended. At most once per minute and conflict.
    """

    name: str
    address: Address
    holder: str
    """Who answers there; empty if that is not known."""


@dataclass(frozen=True, slots=True)
class NameTaken:
    """A live process answers under this node's own name: this node has stopped taking part (or never joined)."""

    name: str
    holder: Address


@dataclass(frozen=True, slots=True)
class Outlived:
    """This node took a greater epoch, because the cluster remembered a later life of its name that nobody holds."""

    previous_epoch: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Joined:
    """A seed let this node in: the first ever, or the first of a call of `Swim.join`."""

    seed: Address


@dataclass(frozen=True, slots=True)
class JoinAttemptFailed:
    """No seed let this node in this time; the next attempt follows by itself.

    Emitted once per round, so that a lonely node leaves a visible trace, and once for each `Swim.join` that failed.
    """

    seeds: tuple[Address, ...]
    retry_in_s: float
    is_explicit: bool = False
    """Whether it ends a call of `Swim.join` with these seeds, rather than a round of the node's own."""
    refused: tuple[Address, ...] = ()
    """Those of `seeds` that answered with a refusal; `PeerRefused` says why. The others gave no answer."""


@dataclass(frozen=True, slots=True)
class LeaveFinished:
    """Nothing more will be done about leaving; `told` of `members` confirmed that they know."""

    told: int
    members: int


@dataclass(frozen=True, slots=True)
class Isolated:
    """Whether this node has heard nobody for a while although it knows of others; its own opinion."""

    isolated: bool


@dataclass(frozen=True, slots=True)
class ClockGap:
    """The clock jumped (a suspended host, a stalled process): running suspicions were extended by the gap."""

    gap_s: float


@dataclass(frozen=True, slots=True)
class PeerRefused:
    """An exchange met a node of another cluster, key or protocol version, or of none. Advice only: not authenticated."""

    address: Address | None
    reason: str
    """A sentence that names the difference and what to change."""


@dataclass(frozen=True, slots=True)
class UserMessage:
    """A datagram payload sent to this node with `send`."""

    sender: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class BroadcastReceived:
    """A payload that a member spread with `broadcast`; each arrives at most once per instance of its origin."""

    origin: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A member asks something with `request`: answer with `Swim.respond(now, request_id, payload)`."""

    request_id: int
    sender: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class ReplyReceived:
    """The reply to this node's own request `request_id`."""

    request_id: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """This node's own request `request_id` got no reply; unless `is_unsent`, whether it was handled is not known."""

    request_id: int
    reason: str
    is_unsent: bool = False
    """Whether nothing was sent, so that nobody can have handled it."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All live members at one moment: the first item of a subscription, and what follows EventsLost."""

    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class EventsLost:
    """The reader was too slow: this many events were dropped here. A Snapshot follows."""

    count: int


@dataclass(frozen=True, slots=True)
class SnapshotFault:
    """The address snapshot could not be read (it counts as empty) or written (the old one stays); never fatal.

    Made by the driver. A fault met at the start is the second item of the first subscription.
    """

    reason: str


Event = (
    MemberJoined
    | MemberSuspected
    | MemberAlive
    | MemberDied
    | MemberLeft
    | MemberRestarted
    | MemberMoved
    | MetadataChanged
    | VitalsChanged
    | ReachabilityChanged
    | NameConflict
    | AddressConflict
    | NameTaken
    | Outlived
    | Joined
    | JoinAttemptFailed
    | LeaveFinished
    | Isolated
    | ClockGap
    | PeerRefused
    | UserMessage
    | BroadcastReceived
    | RequestReceived
    | ReplyReceived
    | RequestFailed
    | Snapshot
    | EventsLost
    | SnapshotFault
)

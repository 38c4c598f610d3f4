"""What the machine asks its driver to do, and what it says about joining and leaving."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from swimcluster.address import Address


@dataclass(frozen=True, slots=True)
class Datagram:
    """Send these bytes; report a local failure with `Swim.send_failed`."""

    destination: Address
    data: bytes


@dataclass(frozen=True, slots=True)
class Exchange:
    """Send this request and wait for its one reply, at most `timeout_ns` nanoseconds.

    End it with exactly one of `Swim.exchange_replied(now, id, reply)` and `Swim.exchange_failed(now, id)`.
    """

    id: int
    destination: Address
    data: bytes
    timeout_ns: int


@dataclass(frozen=True, slots=True)
class PendingReply:
    """The application owes the reply to this exchange: keep it open until `Swim.respond` returned the bytes.

    Give up after `timeout_ns` nanoseconds; `Swim.respond` then raises ExchangeError.
    """

    request_id: int
    timeout_ns: int


class JoinStatus(enum.Enum):
    """Where this node stands with its cluster."""

    JOINING = "joining"
    """There are seeds and none has let this node in yet; it keeps trying, and serves meanwhile."""
    JOINED = "joined"
    """It takes part: a seed let it in, a member found it, or it has no seeds and is a first node."""
    NAME_IN_USE = "name in use"
    """A live process answers under its name: it takes no part and never will; make a new machine."""
    LEAVING = "leaving"
    """It is telling the others that it leaves."""
    LEFT = "left"
    """It has told them; the driver may stop."""


@dataclass(frozen=True, slots=True)
class LeaveProgress:
    """How far a leave has come."""

    told: int
    """Members that confirmed to this node that they know: by an ack, or by the reply of an exchange."""
    members: int
    """Live members other than this one when the leave began; those not `told` may know, or hear it from others."""
    is_done: bool
    """Whether nothing more will be done; the driver may stop."""

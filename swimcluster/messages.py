"""The messages of the protocol, as immutable tuples; the number of each is its type on the wire (docs/protocol.md)."""

from __future__ import annotations

import enum
from typing import NamedTuple

from swimcluster.address import Address


class Kind(enum.IntEnum):
    """Type numbers on the wire. A number is never reused."""

    PING = 1
    ACK = 2
    NACK = 3
    NOT_ME = 4
    PING_REQ = 5
    ALIVE = 6
    SUSPECT = 7
    DEAD = 8
    LEFT = 9
    INTRODUCE = 10
    USER = 11
    BROADCAST = 12
    SYNC = 13
    SYNC_REPLY = 14
    REQUEST = 15
    RESPONSE = 16


class Verdict(enum.IntEnum):
    """What a member says to a node that asks to be let in."""

    ACCEPTED = 0
    CHECKING = 1
    """The name is held; its holder is being pinged; ask again soon."""
    HELD = 2
    """A live process answers under the name."""
    SELF = 3
    """You have called yourself."""


class Ping(NamedTuple):
    """Answer with an Ack if you are this process of this name, with NotMe otherwise."""

    sequence: int
    name: str
    instance: bytes


class Ack(NamedTuple):
    """The pinged process is there; from a relay: it answered me."""

    sequence: int


class Nack(NamedTuple):
    """From a relay: I have heard nothing of it yet, but I am here."""

    sequence: int


class NotMe(NamedTuple):
    """Another process listens at the pinged address; the envelope says which."""

    sequence: int


class PingReq(NamedTuple):
    """Ping that process for me."""

    sequence: int
    name: str
    instance: bytes
    host: str
    port: int


class Alive(NamedTuple):
    """What a member says of itself; anyone may carry it, only the member makes it."""

    name: str
    host: str
    port: int
    epoch: int
    instance: bytes
    incarnation: int
    metadata: bytes
    key_ids: bytes


class Suspect(NamedTuple):
    """`accuser` got no answer from the member."""

    name: str
    epoch: int
    instance: bytes
    incarnation: int
    accuser: str


class Dead(NamedTuple):
    """The suspicion of the member ran out at `accuser`."""

    name: str
    epoch: int
    instance: bytes
    incarnation: int
    accuser: str


class Left(NamedTuple):
    """The member said that it leaves."""

    name: str
    epoch: int
    instance: bytes
    incarnation: int


class Introduce(NamedTuple):
    """Send me your Alive: I know too little of you."""


class User(NamedTuple):
    """An application's datagram."""

    payload: bytes


class Broadcast(NamedTuple):
    """An application's payload for all, numbered by its origin."""

    origin: str
    instance: bytes
    number: int
    payload: bytes


class Sync(NamedTuple):
    """Opens a state exchange; `joining` asks to be let in under the sender's name."""

    joining: int


class SyncReply(NamedTuple):
    """Opens the reply; `held_epoch` is the greatest epoch known of the joiner's name, 0 for none."""

    verdict: int
    held_epoch: int


class Request(NamedTuple):
    """An application's question."""

    payload: bytes


class Response(NamedTuple):
    """An application's answer."""

    payload: bytes


Message = (
    Ping
    | Ack
    | Nack
    | NotMe
    | PingReq
    | Alive
    | Suspect
    | Dead
    | Left
    | Introduce
    | User
    | Broadcast
    | Sync
    | SyncReply
    | Request
    | Response
)


class Packet(NamedTuple):
    """One authenticated packet: who sent it, and its messages."""

    instance: bytes
    name: str
    address: Address
    epoch: int
    incarnation: int
    vitals_counter: int
    vitals: bytes
    messages: tuple[Message, ...]
    left_out: int = 0
    """Messages behind these, more than this node takes of one packet."""

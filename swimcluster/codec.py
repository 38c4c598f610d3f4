"""Packet bodies as positional msgpack arrays: encoding, and a total decoder with bounded output.

The body is `[sender, vitals counter, vitals, [message, ...]]`, where sender is a binary that holds `[name, host, port,
epoch, incarnation]`; a message is `[kind, field, ...]`. No maps, floats, nil, booleans or extension types. docs/protocol.md, wire format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgpack

from swimcluster.address import Address
from swimcluster.config import Config
from swimcluster.config_checks import KEYS_MAX
from swimcluster.errors import DecodeError
from swimcluster.keyring import KEY_ID_BYTES
from swimcluster.messages import (
    Ack,
    Alive,
    Broadcast,
    Dead,
    Introduce,
    Kind,
    Left,
    Message,
    Nack,
    NotMe,
    Packet,
    Ping,
    PingReq,
    Request,
    Response,
    Suspect,
    Sync,
    SyncReply,
    User,
)
from swimcluster.unpacking import unpack, unpack_body

EPOCH_MAX = 2**62
"""Highest epoch on the wire; outliving never reaches it by honest use."""
INCARNATION_MAX = 2**62
INSTANCE_BYTES = 8
REMEMBERED = 4096
"""Addresses, senders and news remembered by their bytes, each; then they are forgotten together."""

pack: Callable[[object], bytes] = msgpack.Packer(use_bin_type=True).pack

_CLASSES: dict[int, type[Message]] = {
    Kind.PING: Ping,
    Kind.ACK: Ack,
    Kind.NACK: Nack,
    Kind.NOT_ME: NotMe,
    Kind.PING_REQ: PingReq,
    Kind.ALIVE: Alive,
    Kind.SUSPECT: Suspect,
    Kind.DEAD: Dead,
    Kind.LEFT: Left,
    Kind.INTRODUCE: Introduce,
    Kind.USER: User,
    Kind.BROADCAST: Broadcast,
    Kind.SYNC: Sync,
    Kind.SYNC_REPLY: SyncReply,
    Kind.REQUEST: Request,
    Kind.RESPONSE: Response,
}
_NEWS = frozenset(map(int, (Kind.ALIVE, Kind.SUSPECT, Kind.DEAD, Kind.LEFT)))
_KINDS: dict[type[Message], int] = {cls: int(kind) for kind, cls in _CLASSES.items()}

_SHAPES: dict[type[Message], tuple[str, ...]] = {
    Ping: ("_is_u64", "_is_name", "_is_instance"),
    Ack: ("_is_u64",),
    Nack: ("_is_u64",),
    NotMe: ("_is_u64",),
    PingReq: ("_is_u64", "_is_name", "_is_instance", "_is_host", "_is_port"),
    Alive: (
        "_is_name",
        "_is_host",
        "_is_port",
        "_is_epoch",
        "_is_instance",
        "_is_incarnation",
        "_is_metadata",
        "_is_key_ids",
    ),
    Suspect: ("_is_name", "_is_epoch", "_is_instance", "_is_incarnation", "_is_accuser"),
    Dead: ("_is_name", "_is_epoch", "_is_instance", "_is_incarnation", "_is_accuser"),
    Left: ("_is_name", "_is_epoch", "_is_instance", "_is_incarnation"),
    Introduce: (),
    User: ("_is_payload",),
    Broadcast: ("_is_name", "_is_instance", "_is_u64", "_is_broadcast"),
    Sync: ("_is_flag",),
    SyncReply: ("_is_verdict", "_is_epoch"),
    Request: ("_is_payload",),
    Response: ("_is_payload",),
}


def encode_message(message: Message) -> bytes:
    """Return the bytes of one message, ready to be put into a packet."""
    return pack((_KINDS[type(message)], *message))


def encode_sender(name: str, address: Address, *, epoch: int, incarnation: int) -> bytes:
    """Return who sends, as it stands at the start of each of its packets until one of these changes."""
    return b"\x94" + pack(pack((name, address.host, address.port, epoch, incarnation)))


def encode_envelope(sender: bytes, *, vitals_counter: int, vitals: bytes) -> bytes:
    """Return all of a body but its messages."""
    return sender + pack(vitals_counter) + pack(vitals)


def encode_body(envelope: bytes, messages: Sequence[bytes]) -> bytes:
    """Return a body of an encoded envelope and encoded messages."""
    count = len(messages)
    if count < 16:
        header = bytes((0x90 | count,))
    elif count < 65536:
        header = b"\xdc" + count.to_bytes(2, "big")
    else:
        header = b"\xdd" + count.to_bytes(4, "big")
    return b"".join((envelope, header, *messages))


def split_key_ids(joined: bytes) -> tuple[bytes, ...]:
    """Return the key ids that travel as one binary."""
    return tuple(joined[i : i + KEY_ID_BYTES] for i in range(0, len(joined), KEY_ID_BYTES))


class Sender(NamedTuple):
    """Who a packet says it is from."""

    name: str
    address: Address
    epoch: int
    incarnation: int


class Decoder:
    """Turns authenticated bodies into packets, within the limits of one configuration.

    Of a packet with more messages than a table of `members_max` can need, the first are taken and the others counted.
    Senders and news repeat: both are remembered by their bytes, bounded, so that each is checked once.
    """

    def __init__(self, config: Config) -> None:
        self._host_bytes_max = config.host_bytes_max
        self._name_bytes_max = config.name_bytes_max
        self._vitals_bytes_max = config.vitals_bytes_max
        self._metadata_bytes_max = config.metadata_bytes_max
        self._broadcast_bytes_max = config.broadcast_bytes_max
        self._messages_max = 2 * config.members_max + 16
        self._addresses: dict[tuple[str, int], Address] = {}
        self._senders: dict[bytes, Sender] = {}
        self._news: dict[tuple[Any, ...], Message] = {}

    def address(self, host: str, port: int) -> Address:
        """Return the address, the same object for the same place while it is remembered."""
        found = self._addresses.get((host, port))
        if found is None:
            if len(self._addresses) >= REMEMBERED:
                self._addresses.clear()
            found = self._addresses[host, port] = Address(host, port)
        return found

    def decode(self, instance: bytes, body: bytes) -> Packet:
        """Return the packet in `body`, sent by `instance`.

        Raises:
            DecodeError: the body is not a packet of this protocol.
        """
        fields, left_out = unpack_body(body, self._messages_max)
        if type(fields) is not tuple or len(fields) != 4:
            raise DecodeError("not an array of four fields")
        sender, counter, vitals, items = fields
        if type(sender) is not bytes or type(items) is not tuple:
            raise DecodeError("the sender or the messages have the wrong type")
        if type(counter) is not int or counter < 0 or type(vitals) is not bytes or len(vitals) > self._vitals_bytes_max:
            raise DecodeError("the vitals have the wrong type or size")
        if len(items) > self._messages_max:
            left_out = len(items) - self._messages_max
            items = items[: self._messages_max]
        name, address, epoch, incarnation = self._senders.get(sender) or self._sender(sender)
        messages = tuple([self._message(item) for item in items]) if items else ()
        return Packet(instance, name, address, epoch, incarnation, counter, vitals, messages, left_out)

    def _sender(self, data: bytes) -> Sender:
        fields = unpack(data, self._messages_max)
        if type(fields) is not tuple or len(fields) != 5:
            raise DecodeError("the sender is not an array of five fields")
        name, host, port, epoch, incarnation = fields
        if not (
            self._is_name(name)
            and self._is_host(host)
            and self._is_port(port)
            and self._is_epoch(epoch)
            and self._is_incarnation(incarnation)
        ):
            raise DecodeError("a field of the sender has the wrong type or size")
        if len(self._senders) >= REMEMBERED:
            self._senders.clear()
        sender = self._senders[data] = Sender(name, self.address(host, port), epoch, incarnation)
        return sender

    def _message(self, item: Any) -> Message:
        if type(item) is not tuple or not item or type(item[0]) is not int:
            raise DecodeError("a message is not an array that begins with its kind")
        is_news = item[0] in _NEWS
        if is_news:
            try:
                known = self._news.get(item)
            except TypeError as error:  # An unhashable field: a map.
                raise DecodeError("a field of a message is a map") from error
            if known is not None and tuple(map(type, known)) == tuple(map(type, item[1:])):
                return known
        message = self._checked(item)
        if is_news:
            if len(self._news) >= REMEMBERED:
                self._news.clear()
            self._news[item] = message
        return message

    def _checked(self, item: tuple[Any, ...]) -> Message:
        cls = _CLASSES.get(item[0])
        if cls is None:
            raise DecodeError(f"unknown message kind {item[0]}")
        shape = _SHAPES[cls]
        if len(item) != len(shape) + 1:
            raise DecodeError(f"a message of kind {item[0]} has {len(item) - 1} fields")
        for place, check in enumerate(shape, 1):
            if not getattr(self, check)(item[place]):
                raise DecodeError(f"a message of kind {item[0]} has a bad field {place}")
        return cls(*item[1:])

    @staticmethod
    def _is_u64(value: Any) -> bool:
        return type(value) is int and value >= 0

    @staticmethod
    def _is_epoch(value: Any) -> bool:
        return type(value) is int and 0 <= value <= EPOCH_MAX

    @staticmethod
    def _is_incarnation(value: Any) -> bool:
        return type(value) is int and 0 <= value <= INCARNATION_MAX

    @staticmethod
    def _is_port(value: Any) -> bool:
        return type(value) is int and 0 < value < 65536

    @staticmethod
    def _is_instance(value: Any) -> bool:
        return type(value) is bytes and len(value) == INSTANCE_BYTES

    @staticmethod
    def _is_flag(value: Any) -> bool:
        return type(value) is int and value in {0, 1}

    @staticmethod
    def _is_verdict(value: Any) -> bool:
        return type(value) is int and 0 <= value <= 3

    @staticmethod
    def _is_payload(value: Any) -> bool:
        return type(value) is bytes

    @staticmethod
    def _is_key_ids(value: Any) -> bool:
        return type(value) is bytes and len(value) % KEY_ID_BYTES == 0 and len(value) <= KEYS_MAX * KEY_ID_BYTES

    def _is_metadata(self, value: Any) -> bool:
        return type(value) is bytes and len(value) <= self._metadata_bytes_max

    def _is_broadcast(self, value: Any) -> bool:
        return type(value) is bytes and len(value) <= self._broadcast_bytes_max

    def _is_name(self, value: Any) -> bool:
        return type(value) is str and value != "" and value.isprintable() and _size(value) <= self._name_bytes_max

    def _is_accuser(self, value: Any) -> bool:
        return value == "" or self._is_name(value)

    def _is_host(self, value: Any) -> bool:
        return (
            type(value) is str
            and value not in {"", "0.0.0.0", "::"}  # noqa: S104 - refused, not bound
            and value.isprintable()
            and " " not in value
            and _size(value) <= self._host_bytes_max
        )


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())

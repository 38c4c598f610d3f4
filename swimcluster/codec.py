"""Packet bodies as positional msgpack arrays: encoding, and a total decoder with bounded output.

The body is `[name, host, port, epoch, incarnation, vitals counter, vitals, [message, ...]]`, a message
`[kind, field, ...]`. No maps, floats, nil, booleans or extension types. docs/protocol.md, wire format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from swimcluster.address import Address
from swimcluster.config import KEYS_MAX, Config
from swimcluster.errors import DecodeError
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

U64_MAX = 2**64 - 1
EPOCH_MAX = 2**62
"""Highest epoch on the wire; outliving never reaches it by honest use."""
INCARNATION_MAX = 2**62
INSTANCE_BYTES = 8
KEY_ID_BYTES = 4
ADDRESSES_KEPT = 4096

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
_KINDS: dict[type[Message], int] = {cls: int(kind) for kind, cls in _CLASSES.items()}

_SHAPES: dict[type[Message], tuple[str, ...]] = {
    Ping: ("u64", "name", "instance"),
    Ack: ("u64",),
    Nack: ("u64",),
    NotMe: ("u64",),
    PingReq: ("u64", "name", "instance", "host", "port"),
    Alive: ("name", "host", "port", "epoch", "instance", "incarnation", "metadata", "key_ids"),
    Suspect: ("name", "epoch", "instance", "incarnation", "accuser"),
    Dead: ("name", "epoch", "instance", "incarnation", "accuser"),
    Left: ("name", "epoch", "instance", "incarnation"),
    Introduce: (),
    User: ("payload",),
    Broadcast: ("name", "instance", "u64", "broadcast"),
    Sync: ("flag",),
    SyncReply: ("verdict", "epoch"),
    Request: ("payload",),
    Response: ("payload",),
}


def encode_message(message: Message) -> bytes:
    """Return the bytes of one message, ready to be put into a packet."""
    return pack((_KINDS[type(message)], *message))


def encode_envelope(
    name: str, address: Address, *, epoch: int, incarnation: int, vitals_counter: int, vitals: bytes
) -> bytes:
    """Return the sender's part of a body; it is the same for every packet until one of these changes."""
    fields = (name, address.host, address.port, epoch, incarnation, vitals_counter, vitals)
    return b"\x98" + b"".join(map(pack, fields))


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


class Decoder:
    """Turns authenticated bodies into packets, within the limits of one configuration."""

    def __init__(self, config: Config) -> None:
        self._host_bytes_max = config.host_bytes_max
        self._name_bytes_max = config.name_bytes_max
        self._vitals_bytes_max = config.vitals_bytes_max
        self._metadata_bytes_max = config.metadata_bytes_max
        self._broadcast_bytes_max = config.broadcast_bytes_max
        self._messages_max = 2 * config.members_max + 16
        self._string_max = max(config.host_bytes_max, config.name_bytes_max)
        self._addresses: dict[tuple[str, int], Address] = {}

    def address(self, host: str, port: int) -> Address:
        """Return the address, the same object for the same place while it is remembered."""
        found = self._addresses.get((host, port))
        if found is None:
            if len(self._addresses) >= ADDRESSES_KEPT:
                self._addresses.clear()
            found = self._addresses[host, port] = Address(host, port)
        return found

    def decode(self, instance: bytes, body: bytes) -> Packet:
        """Return the packet in `body`, sent by `instance`.

        Raises:
            DecodeError: the body is not a packet of this protocol.
        """
        try:
            fields = msgpack.unpackb(
                body,
                use_list=False,
                raw=False,
                strict_map_key=True,
                max_str_len=self._string_max,
                max_bin_len=len(body),
                max_array_len=self._messages_max,
                max_map_len=0,
                max_ext_len=0,
            )
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise DecodeError("not msgpack within the limits") from error
        if type(fields) is not tuple or len(fields) != 8:
            raise DecodeError("not an array of eight fields")
        name, host, port, epoch, incarnation, counter, vitals, items = fields
        if not (
            self._is_name(name)
            and self._is_host(host)
            and self._is_port(port)
            and self._is_epoch(epoch)
            and self._is_incarnation(incarnation)
            and self._is_u64(counter)
            and type(vitals) is bytes
            and len(vitals) <= self._vitals_bytes_max
            and type(items) is tuple
        ):
            raise DecodeError("a field of the envelope has the wrong type or size")
        messages = tuple([self._message(item) for item in items])
        return Packet(instance, name, self.address(host, port), epoch, incarnation, counter, vitals, messages)

    def _message(self, item: Any) -> Message:
        if type(item) is not tuple or not item or type(item[0]) is not int:
            raise DecodeError("a message is not an array that begins with its kind")
        cls = _CLASSES.get(item[0])
        if cls is None:
            raise DecodeError(f"unknown message kind {item[0]}")
        shape = _SHAPES[cls]
        if len(item) != len(shape) + 1:
            raise DecodeError(f"a message of kind {item[0]} has {len(item) - 1} fields")
        for check, value in zip(shape, item[1:], strict=True):
            if not getattr(self, f"_is_{check}")(value):
                raise DecodeError(f"a message of kind {item[0]} has a bad {check}")
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

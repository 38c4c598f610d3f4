"""Frames: a header, a body and a keyed BLAKE3 MAC over both. It authenticates and does not encrypt.

    magic "sw" 2 | version 1 | kind 1 | cluster tag 4 | key id 4 | instance 8 | counter 8 | body | MAC 16

An exchange opens with a clear hello (cluster name and key ids), so that a mismatch can be named on both sides; the
request's MAC covers it too. The reply's MAC also covers the request's instance and counter, so that no reply fits
another request.
"""

from __future__ import annotations

import enum
import hmac
from struct import Struct
from typing import NamedTuple

import msgpack
from blake3 import blake3

from swimcluster.codec import pack, split_key_ids
from swimcluster.config import FRAME_OVERHEAD_BYTES
from swimcluster.config_checks import CLUSTER_BYTES_MAX, KEYS_MAX
from swimcluster.errors import DecodeError
from swimcluster.keyring import KEY_ID_BYTES, Keyring

MAGIC = b"sw"
HELLO_MAGIC = b"sx"
REFUSAL_MAGIC = b"sr"
VERSION = 2
MAC_BYTES = 16
_HEADER = Struct(">2sBB4s4s8sQ")
HEADER_BYTES = _HEADER.size
CLUSTER_TAG_AT, KEY_ID_AT, INSTANCE_AT, COUNTER_AT = slice(4, 8), slice(8, 12), slice(12, 20), slice(20, 28)
"""Where the fields of a header lie in a frame."""
assert HEADER_BYTES + MAC_BYTES == FRAME_OVERHEAD_BYTES


class FrameKind(enum.IntEnum):
    """What a frame travels as; a frame of one kind is refused as another."""

    DATAGRAM = 1
    REQUEST = 2
    REPLY = 3


class RejectedError(DecodeError):
    """Bytes that were not taken; `counter` names the statistic that counts them. State unchanged."""

    def __init__(self, counter: str) -> None:
        super().__init__(counter)
        self.counter = counter


class Frame(NamedTuple):
    """An authenticated frame."""

    instance: bytes
    counter: int
    body: bytes


def seal(keyring: Keyring, kind: int, instance: bytes, counter: int, body: bytes, *, binding: bytes = b"") -> bytes:
    """Return the frame of a body, signed with the keyring's signing key.

    Args:
        binding: what the MAC covers beside the frame: of a request the hello that goes before it, of a reply the
            request's instance and counter, which are not sent.
    """
    header = _HEADER.pack(MAGIC, VERSION, kind, keyring.cluster_tag, keyring.signing_id, instance, counter)
    data = header + body
    signed = data + binding if binding else data
    return data + blake3(signed, key=keyring.signing_key).digest(MAC_BYTES)


def open_frame(keyring: Keyring, kind: int, data: bytes, binding: bytes = b"") -> Frame:
    """Return the frame in `data` when its MAC verifies.

    Raises:
        RejectedError: it is not a frame of this kind, cluster and version made with a key held here.
    """
    key = _key_of(keyring, kind, data)
    signed = data[:-MAC_BYTES]
    if not hmac.compare_digest(blake3(signed + binding, key=key).digest(MAC_BYTES), data[-MAC_BYTES:]):
        raise RejectedError("dropped_mac")
    return Frame(data[INSTANCE_AT], int.from_bytes(data[COUNTER_AT], "big"), data[HEADER_BYTES:-MAC_BYTES])


def _key_of(keyring: Keyring, kind: int, data: bytes) -> bytes:
    if len(data) < FRAME_OVERHEAD_BYTES or data[:2] != MAGIC:
        raise RejectedError("dropped_malformed")
    if data[2] != VERSION:
        raise RejectedError("dropped_version")
    if data[3] != kind:
        raise RejectedError("dropped_malformed")
    if data[CLUSTER_TAG_AT] != keyring.cluster_tag:
        raise RejectedError("dropped_cluster")
    key = keyring.verifying_key(data[KEY_ID_AT])
    if key is None:
        raise RejectedError("dropped_key")
    return key


def binding_of(instance: bytes, counter: int) -> bytes:
    """Return what ties a reply to the request of this instance and counter."""
    return instance + counter.to_bytes(8, "big")


class Hello(NamedTuple):
    """What a node says of itself in clear at the start of an exchange, or in a refusal. Advice only."""

    version: int
    cluster: str
    key_ids: tuple[bytes, ...]


def encode_hello(magic: bytes, cluster: str, key_ids: tuple[bytes, ...]) -> bytes:
    """Return a hello or refusal: magic 2, version 1, length 2, `[cluster, key ids]`."""
    content = pack((cluster, b"".join(key_ids)))
    return magic + bytes((VERSION,)) + len(content).to_bytes(2, "big") + content


def split_hello(magic: bytes, data: bytes) -> tuple[Hello, bytes]:
    """Return the hello at the start of `data` and the rest.

    Raises:
        RejectedError: there is no hello. A hello of another version comes back with that version and no content.
    """
    if len(data) < 5 or data[:2] != magic:
        raise RejectedError("dropped_malformed")
    if data[2] != VERSION:
        return Hello(data[2], "", ()), b""
    end = 5 + int.from_bytes(data[3:5], "big")
    limit = CLUSTER_BYTES_MAX + KEYS_MAX * KEY_ID_BYTES + 8
    if end > len(data) or end > 5 + limit:
        raise RejectedError("dropped_malformed")
    try:
        content = msgpack.unpackb(data[5:end], use_list=False, max_array_len=2, max_map_len=0, max_ext_len=0)
    except (ValueError, TypeError) as error:
        raise RejectedError("dropped_malformed") from error
    if type(content) is not tuple or len(content) != 2:
        raise RejectedError("dropped_malformed")
    cluster, ids = content
    if type(cluster) is not str or type(ids) is not bytes or len(ids) % KEY_ID_BYTES:
        raise RejectedError("dropped_malformed")
    return Hello(VERSION, cluster, split_key_ids(ids)), data[end:]

"""Bytes between nodes: signed requests and sealed frames (docs/peers.md). Pure: no socket, no clock.

A request carries one header, `X-SAI-Peer`, base64url of

    version u8 · key id 4 · MAC 16 · counter u64 · destination instance 8 · source instance 8 · body BLAKE3 32 · source name

where the MAC covers method, path and everything after it. A reply's body is a row of frames

    length u32 · kind u8 · payload · MAC 16

each sealed over (request MAC, frame number, kind, payload). The last one is of kind 1: its payload begins with a u64
that says how many frames came before it, and goes on with the last message.
Numbers are big-endian. Keyed BLAKE3 authenticates; it does not encrypt.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import itertools
import struct
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from blake3 import blake3

from saiserve import limits

HEADER_NAME = b"x-sai-peer"
VERSION = 1
MAC_BYTES = 16
INSTANCE_BYTES = 8
NAME_BYTES_MAX = 253
HEADER_CHARACTERS_MAX = 512
FRAME_OVERHEAD = 1 + MAC_BYTES
WINDOW = 8_192
"""How far a request may overtake others of the same process and still be new."""

_KEY_ID = struct.Struct(">B4s16s")
_CLAIMS = struct.Struct(">Q8s8s32s")
_LENGTH = struct.Struct(">I")
_COUNT = struct.Struct(">Q")
_DATA, _LAST = 0, 1


class WireError(Exception):
    """Bytes are not an authentic request or reply for this node; nothing was done. Theirs, or an attacker's."""


@dataclass(frozen=True, slots=True)
class _Key:
    id: bytes
    request: bytes = field(repr=False)
    frame: bytes = field(repr=False)


class PeerKeys:
    """Keys derived from the cluster's secrets: the first signs, all verify.

    Raises:
        ValueError: there is no secret.
    """

    def __init__(self, secrets: Sequence[str], cluster: str = "default") -> None:
        self._cluster = cluster
        self._keys: list[_Key] = []
        self.replace(secrets)

    def replace(self, secrets: Sequence[str]) -> None:
        """Use these secrets from now on; signers and verifiers that share this object follow.

        Raises:
            ValueError: there is no secret; nothing was changed.
        """
        if not secrets:
            raise ValueError("nodes cannot talk to each other without a cluster secret")
        self._keys = [_derive(secret, self._cluster) for secret in secrets]

    @property
    def signing(self) -> _Key:
        """The key new requests are signed with."""
        return self._keys[0]

    def find(self, key_id: bytes) -> _Key | None:
        """The key of an id, None when this node does not hold it."""
        return next((key for key in self._keys if key.id == key_id), None)


def _derive(secret: str, cluster: str) -> _Key:
    name = cluster.encode()
    material = _LENGTH.pack(len(name)) + name + secret.encode()

    def key(context: str, length: int = 32) -> bytes:
        return blake3(material, derive_key_context=context).digest(length=length)

    return _Key(
        id=key("saiserve peers v1 key id", 4),
        request=key("saiserve peers v1 request"),
        frame=key("saiserve peers v1 frame"),
    )


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """What a client sends: the header's value, and what the reply must be sealed with."""

    header: bytes
    mac: bytes
    frame_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class PeerRequest:
    """An authentic request, as the server sees it. Not admitted until its body and counter were checked."""

    source: str
    source_instance: bytes
    counter: int
    body_hash: bytes
    mac: bytes
    frame_key: bytes = field(repr=False)


class RequestSigner:
    """Signs the requests of this process. Counters never repeat."""

    def __init__(self, keys: PeerKeys, name: str, instance: bytes) -> None:
        encoded = name.encode()
        assert len(instance) == INSTANCE_BYTES
        assert len(encoded) <= NAME_BYTES_MAX
        self._keys = keys
        self._name = encoded
        self._instance = instance
        self._counter = itertools.count(1)

    def sign(self, method: str, path: str, body: bytes, destination: bytes) -> SignedRequest:
        """Sign a request to the process whose instance is `destination`. Send it once; the counter is its own."""
        key = self._keys.signing
        claims = _CLAIMS.pack(next(self._counter), destination, self._instance, blake3(body).digest()) + self._name
        mac = _request_mac(key, method, path, claims)
        return SignedRequest(base64.urlsafe_b64encode(_KEY_ID.pack(VERSION, key.id, mac) + claims), mac, key.frame)


class RequestVerifier:
    """Checks requests to this process: first the header, then, with the body at hand, `admit`."""

    def __init__(self, keys: PeerKeys, instance: bytes) -> None:
        self._keys = keys
        self._instance = instance
        self._seen = ReplayGuard()

    def check(self, method: str, path: str, header: bytes) -> PeerRequest:
        """Read and authenticate the header, before any of the body is taken.

        Raises:
            WireError: not a header of this version, unknown key, wrong MAC, or meant for another process.
        """
        if len(header) > HEADER_CHARACTERS_MAX:
            raise WireError("the signature is too long")
        try:
            data = base64.b64decode(header, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise WireError("the signature is not base64url") from None
        if base64.urlsafe_b64encode(data) != header or len(data) < _KEY_ID.size + _CLAIMS.size:
            raise WireError("the signature has the wrong form")
        version, key_id, mac = _KEY_ID.unpack_from(data)
        if version != VERSION:
            raise WireError(f"the peer speaks version {version} of the peer protocol, this node {VERSION}")
        key = self._keys.find(key_id)
        if key is None:
            raise WireError("the request is signed with a secret this node does not hold")
        claims = data[_KEY_ID.size :]
        if not hmac.compare_digest(mac, _request_mac(key, method, path, claims)):
            raise WireError("the signature does not verify")
        counter, destination, source_instance, body_hash = _CLAIMS.unpack_from(claims)
        if destination != self._instance:
            raise WireError("the request is for another process, perhaps an earlier life of this node")
        try:
            source = claims[_CLAIMS.size :].decode()
        except UnicodeDecodeError:
            raise WireError("the source name is not UTF-8") from None
        return PeerRequest(source, source_instance, counter, body_hash, mac, key.frame)

    def admit(self, request: PeerRequest, body: bytes) -> None:
        """Let the request in, once.

        Raises:
            WireError: the body is not the signed one, or the request was here before.
        """
        if not hmac.compare_digest(request.body_hash, blake3(body).digest()):
            raise WireError("the body is not the one that was signed")
        if not self._seen.admit(request.source_instance, request.counter):
            raise WireError("the request was here before")


class ReplayGuard:
    """Counters seen, per process: a sliding window each, for the processes that came last."""

    def __init__(self, window: int = WINDOW, instances_max: int = limits.PEER_INSTANCES_MAX) -> None:
        self._window = window
        self._instances_max = instances_max
        self._seen: OrderedDict[bytes, tuple[int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def admit(self, instance: bytes, counter: int) -> bool:
        """Whether this counter is new; a counter older than the window is not."""
        highest, bits = self._seen.get(instance, (0, 0))
        if counter > highest:
            shift = counter - highest
            bits = 1 if shift >= self._window else ((bits << shift) | 1) & ((1 << self._window) - 1)
            highest = counter
        else:
            behind = highest - counter
            if counter < 1 or behind >= self._window or bits >> behind & 1:
                return False
            bits |= 1 << behind
        self._seen[instance] = (highest, bits)
        self._seen.move_to_end(instance)
        if len(self._seen) > self._instances_max:
            self._seen.popitem(last=False)
        return True


class FrameSealer:
    """Makes the frames of one reply, in order."""

    def __init__(self, frame_key: bytes, request_mac: bytes) -> None:
        self._key = frame_key
        self._request_mac = request_mac
        self._number = 0

    def data(self, payload: bytes) -> bytes:
        """The next frame.

        Raises:
            WireError: the payload is too long; nothing was counted.
        """
        if len(payload) + FRAME_OVERHEAD > limits.PEER_FRAME_BYTES_MAX:
            raise WireError(f"a frame of {len(payload)} bytes is over the limit")
        return self._seal(_DATA, payload)

    def last(self, payload: bytes) -> bytes:
        """The closing frame with the last message; nothing may follow it.

        Raises:
            WireError: the payload is too long.
        """
        if len(payload) + _COUNT.size + FRAME_OVERHEAD > limits.PEER_FRAME_BYTES_MAX:
            raise WireError(f"a frame of {len(payload)} bytes is over the limit")
        return self._seal(_LAST, _COUNT.pack(self._number) + payload)

    def _seal(self, kind: int, payload: bytes) -> bytes:
        mac = _frame_mac(self._key, self._request_mac, self._number, kind, payload)
        self._number += 1
        return b"".join((_LENGTH.pack(len(payload) + FRAME_OVERHEAD), bytes((kind,)), payload, mac))


class FrameOpener:
    """Takes a reply's bytes as they come and gives the payloads of authentic frames, in order."""

    def __init__(self, frame_key: bytes, request_mac: bytes, bytes_max: int = limits.PEER_FRAME_BYTES_MAX) -> None:
        self._key = frame_key
        self._request_mac = request_mac
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self._number = 0
        self._broken = False
        self.is_complete = False
        """Whether the closing frame came and its count was right."""

    def feed(self, data: bytes) -> list[bytes]:
        """Payloads of the frames completed by these bytes.

        Raises:
            WireError: a frame is not authentic, too long, or follows the last; the opener is of no further use.
        """
        self._buffer += data
        payloads: list[bytes] = []
        while not self._broken and len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if self.is_complete or not FRAME_OVERHEAD <= length <= self._bytes_max:
                self._fail("bytes follow the last frame" if self.is_complete else "a frame has an impossible length")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            kind, payload, mac = (
                self._buffer[_LENGTH.size],
                bytes(self._buffer[_LENGTH.size + 1 : end - MAC_BYTES]),
                bytes(self._buffer[end - MAC_BYTES : end]),
            )
            del self._buffer[:end]
            if not hmac.compare_digest(mac, _frame_mac(self._key, self._request_mac, self._number, kind, payload)):
                self._fail("a frame does not verify")
            if kind == _LAST:
                payloads.append(self._close(payload))
            elif kind == _DATA:
                payloads.append(payload)
            else:
                self._fail("a frame is of an unknown kind")
            self._number += 1
        if self._broken or (self.is_complete and self._buffer):
            self._fail("bytes follow the last frame")
        return payloads

    def end(self) -> None:
        """The bytes are over.

        Raises:
            WireError: the closing frame did not come: the reply was cut.
        """
        if not self.is_complete:
            self._fail("the reply was cut")

    def _close(self, payload: bytes) -> bytes:
        if payload[: _COUNT.size] != _COUNT.pack(self._number):
            self._fail("the last frame counts wrong")
        self.is_complete = True
        return payload[_COUNT.size :]

    def _fail(self, message: str) -> None:
        self._broken = True
        raise WireError(message)


def _request_mac(key: _Key, method: str, path: str, claims: bytes) -> bytes:
    line = f"{method} {path}\n".encode()
    return blake3(_LENGTH.pack(len(line)) + line + claims, key=key.request).digest(length=MAC_BYTES)


def _frame_mac(key: bytes, request_mac: bytes, number: int, kind: int, payload: bytes) -> bytes:
    head = request_mac + _COUNT.pack(number) + bytes((kind,))
    return blake3(head + payload, key=key).digest(length=MAC_BYTES)

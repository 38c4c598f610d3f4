"""The bytes of protocol version 2, frozen: a change of any of these is another protocol version.

`python -m tests.golden.test_swim_wire` writes the vectors anew, for a new version only.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from swimcluster.address import Address
from swimcluster.codec import Decoder, encode_body, encode_envelope, encode_message, encode_sender
from swimcluster.config import Config
from swimcluster.keyring import Keyring
from swimcluster.mac import (
    HELLO_MAGIC,
    REFUSAL_MAGIC,
    FrameKind,
    binding_of,
    encode_hello,
    open_frame,
    seal,
    split_hello,
)
from swimcluster.messages import (
    Ack,
    Alive,
    Broadcast,
    Dead,
    Introduce,
    Left,
    Message,
    Nack,
    NotMe,
    Ping,
    PingReq,
    Request,
    Response,
    Suspect,
    Sync,
    SyncReply,
    User,
)

FOLDER = Path(__file__).parent
KEYRING = Keyring("golden", (b"a golden key of 24 bytes", b"another key, 23 bytes.."))
OPEN = Keyring("golden", ())
ALICE, BOB = b"alice's!", b"bob's!!!"
EPOCH = 1_750_000_000_000

MESSAGES: dict[str, Message] = {
    "ping": Ping(0xDEADBEEF, "bob", BOB),
    "ack": Ack(0xDEADBEEF),
    "nack": Nack(1),
    "not_me": NotMe(127),
    "ping_req": PingReq(128, "bob", BOB, "2001:db8::1", 7946),
    "alive": Alive("bob", "10.1.2.3", 65535, EPOCH, BOB, 3, b"\x00meta\xff", b"key1key2"),
    "suspect": Suspect("bob", EPOCH, BOB, 3, "alice"),
    "dead": Dead("bob", EPOCH, BOB, 3, ""),
    "left": Left("Bob-Ünïcode", 2**62, BOB, 2**62),
    "introduce": Introduce(),
    "user": User(b"payload"),
    "broadcast": Broadcast("alice", ALICE, 300, b"to all"),
    "sync": Sync(1),
    "sync_reply": SyncReply(2, EPOCH),
    "request": Request(b"question"),
    "response": Response(b"answer"),
}


def body(*messages: Message, vitals: bytes = b"v") -> bytes:
    sender = encode_sender("alice", Address("10.1.2.4", 7946), epoch=EPOCH, incarnation=2)
    envelope = encode_envelope(sender, vitals_counter=9, vitals=vitals)
    return encode_body(envelope, [encode_message(message) for message in messages])


def vectors() -> dict[str, bytes]:
    found = {
        f"datagram_{name}": seal(KEYRING, FrameKind.DATAGRAM, ALICE, number, body(message))
        for number, (name, message) in enumerate(MESSAGES.items(), 1)
    }
    found["datagram_of_many"] = seal(KEYRING, FrameKind.DATAGRAM, ALICE, 99, body(*MESSAGES.values()))
    found["datagram_silent"] = seal(KEYRING, FrameKind.DATAGRAM, ALICE, 2**64 - 1, body(vitals=b""))
    found["datagram_insecure"] = seal(OPEN, FrameKind.DATAGRAM, ALICE, 1, body(Ack(1)))
    hello = encode_hello(HELLO_MAGIC, "golden", KEYRING.ids())
    found["exchange_request"] = hello + seal(KEYRING, FrameKind.REQUEST, ALICE, 100, body(Sync(0)), binding=hello)
    binding = binding_of(ALICE, 100)
    found["exchange_reply"] = seal(KEYRING, FrameKind.REPLY, BOB, 5, body(SyncReply(0, 0)), binding=binding)
    found["exchange_refusal"] = encode_hello(REFUSAL_MAGIC, "golden", KEYRING.ids())
    return found


def golden(name: str) -> bytes:
    return bytes.fromhex("".join((FOLDER / f"{name}.hex").read_text().split()))


def test_every_vector_has_its_file_and_every_file_its_vector():
    assert {path.stem for path in FOLDER.glob("*.hex")} == set(vectors())


@pytest.mark.parametrize("name", sorted(vectors()))
def test_what_is_written_has_the_golden_bytes(name):
    assert vectors()[name].hex() == golden(name).hex()


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_the_golden_bytes_are_read_as_they_were_meant(name):
    frame = open_frame(KEYRING, FrameKind.DATAGRAM, golden(f"datagram_{name}"))
    packet = Decoder(Config.lan(name="x", keys=[b"k" * 16])).decode(frame.instance, frame.body)
    assert packet.messages == (MESSAGES[name],)
    assert (packet.name, packet.address, packet.epoch) == ("alice", Address("10.1.2.4", 7946), EPOCH)
    assert (packet.instance, packet.incarnation, packet.vitals_counter, packet.vitals) == (ALICE, 2, 9, b"v")


def test_the_golden_exchange_is_read_as_it_was_meant():
    data = golden("exchange_request")
    hello, frame = split_hello(HELLO_MAGIC, data)
    assert (hello.cluster, hello.key_ids) == ("golden", KEYRING.ids())
    request = open_frame(KEYRING, FrameKind.REQUEST, frame, data[: -len(frame)])
    reply = open_frame(KEYRING, FrameKind.REPLY, golden("exchange_reply"), binding_of(ALICE, request.counter))
    assert reply.instance == BOB
    assert split_hello(REFUSAL_MAGIC, golden("exchange_refusal"))[0] == hello


if __name__ == "__main__":
    for vector, data in vectors().items():
        text = data.hex()
        lines = [text[i : i + 64] for i in range(0, len(text), 64)]
        (FOLDER / f"{vector}.hex").write_text("\n".join(lines) + "\n")

"""Every golden frame with any one bit flipped, cut short anywhere or made longer is refused, and nothing comes of it."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from test_swim_wire import ALICE, BOB, KEYRING, golden, vectors

from swimcluster.address import Address
from swimcluster.codec import encode_body, encode_message
from swimcluster.config import Config
from swimcluster.core import PendingExchange
from swimcluster.mac import REFUSAL_MAGIC, FrameKind, binding_of, encode_hello, seal
from swimcluster.messages import Ack, Packet
from swimcluster.swim import Swim

KEYS = [b"a golden key of 24 bytes", b"another key, 23 bytes.."]
SOURCE = Address("10.9.9.9", 1)
EXCHANGE = 7


class Asker:
    """Hears how an exchange ends."""

    def __init__(self) -> None:
        self.replies = self.failures = 0

    def replied(self, now: int, packet: Packet) -> None:
        self.replies += 1

    def failed(self, now: int) -> None:
        self.failures += 1


def receiver(*, insecure: bool = False) -> Swim:
    """A member of the golden cluster that has just read its own start."""
    keys = {"insecure": True} if insecure else {"keys": KEYS}
    config = Config.lan(name="carol", cluster="golden", advertise="10.1.2.5:7946", source_rate_max=0, **keys)
    swim = Swim(config, now=0, epoch=1, instance=b"carol's!", rng=random.Random(1))
    swim.advance(0)
    swim.transmits()
    swim.events()
    return swim


def damaged(data: bytes) -> Iterator[bytes]:
    for place in range(len(data)):
        for bit in range(8):
            yield data[:place] + bytes((data[place] ^ 1 << bit,)) + data[place + 1 :]
        yield data[:place]
    yield data + b"\0"


def dropped(swim: Swim) -> int:
    statistics = swim.statistics()
    names = ("malformed", "version", "cluster", "key", "mac")
    return sum(getattr(statistics, f"dropped_{name}") for name in names)


def thinks(swim: Swim) -> object:
    """All that a frame could have changed but counters."""
    core = swim.core
    return (
        swim.members(),
        swim.departed(),
        swim.join_status,
        swim.next_deadline(),
        dict(core.waiters),
        len(core.verifier),
    )


@pytest.mark.parametrize("name", sorted(name for name in vectors() if name.startswith("datagram_")))
def test_a_damaged_datagram_is_dropped_and_counted(name: str) -> None:
    swim = receiver(insecure=name == "datagram_insecure")
    before = thinks(swim)
    for number, data in enumerate(damaged(golden(name)), start=1):
        swim.receive_datagram(0, SOURCE, data)
        assert dropped(swim) == number
        assert swim.transmits() == []
        assert swim.events() == []
    assert thinks(swim) == before
    swim.receive_datagram(0, SOURCE, golden(name))  # No damaged one took its place.
    assert dropped(swim) == number


def test_a_damaged_request_is_refused_and_gets_no_more_than_the_clear_refusal() -> None:
    swim = receiver()
    before = thinks(swim)
    refusal = encode_hello(REFUSAL_MAGIC, "golden", KEYRING.ids())
    whole = golden("exchange_request")
    for number, data in enumerate(damaged(whole), start=1):
        reply = swim.exchange_received(0, SOURCE, data)
        assert reply in (None, refusal)
        assert reply is None or len(data) >= len(refusal)
        assert dropped(swim) == number
        assert swim.transmits() == []
    assert thinks(swim) == before
    assert swim.statistics().exchanges_answered == 0
    answer = swim.exchange_received(0, SOURCE, whole)
    assert isinstance(answer, bytes)
    assert answer.startswith(b"sw")


def ended(swim: Swim, data: bytes) -> tuple[int, int]:
    """Give the machine this reply to the golden request; returns how many replies and failures its asker heard of."""
    asker = Asker()
    swim.core.exchanges[EXCHANGE] = PendingExchange(asker, SOURCE, binding_of(ALICE, 100))
    swim.exchange_replied(0, EXCHANGE, data)
    return asker.replies, asker.failures


def test_a_damaged_reply_fails_its_exchange() -> None:
    swim = receiver()
    before = thinks(swim)
    for number, data in enumerate(damaged(golden("exchange_reply")), start=1):
        assert ended(swim, data) == (0, 1)
        assert dropped(swim) == number
        assert swim.transmits() == []
    assert thinks(swim) == before
    assert ended(swim, golden("exchange_reply")) == (1, 0)


def test_a_refusal_whole_or_damaged_fails_its_exchange_and_is_told_at_most() -> None:
    swim = receiver()
    before = thinks(swim)
    for number, data in enumerate([golden("exchange_refusal"), *damaged(golden("exchange_refusal"))], start=1):
        assert ended(swim, data) == (0, 1)
        assert dropped(swim) == number
        assert swim.transmits() == []
    assert thinks(swim) == before


def test_a_request_behind_the_hello_of_another_is_refused() -> None:
    swim = receiver()
    sender = golden("exchange_request")
    frame = sender[sender.index(b"sw", 2) :]
    for cluster, ids in (("golden", KEYRING.ids()[:1]), ("golden", KEYRING.ids()[::-1]), ("other", KEYRING.ids())):
        swim.exchange_received(0, SOURCE, encode_hello(b"sx", cluster, ids) + frame)
    assert swim.statistics().dropped_mac == 3
    bare = seal(KEYRING, FrameKind.REQUEST, BOB, 1, encode_body(swim.core.identity.envelope, [encode_message(Ack(1))]))
    swim.exchange_received(0, SOURCE, encode_hello(b"sx", "golden", KEYRING.ids()) + bare)
    assert swim.statistics().dropped_mac == 4

"""What the parts of the machine share: identity, table, timers, queues, and the way bytes leave it.

No part imports another; they meet here. Protocol rules live in the parts, not in this file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from swimcluster.address import Address
from swimcluster.codec import EPOCH_MAX, INSTANCE_BYTES, Decoder, encode_body
from swimcluster.config import FRAME_OVERHEAD_BYTES, Config
from swimcluster.dissemination import Packer, transmit_limit
from swimcluster.errors import ConfigError
from swimcluster.events import Event, EventsLost, Snapshot
from swimcluster.identity import Identity
from swimcluster.keyring import Keyring
from swimcluster.local_health import LocalHealth
from swimcluster.mac import HELLO_MAGIC, FrameKind, binding_of, encode_hello, seal
from swimcluster.member import Member
from swimcluster.membership import Entry, Membership
from swimcluster.messages import Packet
from swimcluster.payload import UNSTARTED, check_payload
from swimcluster.statistics import Statistics
from swimcluster.timers import Timers
from swimcluster.transmits import Datagram, Exchange, JoinStatus

if TYPE_CHECKING:
    from swimcluster.first_hand import FirstHand
    from swimcluster.gossip import Gossip
    from swimcluster.healing import Healer
    from swimcluster.inbox import Inbox
    from swimcluster.joining import Joiner
    from swimcluster.leaving import Leaver
    from swimcluster.news import News
    from swimcluster.probe import Prober
    from swimcluster.push_pull import Synchronizer
    from swimcluster.relay import Relays
    from swimcluster.self_defence import SelfDefence
    from swimcluster.user import UserMessages
    from swimcluster.verification import Verifier

T = TypeVar("T")
LIST_HEADER_BYTES = 3
WAITERS_MAX = 16_384
"""Pings waiting for an answer; more would mean that nothing times out."""


class RandomSource(Protocol):
    """The part of `random.Random` the machine uses; give it a seeded one and a run repeats exactly."""

    def random(self) -> float:
        """Return a float in [0, 1)."""
        ...

    def getrandbits(self, k: int, /) -> int:
        """Return an integer of k random bits."""
        ...

    def shuffle(self, x: list[T], /) -> None:
        """Shuffle a list in place."""
        ...


class Waiter(Protocol):
    """Whoever waits for the answer to a ping."""

    def acked(self, now: int, packet: Packet) -> None:
        """Hear that the pinged process answered, or that a relay says so."""

    def nacked(self, now: int, packet: Packet) -> None:
        """Hear that a relay has heard nothing yet."""

    def refused(self, now: int, packet: Packet) -> None:
        """Hear that another process listens at the address."""


class ExchangeOwner(Protocol):
    """Whoever waits for the reply to an exchange."""

    def replied(self, now: int, packet: Packet) -> None:
        """Take the authenticated reply."""

    def failed(self, now: int) -> None:
        """Hear that there is none."""


class PendingExchange:
    """An own exchange without an answer yet."""

    __slots__ = ("binding", "destination", "owner")

    def __init__(self, owner: ExchangeOwner, destination: Address, binding: bytes) -> None:
        self.owner = owner
        self.destination = destination
        self.binding = binding


class Core:
    """The shared state of one machine, and the operations every part needs."""

    inbox: Inbox
    first_hand: FirstHand
    gossip: Gossip
    news: News
    prober: Prober
    relays: Relays
    verifier: Verifier
    synchronizer: Synchronizer
    joiner: Joiner
    defence: SelfDefence
    healer: Healer
    leaver: Leaver
    user: UserMessages

    def __init__(
        self, config: Config, *, now: int, epoch: int, instance: bytes, rng: RandomSource, metadata: bytes
    ) -> None:
        if config.advertise is None:
            raise ConfigError("the machine needs an advertised address: set advertise=host:port")
        if not isinstance(instance, bytes) or len(instance) != INSTANCE_BYTES:
            raise ConfigError(f"the instance must be {INSTANCE_BYTES} random bytes")
        if not 0 <= epoch <= EPOCH_MAX:
            raise ConfigError("the epoch must be from 0 to 2**62: wall-clock milliseconds will do")
        check_payload("metadata", metadata, config.metadata_bytes_max, UNSTARTED)
        # The keys live in the keyring alone, so that everything else may be stored or shown.
        self.config = replace(config, keys=(), insecure=True)
        self.now = now
        self.heard_at = now
        self.probe_interval_ns = config.ns(config.probe_interval_s)
        self.probe_timeout_ns = config.ns(config.probe_timeout_s)
        self.rng = rng
        self.statistics = Statistics()
        self.timers = Timers()
        self.keyring = Keyring(config.cluster, config.keys)
        self.identity = Identity(
            name=config.name,
            address=config.advertise,
            epoch=epoch,
            instance=instance,
            metadata=metadata,
            key_ids=self.held_key_ids(),
        )
        self.table = Membership(config.members_max)
        self.health = LocalHealth(config.local_health_max)
        self.packer = Packer(config.members_max, config.broadcasts_max, config.broadcast_bytes_max)
        self.decoder = Decoder(config)
        self.set_status(JoinStatus.JOINING)
        self.counter = 0
        self.waiters: dict[int, Waiter] = {}
        self.exchanges: dict[int, PendingExchange] = {}
        self._sequence = rng.getrandbits(32)
        self._exchange_id = 0
        self._transmits: list[Datagram | Exchange] = []
        self._events: deque[Event] = deque()
        self._lost = 0

    # Views ------------------------------------------------------------------------------------------------------

    def set_status(self, status: JoinStatus) -> None:
        """Change where this node stands. It is active unless it leaves, has left, or its name is in use."""
        self.status = status
        self.is_active = status is JoinStatus.JOINING or status is JoinStatus.JOINED

    def members(self) -> tuple[Member, ...]:
        """Return live members by name, this one among them."""
        local = self.identity.member()
        pictures = [entry.member(self.now) for entry in self.table.sorted_live()]
        place = sum(1 for member in pictures if member.name < local.name)
        return (*pictures[:place], local, *pictures[place:])

    def held_key_ids(self) -> bytes:
        """Return the ids others may know; nothing in an insecure cluster."""
        return b"".join(self.keyring.ids()) if self.keyring.is_secret else b""

    # Random choices ---------------------------------------------------------------------------------------------

    def below(self, limit: int) -> int:
        """Return a random index below `limit`."""
        return int(self.rng.random() * limit)

    def some_live(self, count: int, *, but: str = "") -> list[Entry]:
        """Return up to `count` different random live members, alive ones only."""
        pool = self.table.sorted_live()
        chosen: list[Entry] = []
        if not pool:
            return chosen
        # Random starts and a step through the list: cheap, and it always ends.
        for _ in range(4 * count):
            entry = pool[self.below(len(pool))]
            if entry.name != but and entry.suspicion is None and entry not in chosen:
                chosen.append(entry)
                if len(chosen) == count:
                    return chosen
        for entry in pool:
            if len(chosen) < count and entry.name != but and entry.suspicion is None and entry not in chosen:
                chosen.append(entry)
        return chosen

    def jittered(self, duration: int) -> int:
        """Return a duration between 0.75 and 1.25 times the given one, so that nodes started together drift apart."""
        return int(duration * (0.75 + self.rng.random() / 2))

    # Output -----------------------------------------------------------------------------------------------------

    def emit(self, event: Event) -> None:
        """Queue an event; the oldest makes room and is counted."""
        if len(self._events) >= self.config.events_max:
            self._events.popleft()
            self._lost += 1
            self.statistics.events_lost += 1
        self._events.append(event)

    def take_events(self) -> list[Event]:
        """Return and forget the queued events; after a loss, its number first and a snapshot last."""
        if not self._events:
            return []
        events = list(self._events)
        self._events.clear()
        if self._lost:
            events = [EventsLost(self._lost), *events, Snapshot(self.members())]
            self._lost = 0
        return events

    def take_transmits(self) -> list[Datagram | Exchange]:
        """Return and forget what is to be sent."""
        transmits, self._transmits = self._transmits, []
        return transmits

    def send(self, destination: Address, *first: bytes, fill: bool = True) -> None:
        """Send a datagram of these messages, with news in the room that is left."""
        self.send_datagram(destination, self.pack_datagram(first, 1, fill=fill))

    def pack_datagram(self, first: Sequence[bytes], copies: int, *, fill: bool = True, again: bool = False) -> bytes:
        """Return a signed datagram; the news in it count as sent `copies` times.

        Args:
            again: fill the room that is left with what was news lately.
        """
        messages: Sequence[bytes] = first
        packer, gossip = self.packer, self.gossip
        if fill and (packer.updates or packer.broadcasts or (again and gossip.was_lately)):
            room = self.config.datagram_bytes_max - FRAME_OVERHEAD_BYTES - len(self.identity.envelope)
            room -= LIST_HEADER_BYTES + sum(map(len, first))
            limit = transmit_limit(self.config.retransmit_mult, self.table.count)
            messages = [*first, *packer.fill(room, limit, copies)]
            if again:
                messages += gossip.again(room - sum(map(len, messages[len(first) :])))
        self.counter += 1
        body = encode_body(self.identity.envelope, messages)
        data = seal(self.keyring, FrameKind.DATAGRAM, self.identity.instance, self.counter, body)
        assert len(data) <= self.config.datagram_bytes_max, "the budget is proven by the configuration"
        return data

    def send_datagram(self, destination: Address, data: bytes) -> None:
        """Hand a signed datagram to the driver."""
        self.statistics.datagrams_sent += 1
        self.statistics.bytes_sent += len(data)
        self._transmits.append(Datagram(destination, data))

    def exchange(self, destination: Address, messages: Sequence[bytes], owner: ExchangeOwner, timeout_ns: int) -> int:
        """Start an exchange; `owner` hears how it ends. Returns its id."""
        self.counter += 1
        identity = self.identity
        body = encode_body(identity.envelope, messages)
        hello = encode_hello(HELLO_MAGIC, self.config.cluster, self.keyring.ids())
        data = hello + seal(self.keyring, FrameKind.REQUEST, identity.instance, self.counter, body, binding=hello)
        self._exchange_id += 1
        binding = binding_of(identity.instance, self.counter)
        self.exchanges[self._exchange_id] = PendingExchange(owner, destination, binding)
        self.statistics.exchanges_started += 1
        self.statistics.bytes_sent += len(data)
        self._transmits.append(Exchange(self._exchange_id, destination, data, timeout_ns))
        return self._exchange_id

    def seal_reply(self, binding: bytes, messages: Sequence[bytes]) -> bytes:
        """Return the reply to the request with this binding."""
        self.counter += 1
        body = encode_body(self.identity.envelope, messages)
        return seal(self.keyring, FrameKind.REPLY, self.identity.instance, self.counter, body, binding=binding)

    # Pings ------------------------------------------------------------------------------------------------------

    def expect(self, waiter: Waiter) -> int:
        """Return a fresh sequence number whose answers go to `waiter`."""
        self._sequence = (self._sequence + 1) & 0xFFFFFFFF
        if len(self.waiters) >= WAITERS_MAX:
            del self.waiters[next(iter(self.waiters))]
        self.waiters[self._sequence] = waiter
        return self._sequence

    def forget(self, sequence: int) -> None:
        """Expect no more answers to a sequence number."""
        self.waiters.pop(sequence, None)

    # Own claims -------------------------------------------------------------------------------------------------

    def announce(self) -> None:
        """Spread this member's own Alive."""
        self.publish(self.identity.name, self.identity.alive_bytes)

    def publish(self, name: str, data: bytes, *, heard_from: str = "") -> None:
        """Spread news about a member, heard from another or found out here."""
        self.packer.updates.put(name, data)
        self.gossip.heard_news(name, heard_from)

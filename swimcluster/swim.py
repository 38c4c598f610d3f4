"""The SWIM machine: bytes and time in, bytes and events out. Rules P1 and on are in docs/protocol.md.

It opens no socket, reads no clock and draws randomness only from the object it is given. The driver's whole duty:

    data arrives       -> receive_datagram / exchange_received / exchange_replied / exchange_failed
    time passes        -> advance(now), no later than next_deadline()
    after each call    -> carry out transmits(), hand on events()

`now` is integer nanoseconds of a clock that counts suspend and never goes back; it must not fall between calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from swimcluster.address import Address
from swimcluster.config import Config
from swimcluster.events import Event
from swimcluster.member import Member
from swimcluster.statistics import Statistics
from swimcluster.transmits import Datagram, Exchange, JoinStatus, LeaveProgress, PendingReply

T = TypeVar("T")


class RandomSource(Protocol):
    """The part of `random.Random` the machine uses; give it a seeded one and a run repeats exactly."""

    def random(self) -> float: ...
    def getrandbits(self, k: int, /) -> int: ...
    def shuffle(self, x: list[T], /) -> None: ...


class Swim:
    """One member of a cluster. Not thread-safe; every method returns at once and only `advance` moves time."""

    def __init__(
        self, config: Config, *, now: int, epoch: int, instance: bytes, rng: RandomSource, metadata: bytes = b""
    ) -> None:
        """Make a member; it starts joining through `config.seeds` at the first `advance`.

        Args:
            config: `config.advertise` must be set.
            now: nanoseconds; the first of the non-decreasing times.
            epoch: life number of the name, 0 to 2**62: above every earlier one; wall clock in milliseconds will do.
            instance: eight random bytes, never used before by any process.
            rng: source of all randomness.
            metadata: first metadata, at most `config.metadata_bytes_max` bytes.
        Raises:
            ConfigError: no advertised address, or instance or epoch out of range.
            PayloadTooLargeError: metadata over its limit.
        """
        raise NotImplementedError

    # Input ------------------------------------------------------------------------------------------------------

    def receive_datagram(self, now: int, source: Address | None, data: bytes) -> None:
        """Take one datagram. Never raises on any bytes: what is wrong is counted.

        Args:
            source: where it came from, for the rate limit only; None where the carrier cannot tell.
        """
        raise NotImplementedError

    def exchange_received(self, now: int, source: Address | None, data: bytes) -> bytes | PendingReply | None:
        """Take another node's exchange request and return the reply; never raises on any bytes.

        Returns:
            the reply; PendingReply when the application owes it (see RequestReceived); None: close without one.
        """
        raise NotImplementedError

    def exchange_replied(self, now: int, id: int, data: bytes) -> None:  # noqa: A002 - the name of the field
        """Take the reply to own exchange `id`. An unknown or ended id is ignored."""
        raise NotImplementedError

    def exchange_failed(self, now: int, id: int) -> None:  # noqa: A002
        """Say that own exchange `id` got no reply: no connection, time-out, or closed. An unknown id is ignored."""
        raise NotImplementedError

    def send_failed(self, now: int, destination: Address) -> None:
        """Say that a datagram to `destination` could not be sent locally: it counts as a failed direct probe."""
        raise NotImplementedError

    def advance(self, now: int) -> None:
        """Do all that is due at `now`. After a jump of the clock, give the machine what its sockets hold first."""
        raise NotImplementedError

    # Output -----------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Return when `advance` must be called at the latest, in nanoseconds; None when nothing is waiting.

        After `advance(now)` it is later than `now`.
        """
        raise NotImplementedError

    def transmits(self) -> list[Datagram | Exchange]:
        """Return what is to be sent, oldest first, and forget it."""
        raise NotImplementedError

    def events(self) -> list[Event]:
        """Return what happened, oldest first, and forget it."""
        raise NotImplementedError

    # Commands ---------------------------------------------------------------------------------------------------

    def join(self, now: int, seeds: Sequence[Address]) -> None:
        """Add seeds and try all seeds at once; retries go on for ever. Watch `join_status`, Joined, JoinAttemptFailed."""
        raise NotImplementedError

    def learn_addresses(self, now: int, addresses: Sequence[Address]) -> None:
        """Add addresses to try while alone, e.g. from a snapshot on disk: dialled like seeds until one has answered."""
        raise NotImplementedError

    def leave(self, now: int) -> None:
        """Start to leave; idempotent. Go on driving until `leave_progress.is_done` or your patience ends."""
        raise NotImplementedError

    def set_metadata(self, now: int, data: bytes) -> None:
        """Replace this member's metadata and spread it.

        Raises:
            PayloadTooLargeError: over `config.metadata_bytes_max`; nothing was changed.
        """
        raise NotImplementedError

    def set_vitals(self, now: int, data: bytes) -> None:
        """Replace this member's vitals; the newest go out, at most one value per probe interval.

        Raises:
            PayloadTooLargeError: over `config.vitals_bytes_max`; nothing was changed.
        """
        raise NotImplementedError

    def readvertise(self, now: int, address: Address) -> None:
        """Tell the others that this member is now reached at `address`: a new epoch.

        Raises:
            ConfigError: nobody could connect to the address; nothing was changed.
        """
        raise NotImplementedError

    def send(self, now: int, name: str, payload: bytes) -> None:
        """Send a datagram payload to a live member (UserMessage there); it may be lost.

        Raises:
            PayloadTooLargeError: over `config.user_datagram_bytes_max`; nothing was sent.
            ExchangeError: no such live member; nothing was sent.
        """
        raise NotImplementedError

    def request(self, now: int, name: str, payload: bytes) -> int:
        """Ask a live member something in one exchange; ReplyReceived or RequestFailed with the returned id follows.

        Raises:
            PayloadTooLargeError: over `config.request_bytes_max`; nothing was sent.
            ExchangeError: no such live member; nothing was sent.
        """
        raise NotImplementedError

    def respond(self, now: int, request_id: int, payload: bytes) -> bytes:
        """Return the bytes that answer the exchange for which `exchange_received` returned PendingReply.

        Raises:
            PayloadTooLargeError: over `config.request_bytes_max`; it can still be answered.
            ExchangeError: the request is unknown, answered or out of time.
        """
        raise NotImplementedError

    def broadcast(self, now: int, payload: bytes) -> None:
        """Spread a payload to all members in the spare room of packets (BroadcastReceived there).

        Raises:
            PayloadTooLargeError: over `config.broadcast_bytes_max`; nothing was sent.
        """
        raise NotImplementedError

    def install_key(self, now: int, key: bytes) -> bytes:
        """Accept a further key for verifying; returns its 4-byte id. Idempotent.

        Raises:
            ConfigError: not 16 to 1024 bytes, four keys held already, or an insecure cluster; nothing changed.
        """
        raise NotImplementedError

    def use_key(self, now: int, key_id: bytes) -> None:
        """Sign with an installed key.

        Raises:
            ConfigError: the key is not installed here, or live members lack it (they are named); nothing changed.
        """
        raise NotImplementedError

    def remove_key(self, now: int, key_id: bytes) -> None:
        """Forget a key that is not in use.

        Raises:
            ConfigError: the key is not installed, or is the one in use; nothing changed.
        """
        raise NotImplementedError

    def key_ids(self) -> tuple[bytes, ...]:
        """Return the ids of the installed keys; the first is the one that signs."""
        raise NotImplementedError

    def key_coverage(self, key_id: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of live members that hold the key and of those that lack it, both sorted."""
        raise NotImplementedError

    # Views ------------------------------------------------------------------------------------------------------

    @property
    def local(self) -> Member:
        """This member."""
        raise NotImplementedError

    def members(self) -> tuple[Member, ...]:
        """Return the live members, suspects and this one included, sorted by name."""
        raise NotImplementedError

    def member(self, name: str) -> Member | None:
        """Return one member, live or departed; None when unknown."""
        raise NotImplementedError

    def departed(self) -> tuple[Member, ...]:
        """Return the dead and left members still remembered, sorted by name."""
        raise NotImplementedError

    @property
    def join_status(self) -> JoinStatus:
        """Where this node stands with its cluster."""
        raise NotImplementedError

    @property
    def leave_progress(self) -> LeaveProgress:
        """How far the leave has come; all zero and not done before `leave`."""
        raise NotImplementedError

    @property
    def isolated(self) -> bool:
        """Whether this node hears nobody although it knows, or was told, of others. Its own opinion."""
        raise NotImplementedError

    def statistics(self) -> Statistics:
        """Return a copy of the counters and gauges."""
        raise NotImplementedError

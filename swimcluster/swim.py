"""The SWIM machine: bytes and time in, bytes and events out. Rules P1 and on are in docs/protocol.md.

It opens no socket, reads no clock and draws randomness only from the object it is given. The driver's whole duty:

    data arrives       -> receive_datagram / exchange_received / exchange_replied / exchange_failed
    time passes        -> advance(now), no later than next_deadline()
    after each call    -> carry out transmits(), hand on events()

`now` is integer nanoseconds of a clock that counts suspend and never goes back; it must not fall between calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from swimcluster.address import Address
from swimcluster.codec import EPOCH_MAX, split_key_ids
from swimcluster.config import Config
from swimcluster.config_checks import check_advertise
from swimcluster.core import Core, RandomSource
from swimcluster.errors import ConfigError
from swimcluster.events import ClockGap, Event
from swimcluster.first_hand import FirstHand
from swimcluster.gossip import Gossip
from swimcluster.healing import Healer
from swimcluster.inbox import Inbox
from swimcluster.joining import Joiner
from swimcluster.keyring import Keyring
from swimcluster.leaving import Leaver
from swimcluster.member import Member, MemberState
from swimcluster.news import News
from swimcluster.payload import UNCHANGED, check_payload
from swimcluster.probe import Prober
from swimcluster.push_pull import Synchronizer
from swimcluster.relay import Relays
from swimcluster.self_defence import SelfDefence
from swimcluster.statistics import Statistics
from swimcluster.transitions import Transition
from swimcluster.transmits import Datagram, Exchange, JoinStatus, LeaveProgress, PendingReply
from swimcluster.user import UserMessages
from swimcluster.verification import Verifier

__all__ = ["RandomSource", "Swim"]


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
            PayloadTypeError: metadata that is not bytes.
            PayloadTooLargeError: metadata over its limit.
        """
        core = self.core = Core(config, now=now, epoch=epoch, instance=instance, rng=rng, metadata=metadata)
        core.news = News(core)
        core.prober = Prober(core)
        core.relays = Relays(core)
        core.verifier = Verifier(core)
        core.synchronizer = Synchronizer(core)
        core.defence = SelfDefence(core)
        core.joiner = Joiner(core)
        core.healer = Healer(core)
        core.leaver = Leaver(core)
        core.user = UserMessages(core)
        core.gossip = Gossip(core)
        core.first_hand = FirstHand(core)
        core.inbox = Inbox(core)
        core.joiner.start(now)
        core.prober.start(now)
        core.gossip.start(now)
        core.synchronizer.start(now)
        core.healer.start(now)

    # Input ------------------------------------------------------------------------------------------------------

    def receive_datagram(self, now: int, source: Address | None, data: bytes) -> None:
        """Take one datagram. Never raises on any bytes: what is wrong is counted.

        Args:
            source: where it came from, for the rate limit only; None where the carrier cannot tell.
        """
        self._enter(now)
        self.core.inbox.datagram(now, source, data)

    def exchange_received(self, now: int, source: Address | None, data: bytes) -> bytes | PendingReply | None:
        """Take another node's exchange request and return the reply; never raises on any bytes.

        Returns:
            the reply; PendingReply when the application owes it (see RequestReceived); None: close without one.
        """
        self._enter(now)
        return self.core.inbox.request(now, source, data)

    def exchange_replied(self, now: int, id: int, data: bytes) -> None:  # noqa: A002 - the name of the field
        """Take the reply to own exchange `id`. An unknown or ended id is ignored."""
        self._enter(now)
        self.core.inbox.reply(now, id, data)

    def exchange_failed(self, now: int, id: int, unsent: str = "", refusal: str = "") -> None:  # noqa: A002
        """Say that own exchange `id` got no reply: no connection, time-out, or closed. An unknown id is ignored.

        Args:
            unsent: why nothing at all was sent, where that is so; `RequestFailed` then says it.
            refusal: why whoever listens there is no member, where it was known by its answer; `PeerRefused` says it.
        """
        self._enter(now)
        self.core.inbox.no_reply(now, id, unsent, refusal)

    def send_failed(self, now: int, destination: Address) -> None:
        """Say that a datagram to `destination` could not be sent locally: it counts as a failed direct probe."""
        self._enter(now)
        self.core.statistics.sends_failed += 1
        self.core.prober.send_failed(now, destination)

    def advance(self, now: int) -> None:
        """Do all that is due at `now`. After a jump of the clock, give the machine what its sockets hold first."""
        self._enter(now)
        self.core.timers.run(now)

    # Output -----------------------------------------------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Return when `advance` must be called at the latest, in nanoseconds; None when nothing is waiting.

        After `advance(now)` it is later than `now`.
        """
        return self.core.timers.next_at()

    def transmits(self) -> list[Datagram | Exchange]:
        """Return what is to be sent, oldest first, and forget it."""
        return self.core.take_transmits()

    def events(self) -> list[Event]:
        """Return what happened, oldest first, and forget it."""
        return self.core.take_events()

    # Commands ---------------------------------------------------------------------------------------------------

    def join(self, now: int, seeds: Sequence[Address]) -> None:
        """Add seeds and dial them at once; they are kept for ever. Joined or JoinAttemptFailed(is_explicit) follows."""
        self._enter(now)
        self.core.joiner.join(now, seeds)

    def learn_addresses(self, now: int, addresses: Sequence[Address]) -> None:
        """Add addresses to try while alone, e.g. from a snapshot on disk: dialled like seeds until one has answered."""
        self._enter(now)
        self.core.joiner.add(addresses, is_hint=True)

    def leave(self, now: int) -> None:
        """Start to leave; idempotent. Go on driving until `leave_progress.is_done` or your patience ends.

        What is to be sent or set from now on is refused. Requests under way go on, also after the end: each has its
        outcome once its exchange has been ended.
        """
        self._enter(now)
        self.core.leaver.leave(now)

    def set_metadata(self, now: int, data: bytes) -> bool:
        """Replace this member's metadata and spread it. Once it takes no part any more: False, and nothing changes.

        Raises:
            PayloadTypeError: not bytes; nothing was changed.
            PayloadTooLargeError: over `config.metadata_bytes_max`; nothing was changed.
        """
        self._enter(now)
        core = self.core
        check_payload("metadata", data, core.config.metadata_bytes_max, UNCHANGED)
        if data != core.identity.metadata and core.is_active:
            core.identity.say("metadata", metadata=data)
            core.announce()
        return core.is_active

    def set_vitals(self, now: int, data: bytes) -> bool:
        """Replace this member's vitals; the newest go out, at most one per probe interval. False as for `set_metadata`.

        Raises:
            PayloadTypeError: not bytes; nothing was changed.
            PayloadTooLargeError: over `config.vitals_bytes_max`; nothing was changed.
        """
        self._enter(now)
        check_payload("vitals", data, self.core.config.vitals_bytes_max, UNCHANGED)
        if self.core.is_active:
            self.core.gossip.set_vitals(now, data)
        return self.core.is_active

    def readvertise(self, now: int, address: Address) -> bool:
        """Tell the others that this member is now reached at `address`: a new epoch. False as for `set_metadata`.

        Raises:
            ConfigError: nobody could connect to the address, or no epoch is left; nothing was changed.
        """
        self._enter(now)
        core = self.core
        check_advertise(address, core.config.host_bytes_max)
        if address != core.identity.address and core.is_active:
            if core.identity.epoch >= EPOCH_MAX:
                raise ConfigError("the epochs of this name are used up: restart the member under another one")
            core.identity.change("readvertised", epoch=core.identity.epoch + 1, address=address)
            core.announce()
        return core.is_active

    def send(self, now: int, name: str, payload: bytes) -> None:
        """Send a datagram payload to a live member (UserMessage there); it may be lost.

        Raises:
            PayloadTypeError: not bytes; nothing was sent.
            PayloadTooLargeError: over `config.user_datagram_bytes_max`; nothing was sent.
            ExchangeError: no such live member, this member itself, or this one takes no part any more; nothing was sent.
        """
        self._enter(now)
        self.core.user.send(name, payload)

    def request(self, now: int, name: str, payload: bytes) -> int:
        """Ask a live member something in one exchange; ReplyReceived or RequestFailed with the returned id follows.

        Raises:
            PayloadTypeError: not bytes; nothing was sent.
            PayloadTooLargeError: over `config.request_bytes_max`; nothing was sent.
            ExchangeError: no such live member, this member itself, or this one takes no part any more; nothing was sent.
        """
        self._enter(now)
        return self.core.user.request(name, payload)

    def respond(self, now: int, request_id: int, payload: bytes) -> bytes:
        """Return the bytes that answer the exchange for which `exchange_received` returned PendingReply.

        Raises:
            PayloadTypeError: not bytes; it can still be answered.
            PayloadTooLargeError: over `config.request_bytes_max`; it can still be answered.
            ExchangeError: the request is unknown, answered or out of time.
        """
        self._enter(now)
        return self.core.user.respond(now, request_id, payload)

    def broadcast(self, now: int, payload: bytes) -> bool:
        """Spread a payload to all in the spare room of packets (BroadcastReceived there). False as for `set_metadata`.

        Raises:
            PayloadTypeError: not bytes; nothing was sent.
            PayloadTooLargeError: over `config.broadcast_bytes_max`; nothing was sent.
        """
        self._enter(now)
        return self.core.user.broadcast(payload)

    def install_key(self, now: int, key: bytes) -> bytes:
        """Accept a further key for verifying; returns its 4-byte id. Idempotent.

        Raises:
            ConfigError: not 16 to 1024 bytes, four keys held already, or an insecure cluster; nothing changed.
        """
        self._enter(now)
        key_id = self.core.keyring.install(key)
        self._keys_changed()
        return key_id

    def use_key(self, now: int, key_id: bytes) -> None:
        """Sign with an installed key.

        Raises:
            ConfigError: the key is not installed here, or live members lack it (they are named); nothing changed.
        """
        self._enter(now)
        lacking = self.key_coverage(key_id)[1]
        if lacking and key_id in self.core.keyring.ids():
            raise ConfigError(f"key {key_id.hex()} is missing at {', '.join(lacking)}: install it there first")
        self.core.keyring.use(key_id)
        self._keys_changed()

    def remove_key(self, now: int, key_id: bytes) -> None:
        """Forget a key that is not in use.

        Raises:
            ConfigError: the key is not installed, or is the one in use; nothing changed.
        """
        self._enter(now)
        self.core.keyring.remove(key_id)
        self._keys_changed()

    def key_ids(self) -> tuple[bytes, ...]:
        """Return the ids of the installed keys; the first is the one that signs."""
        return self.core.keyring.ids()

    def key_coverage(self, key_id: bytes) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of live members that hold the key and of those that lack it, both sorted."""
        core = self.core
        holders = {entry.name: entry.key_ids for entry in core.table.sorted_live()}
        holders[core.identity.name] = core.held_key_ids()
        having = tuple(sorted(name for name, ids in holders.items() if key_id in split_key_ids(ids)))
        return having, tuple(sorted(name for name in holders if name not in having))

    # Views ------------------------------------------------------------------------------------------------------

    @property
    def local(self) -> Member:
        """This member."""
        return self.core.identity.member()

    def members(self) -> tuple[Member, ...]:
        """Return the live members, suspects and this one included, sorted by name."""
        return self.core.members()

    def member(self, name: str) -> Member | None:
        """Return one member, live or departed; None when unknown."""
        if name == self.core.identity.name:
            return self.local
        entry = self.core.table.get(name)
        return None if entry is None else entry.member(self.core.now)

    def departed(self) -> tuple[Member, ...]:
        """Return the dead and left members still remembered, sorted by name."""
        gone = self.core.table.gone
        return tuple(gone[name].member(self.core.now) for name in sorted(gone))

    @property
    def join_status(self) -> JoinStatus:
        """Where this node stands with its cluster."""
        return self.core.status

    @property
    def leave_progress(self) -> LeaveProgress:
        """How far the leave has come; all zero and not done before `leave`."""
        return self.core.leaver.progress

    @property
    def isolated(self) -> bool:
        """Whether this node hears nobody although it knows, or was told, of others. Its own opinion."""
        return self.core.healer.is_isolated

    def statistics(self) -> Statistics:
        """Return a copy of the counters and gauges."""
        core = self.core
        statistics = core.statistics
        statistics.members_live = core.table.count
        statistics.members_suspect = sum(e.claim.state is MemberState.SUSPECT for e in core.table.live.values())
        statistics.members_departed = len(core.table.gone)
        statistics.members_unverified = len(core.verifier)
        statistics.local_health = core.health.score
        statistics.updates_queued = len(core.packer.updates)
        statistics.broadcasts_queued = len(core.packer.broadcasts)
        statistics.exchanges_pending = len(core.exchanges)
        return statistics.copy()

    @property
    def keyring(self) -> Keyring:
        """The one place where secrets are; take it out before storing a machine, and put it back after."""
        return self.core.keyring

    @keyring.setter
    def keyring(self, keyring: Keyring) -> None:
        self.core.keyring = keyring

    @property
    def on_transition(self) -> Callable[[Transition], None] | None:
        """Called at each change of the member table, candidates and this member included; None costs nothing."""
        return self.core.table.observer

    @on_transition.setter
    def on_transition(self, observer: Callable[[Transition], None] | None) -> None:
        self.core.table.observer = observer
        self.core.identity.observer = observer

    # Inside -----------------------------------------------------------------------------------------------------

    def _enter(self, now: int) -> None:
        """Note the time; when the earliest deadline is overdue by more than a probe interval, this node was away."""
        core = self.core
        if now <= core.now:
            return
        core.now = now
        due = core.timers.next_at()
        if due is None:
            return
        gap = now - due
        if gap > core.probe_interval_ns and core.is_active:
            core.statistics.clock_gaps += 1
            core.health.apply(1)
            core.prober.postpone(gap)
            core.healer.postpone(gap)
            core.news.extend_suspicions(gap)
            core.timers.postpone(gap)
            core.emit(ClockGap(gap / 1e9))

    def _keys_changed(self) -> None:
        core = self.core
        held = core.held_key_ids()
        if held != core.identity.key_ids and core.is_active:
            core.identity.say("keys", key_ids=held)
            core.announce()

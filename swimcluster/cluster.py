"""Membership for a trio program: `async with open_cluster(config) as cluster`.

The protocol runs beside the body of the `async with`, in tasks the context owns; leaving it tells the others,
whatever ended the body. Timeouts are the caller's cancel scopes. No method blocks the protocol.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import trio

from swimcluster.address import Address, parse_address
from swimcluster.advertise import advertised_address
from swimcluster.boot_clock import boot_now
from swimcluster.config import Config
from swimcluster.driver import Clock, Driver, RequestHandler, logger
from swimcluster.errors import ClosedError, ConfigError, ExchangeError, JoinError, NameInUseError
from swimcluster.event_log import EventLog
from swimcluster.events import (
    Event,
    JoinAttemptFailed,
    Joined,
    NameTaken,
    ReplyReceived,
    RequestFailed,
    RequestReceived,
    SnapshotFault,
)
from swimcluster.member import Member
from swimcluster.nursery import open_plain_nursery
from swimcluster.recorder import INPUTS_MAX, FlightRecorder
from swimcluster.rotation import KeyRotation
from swimcluster.snapshot import Snapshot
from swimcluster.state_file import StateFile, next_epoch, snapshot_path, wall_clock_ms
from swimcluster.statistics import Statistics
from swimcluster.subscription import Subscription
from swimcluster.swim import Swim
from swimcluster.transmits import JoinStatus, LeaveProgress
from swimcluster.transport import Transport
from swimcluster.transport.udp import open_udp_transport

DEFAULT_PORT = 7946
"""Where a member listens that is told neither to bind nor to advertise; memberlist's port."""
JOIN_WAIT_S = 3.0
"""Longest wait of `open_cluster` for a first seed; the member then starts alone and keeps trying."""
JOIN_GRACE_S = 1.0
"""What `Cluster.join` waits beyond the time of an exchange."""
SUBSCRIPTIONS_MAX = 1024


@asynccontextmanager
async def open_cluster(
    config: Config,
    *,
    transport: Transport | None = None,
    metadata: bytes = b"",
    on_request: RequestHandler | None = None,
    join_wait_s: float = JOIN_WAIT_S,
    recorded_inputs_max: int = INPUTS_MAX,
    clock: Clock = boot_now,
    rng: random.Random | None = None,
) -> AsyncIterator[Cluster]:
    """Take part in a cluster until the body ends, then leave it.

    Seeds that do not answer are no error: the member starts alone and keeps trying. The leave on the way out is
    shielded from cancellation and bounded by `config.leave_timeout_s`.

    Args:
        transport: carries the bytes and stays open afterwards; None binds UDP and TCP at `config.bind`.
        metadata: first metadata, at most `config.metadata_bytes_max` bytes.
        on_request: answers what members ask with `Cluster.request`; None answers nothing.
        join_wait_s: longest wait for the first seed before the body begins.
        recorded_inputs_max: inputs kept by the flight recorder, between one and two times as many; 0 for none.
        clock: nanoseconds that never go back; tests give a virtual one.
        rng: randomness of the protocol; tests give a seeded one.

    Raises:
        ConfigError: a setting is wrong or the address cannot be bound; nothing was started.
        PayloadTooLargeError: metadata over its limit; nothing was started.
        NameInUseError: a live member answers under this name, at the start or (cancelling the body) later on.
    """
    async with AsyncExitStack() as stack:
        if transport is None:
            transport = await stack.enter_async_context(
                open_udp_transport(
                    config.bind or config.advertise or Address("", DEFAULT_PORT),
                    exchange_bytes_max=config.exchange_bytes_max,
                    exchange_timeout_s=config.exchange_timeout_s,
                )
            )
        config = config.with_advertise(config.advertise or advertised_address(transport.local_address, config.seeds))
        cluster = Cluster(config, transport, clock, on_request)
        await cluster.start(metadata, rng or random.Random(secrets.randbits(256)), recorded_inputs_max)
        async with open_plain_nursery() as nursery:
            try:
                await cluster.run_in(nursery)
                await cluster.wait_until_joined(join_wait_s)
                yield cluster
            finally:
                await cluster.close()
                nursery.cancel_scope.cancel()


class Cluster:
    """This node's view of its cluster and its say in it. Made by `open_cluster`; for one trio program only."""

    def __init__(self, config: Config, transport: Transport, clock: Clock, on_request: RequestHandler | None) -> None:
        self.config = config
        self.keyring = KeyRotation(self)
        """Installs, uses and removes cluster keys at run time."""
        self._transport = transport
        self._clock = clock
        self._on_request = on_request
        self._log = EventLog()
        self._driver: Driver | None = None
        self._closed = False
        self._state: StateFile | None = None
        self._remembered: tuple[Address, ...] = ()
        self._subscriptions: set[Subscription] = set()
        self._early: list[Event] = []
        self._changes = trio.lowlevel.ParkingLot()
        self._answers: dict[int, ReplyReceived | RequestFailed | None] = {}
        self._last_join: Joined | JoinAttemptFailed | None = None
        self._name_taken: NameTaken | None = None
        self._recorder: FlightRecorder | None = None

    # Views ------------------------------------------------------------------------------------------------------

    @property
    def local(self) -> Member:
        """This member."""
        return self.machine.local

    @property
    def members(self) -> tuple[Member, ...]:
        """The live members, suspects and this one included, sorted by name; a frozen picture of this moment."""
        return self.machine.members()

    @property
    def departed(self) -> tuple[Member, ...]:
        """The dead and left members still remembered, sorted by name."""
        return self.machine.departed()

    def member(self, name: str) -> Member | None:
        """Return one member, live or departed; None when unknown."""
        return self.machine.member(name)

    @property
    def isolated(self) -> bool:
        """Whether this node hears nobody although it knows, or was told, of others. Its own opinion."""
        return self.machine.isolated

    @property
    def join_status(self) -> JoinStatus:
        """Where this node stands with its cluster."""
        return self.machine.join_status

    def statistics(self) -> Statistics:
        """Return a copy of the counters and gauges; `swimcluster.prometheus_text` writes them out."""
        return self.machine.statistics()

    @property
    def transport_counters(self) -> object:
        """What the transport counted (`swimcluster.transport.udp_datagrams.UdpCounters`); None where it counts nothing."""
        return getattr(self._transport, "counters", None)

    # Commands that return at once -------------------------------------------------------------------------------

    def set_metadata(self, data: bytes) -> None:
        """Replace this member's metadata and spread it.

        Raises:
            PayloadTooLargeError: over `config.metadata_bytes_max`; nothing was changed.
        """
        self.feed("set_metadata", data)

    def set_vitals(self, data: bytes) -> None:
        """Replace this member's vitals; the newest go out with every packet, one value per probe interval.

        Raises:
            PayloadTooLargeError: over `config.vitals_bytes_max`; nothing was changed.
        """
        self.feed("set_vitals", data)

    def readvertise(self, address: Address | str) -> None:
        """Tell the others that this member is now reached at `address`.

        Raises:
            ConfigError: nobody could connect to the address; nothing was changed.
        """
        self.feed("readvertise", _address(address))

    def send(self, name: str, payload: bytes) -> None:
        """Send a datagram payload to a live member; it may be lost. The other side gets a `UserMessage`.

        Raises:
            PayloadTooLargeError: over `config.user_datagram_bytes_max`; nothing was sent.
            ExchangeError: no such live member; nothing was sent.
        """
        self.feed("send", name, payload)

    def broadcast(self, payload: bytes) -> None:
        """Spread a payload to all members in the spare room of packets. They get a `BroadcastReceived`.

        Raises:
            PayloadTooLargeError: over `config.broadcast_bytes_max`; nothing was sent.
        """
        self.feed("broadcast", payload)

    def subscribe(self) -> Subscription:
        """Return a stream of events that begins with a `Snapshot`: `async with cluster.subscribe() as events`.

        A reader that leaves more than `config.event_queue_max` events waiting gets `EventsLost(n)` and a fresh `Snapshot`.

        Raises:
            ClosedError: the cluster was closed, or has `SUBSCRIPTIONS_MAX` subscriptions already.
        """
        if len(self._subscriptions) >= SUBSCRIPTIONS_MAX:
            raise ClosedError(f"more than {SUBSCRIPTIONS_MAX} subscriptions: close those no longer read")
        machine = self.machine
        subscription = Subscription(
            machine.members, self._subscriptions.discard, events_max=self.config.event_queue_max
        )
        self._subscriptions.add(subscription)
        early, self._early = self._early, []
        for event in early:
            subscription.put(event)
        return subscription

    def write_recording(self, path: Path) -> None:
        """Write the flight recorder's inputs to a file for `python -m swimcluster.replay`; blocks for the disk.

        The file holds no key; payloads and addresses are in it, so only its owner may read it.

        Raises:
            ConfigError: this cluster was opened with `recorded_inputs_max=0`.
            OSError: the disk refused.
        """
        if self._recorder is None:
            raise ConfigError("nothing was recorded: open the cluster with recorded_inputs_max above 0")
        self._recorder.write(path)

    # Commands that wait -----------------------------------------------------------------------------------------

    async def wait_for(self, predicate: Callable[[tuple[Member, ...]], bool]) -> tuple[Member, ...]:
        """Wait until the live members satisfy `predicate`, asked at each change; returns them.

        Raises:
            ClosedError: the cluster was closed meanwhile.
        """
        await trio.lowlevel.checkpoint()
        while not predicate(members := self.members):
            await self._changes.park()
        return members

    async def join(self, seeds: Sequence[Address | str]) -> Address:
        """Add seeds and try all seeds now; returns the one that let this node in.

        Raises:
            JoinError: none answered in this round; the node goes on trying.
            NameInUseError: raised by `open_cluster`, which ends the body.
        """
        self._last_join = None
        self.feed("join", tuple(_address(seed) for seed in seeds))
        await trio.lowlevel.checkpoint()
        with trio.move_on_after(self.config.exchange_timeout_s + JOIN_GRACE_S):
            while (outcome := self._join_outcome()) is None:
                await self._changes.park()
            if isinstance(outcome, Joined):
                return outcome.seed
        raise JoinError(f"no answer from {', '.join(map(str, seeds))}; this node goes on trying")

    def _join_outcome(self) -> Joined | JoinAttemptFailed | None:
        _ = self.machine  # raises when the cluster was closed meanwhile
        return self._last_join

    async def leave(self) -> LeaveProgress:
        """Tell the others that this node leaves and wait until that is done; idempotent. Cancel to wait no longer.

        Returns:
            how many were told, and of how many.
        """
        self.feed("leave")
        await trio.lowlevel.checkpoint()
        assert self._driver is not None
        while not self.machine.leave_progress.is_done:
            await self._driver.inputs.park()
        return self.machine.leave_progress

    async def request(self, name: str, payload: bytes) -> bytes:
        """Ask a live member something in one exchange and return the answer of its `on_request`.

        Raises:
            PayloadTooLargeError: over `config.request_bytes_max`; nothing was sent.
            ExchangeError: no such live member, or no reply; whether it was handled is then not known.
        """
        request_id: int = self.feed("request", name, payload)
        self._answers[request_id] = None
        try:
            await trio.lowlevel.checkpoint()
            while (answer := self._answers[request_id]) is None:
                await self._changes.park()
                _ = self.machine
        finally:
            del self._answers[request_id]
        if isinstance(answer, RequestFailed):
            raise ExchangeError(f"{name} did not answer: {answer.reason}")
        return answer.payload

    # For open_cluster and the parts of this package ---------------------------------------------------------------

    @property
    def machine(self) -> Swim:
        """The protocol machine, to look at; give it inputs through `feed` only.

        Raises:
            ClosedError: the cluster was closed.
        """
        if self._driver is None or self._closed:
            raise ClosedError("the cluster is closed: it ends with the body of its `async with open_cluster(...)`")
        return self._driver.machine

    def feed(self, call: str, *arguments: Any) -> Any:
        """Give the machine one command and carry out what follows from it.

        Raises:
            ClosedError: the cluster was closed.
        """
        _ = self.machine
        assert self._driver is not None
        return self._driver.feed(call, *arguments)

    async def start(self, metadata: bytes, rng: random.Random, recorded_inputs_max: int) -> None:
        """Make the machine, with what the disk remembers of this name."""
        remembered = Snapshot()
        if self.config.state_dir is not None:
            path = snapshot_path(self.config.state_dir, self.config.cluster, self.config.name)
            self._state = StateFile(path, self._on_state_fault)
            remembered = await self._state.load(self.config.advertise)
        machine = Swim(
            self.config,
            now=self._clock(),
            epoch=next_epoch(remembered.epoch, wall_clock_ms()),
            instance=secrets.token_bytes(8),
            rng=rng,
            metadata=metadata,
        )
        self._remembered = tuple(known.address for known in remembered.addresses)
        if recorded_inputs_max > 0:
            self._recorder = FlightRecorder(machine, inputs_max=recorded_inputs_max)
        self._driver = Driver(
            machine,
            self._transport,
            self._clock,
            self.publish,
            on_request=self._on_request,
            recorder=self._recorder,
            on_crash=self._write_crash,
        )

    async def run_in(self, nursery: trio.Nursery) -> None:
        """Start driving in tasks of `nursery`."""
        assert self._driver is not None
        await nursery.start(self._driver.run)
        nursery.start_soon(self._stop_when_name_is_taken)
        if self._remembered:
            self.feed("learn_addresses", self._remembered)
        if self._state is not None:
            nursery.start_soon(self._state.keep, self.machine)

    async def wait_until_joined(self, wait_s: float) -> None:
        """Wait until a seed let this node in, a round of attempts failed, or `wait_s` passed."""
        assert self._driver is not None
        with trio.move_on_after(wait_s):
            while self.machine.join_status is JoinStatus.JOINING and self._last_join is None:
                await self._driver.inputs.park()
        if self._name_taken is not None:
            await trio.sleep_forever()  # the task that raises NameInUseError cancels this

    async def close(self) -> None:
        """Leave within `config.leave_timeout_s`, write what is to be remembered, end everything."""
        assert self._driver is not None
        with trio.CancelScope(shield=True, deadline=trio.current_time() + self.config.leave_timeout_s):
            if self._driver.is_running and self._name_taken is None:
                await self.leave()
        self._closed = True
        self._driver.stop()
        for subscription in tuple(self._subscriptions):
            subscription.close()
        self._changes.unpark_all()
        if self._state is not None:
            await self._state.store_last(self._driver.machine)

    def publish(self, events: list[Event]) -> None:
        """Hand events to whoever waits for them; never waits itself."""
        for event in events:
            self._log.write(event)
            if isinstance(event, ReplyReceived | RequestFailed):
                if event.request_id in self._answers:
                    self._answers[event.request_id] = event
            elif not isinstance(event, RequestReceived):
                if isinstance(event, Joined | JoinAttemptFailed):
                    self._last_join = event
                elif isinstance(event, NameTaken):
                    self._name_taken = event
                for subscription in self._subscriptions:
                    subscription.put(event)
        self._changes.unpark_all()

    def _on_state_fault(self, fault: str) -> None:
        if self._driver is None:
            self._early.append(SnapshotFault(fault))  # nobody can have subscribed yet
        self.publish([SnapshotFault(fault)])

    def _write_crash(self) -> None:
        """Keep what led to a fault of the machine, where there is a folder for it."""
        if self._recorder is not None and self.config.state_dir is not None:
            path = snapshot_path(self.config.state_dir, self.config.cluster, self.config.name).with_suffix(".flight")
            try:
                self._recorder.write(path)
            except OSError as error:
                logger.error("the inputs that led to this could not be written to %s: %s", path, error)
            else:
                logger.error("the inputs that led to this were written to %s", path)

    async def _stop_when_name_is_taken(self) -> None:
        while self._name_taken is None:
            await self._changes.park()
        raise NameInUseError(
            f"the name {self.config.name!r} is held by a live member at {self._name_taken.holder}: "
            f"stop that one or start this one under another name"
        )


def _address(value: Address | str) -> Address:
    return parse_address(value) if isinstance(value, str) else value

"""What `open_cluster` owns for one member: its machine, driver, disk and readers, from the start to the leave.

`cluster.py` is the face of this to programs.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Sequence
from typing import Any

import trio

from swimcluster.address import Address
from swimcluster.config import Config
from swimcluster.driver import Clock, Driver, RequestHandler
from swimcluster.errors import ClosedError, ExchangeError, JoinError, NameInUseError
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
from swimcluster.recorder import FlightRecorder
from swimcluster.snapshot import Snapshot
from swimcluster.state_file import StateFile, next_epoch, snapshot_path, wall_clock_ms
from swimcluster.subscription import Subscription
from swimcluster.swim import Swim
from swimcluster.transmits import JoinStatus, LeaveProgress
from swimcluster.transport import Transport

SUBSCRIPTIONS_MAX = 1024
"""Subscriptions of one cluster at once."""

logger = logging.getLogger("swimcluster")


class _JoinCall:
    """One call of `join` that waits for its outcome."""

    def __init__(self, seeds: frozenset[Address]) -> None:
        self.seeds = seeds
        self.outcome: Joined | JoinAttemptFailed | None = None

    def hear(self, event: Joined | JoinAttemptFailed) -> None:
        is_mine = (
            event.seed in self.seeds
            if isinstance(event, Joined)
            else event.is_explicit and self.seeds == frozenset(event.seeds)
        )
        if is_mine and self.outcome is None:
            self.outcome = event


class Session:
    """The life of one member in one program."""

    def __init__(self, config: Config, transport: Transport, clock: Clock, on_request: RequestHandler | None) -> None:
        self.config = config
        self.transport = transport
        self.changes = trio.lowlevel.ParkingLot()
        """Woken when something happened that a program may wait for."""
        self.recorder: FlightRecorder | None = None
        self._clock = clock
        self._on_request = on_request
        self._log = EventLog()
        self._driver: Driver | None = None
        self._closed = False
        self._state: StateFile | None = None
        self._remembered: tuple[Address, ...] = ()
        self._subscriptions: set[Subscription] = set()
        self._early: list[Event] = []
        self._answers: dict[int, ReplyReceived | RequestFailed | None] = {}
        self._joins: list[_JoinCall] = []
        self._has_failed_to_join = False
        self._name_taken: NameTaken | None = None
        self._name_is_taken = trio.Event()

    # The machine ------------------------------------------------------------------------------------------------

    @property
    def driver(self) -> Driver:
        """The loops around the machine.

        Raises:
            ClosedError: the cluster was closed.
        """
        if self._driver is None or self._closed:
            raise ClosedError("the cluster is closed: it ends with the body of its `async with open_cluster(...)`")
        return self._driver

    @property
    def machine(self) -> Swim:
        """The protocol machine, to look at; give it inputs through `feed` only.

        Raises:
            ClosedError: the cluster was closed.
        """
        return self.driver.machine

    def feed(self, call: str, *arguments: Any) -> Any:
        """Give the machine one command and carry out what follows from it.

        Raises:
            ClosedError: the cluster was closed.
        """
        return self.driver.feed(call, *arguments)

    # Beginning and end ------------------------------------------------------------------------------------------

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
            self.recorder = FlightRecorder(machine, inputs_max=recorded_inputs_max)
        self._driver = Driver(
            machine,
            self.transport,
            self._clock,
            self._publish,
            on_request=self._on_request,
            recorder=self.recorder,
            on_crash=self._write_crash,
        )

    async def run_in(self, nursery: trio.Nursery) -> None:
        """Start driving in tasks of `nursery`."""
        await nursery.start(self.driver.run)
        nursery.start_soon(self._stop_when_name_is_taken)
        if self._remembered:
            self.feed("learn_addresses", self._remembered)
        if self._state is not None:
            nursery.start_soon(self._state.keep, self.machine)

    async def wait_until_joined(self, wait_s: float) -> None:
        """Wait until a seed let this node in, a round of attempts failed, or `wait_s` passed."""
        with trio.move_on_after(wait_s):
            while self.machine.join_status is JoinStatus.JOINING and not self._has_failed_to_join:
                await self.driver.inputs.park()
        if self._name_taken is not None:
            await trio.sleep_forever()  # the task that raises NameInUseError cancels this

    async def close(self) -> None:
        """Leave within `config.leave_timeout_s`, write what is to be remembered, end everything."""
        driver = self.driver
        with trio.CancelScope(shield=True, deadline=trio.current_time() + self.config.leave_timeout_s):
            if driver.is_running and self._name_taken is None:
                await self.leave()
        self._closed = True
        driver.stop()
        for subscription in tuple(self._subscriptions):
            subscription.close()
        self.changes.unpark_all()
        driver.inputs.unpark_all()
        if self._state is not None:
            await self._state.store_last(driver.machine)

    async def leave(self) -> LeaveProgress:
        """Tell the others and wait until that is done."""
        self.feed("leave")
        await trio.lowlevel.checkpoint()
        while not self.machine.leave_progress.is_done:
            await self.driver.inputs.park()
        return self.machine.leave_progress

    @trio.lowlevel.enable_ki_protection
    async def _stop_when_name_is_taken(self) -> None:
        await self._name_is_taken.wait()
        assert self._name_taken is not None
        raise NameInUseError(
            f"the name {self.config.name!r} is held by a live member at {self._name_taken.holder}: "
            f"stop that one or start this one under another name"
        )

    # Waiting for outcomes ---------------------------------------------------------------------------------------

    async def join(self, seeds: Sequence[Address]) -> Address:
        """Try these seeds now and wait for the outcome.

        Raises:
            JoinError: none let this node in; it goes on trying.
        """
        call = _JoinCall(frozenset(seeds))
        self._joins.append(call)
        try:
            self.feed("join", tuple(seeds))
            await trio.lowlevel.checkpoint()
            while call.outcome is None or self._name_taken is not None:
                await self.changes.park()  # A taken name cancels this: the one error of the body is NameInUseError.
                _ = self.machine  # raises when the cluster was closed meanwhile
        finally:
            self._joins.remove(call)
        if isinstance(call.outcome, Joined):
            return call.outcome.seed
        tried = ", ".join(map(str, seeds)) or "no seed given"
        status = self.machine.join_status
        if status is JoinStatus.LEAVING or status is JoinStatus.LEFT:
            raise JoinError(f"{tried}: this member has left and joins nothing any more; open another cluster")
        after = f"; trying again in {call.outcome.retry_in_s:.1f} s" if seeds else ", as nothing was tried; give one"
        raise JoinError(f"{tried}: nobody let this node in{after}")

    async def request(self, name: str, payload: bytes) -> bytes:
        """Ask a live member something and wait for its answer.

        Raises:
            PayloadTypeError: not bytes; nothing was sent.
            PayloadTooLargeError: over its limit; nothing was sent.
            ExchangeError: nothing was sent, which it says, or no reply; whether it was handled is then not known.
        """
        request_id: int = self.feed("request", name, payload)
        self._answers[request_id] = None
        try:
            await trio.lowlevel.checkpoint()
            while (answer := self._answers[request_id]) is None or self._name_taken is not None:
                await self.changes.park()  # As in `join`.
                _ = self.machine
        finally:
            del self._answers[request_id]
        if isinstance(answer, RequestFailed) and answer.is_unsent:
            raise ExchangeError(f"{name} was not asked: {answer.reason}")
        if isinstance(answer, RequestFailed):
            raise ExchangeError(f"{name} did not answer: {answer.reason}; whether it was handled there is not known")
        return answer.payload

    # Events -----------------------------------------------------------------------------------------------------

    def subscribe(self) -> Subscription:
        """Return a stream of events that begins with a snapshot.

        Raises:
            ClosedError: the cluster was closed, or has `SUBSCRIPTIONS_MAX` subscriptions already.
        """
        machine = self.machine
        if len(self._subscriptions) >= SUBSCRIPTIONS_MAX:
            raise ClosedError(f"more than {SUBSCRIPTIONS_MAX} subscriptions: close those no longer read")
        limit = self.config.event_queue_max
        subscription = Subscription(machine.members, self._subscriptions.discard, events_max=limit)
        self._subscriptions.add(subscription)
        early, self._early = self._early, []
        for event in early:
            subscription.put(event)
        return subscription

    def _publish(self, events: list[Event]) -> None:
        """Hand events to whoever waits for them; never waits itself."""
        for event in events:
            self._log.write(event)
            match event:
                case ReplyReceived() | RequestFailed():
                    if event.request_id in self._answers:
                        self._answers[event.request_id] = event
                    continue
                case RequestReceived():
                    continue  # the driver hands it to the program's handler
                case Joined() | JoinAttemptFailed():
                    self._has_failed_to_join = isinstance(event, JoinAttemptFailed)
                    for call in self._joins:
                        call.hear(event)
                case NameTaken():
                    self._name_taken = event
                    self._name_is_taken.set()
                case _:
                    pass
            for subscription in self._subscriptions:
                subscription.put(event)
        if self.changes:
            self.changes.unpark_all()

    def _on_state_fault(self, fault: str) -> None:
        if self._driver is None:
            self._early.append(SnapshotFault(fault))  # nobody can have subscribed yet
        self._publish([SnapshotFault(fault)])

    def _write_crash(self) -> None:
        """Keep what led to a fault of the machine, where there is a folder for it; say how where there is none."""
        if self.recorder is None or self.config.state_dir is None:
            lacking = "recorded_inputs_max above 0" if self.recorder is None else "a state_dir"
            logger.error("the inputs that led to this are lost: open the cluster with %s to keep them", lacking)
            return
        path = snapshot_path(self.config.state_dir, self.config.cluster, self.config.name).with_suffix(".flight")
        try:
            self.recorder.write(path)
        except OSError as error:
            logger.error("the inputs that led to this could not be written to %s: %s", path, error)  # noqa: TRY400
        else:
            logger.error("the inputs that led to this were written to %s", path)

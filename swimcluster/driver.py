"""Carries one machine's inputs and outputs between a clock, a transport and the program. It decides nothing.

Every input goes through `Driver.feed`, which notes it in the flight recorder, gives it to the machine, hands on the
events, performs the transmits and moves the one timer. What is due by then is done in the same step, so that news
goes out from the task that took it in. Each wait has an owner (the driver's nursery) and a limit. Ctrl-C is kept from
these tasks: it is the program's, which then still says that it leaves.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import trio

from swimcluster.address import Address
from swimcluster.config import NS_PER_S
from swimcluster.errors import ExchangeError, RefusedError, SwimclusterError
from swimcluster.events import Event, RequestReceived
from swimcluster.line_budget import LineBudget
from swimcluster.nursery import open_plain_nursery
from swimcluster.swim import Swim
from swimcluster.transmits import Datagram, Exchange, PendingReply
from swimcluster.transport import Transport

SENDS_IN_FLIGHT_MAX = 256
"""Datagrams waiting for the transport at once; more count as failed sends."""
SEND_DEADLINE_S = 5.0
"""Longest wait of one datagram for the transport; then it counts as a failed send."""
EXCHANGES_IN_FLIGHT_MAX = 64
"""Own exchanges at once; more fail at once, with nothing sent."""
TOO_MANY = f"{EXCHANGES_IN_FLIGHT_MAX} exchanges of this member were under way, the most at once: ask later"
LATE_NS = 100_000_000
"""A timer this late means that the process or the machine stood still: sockets are drained before it runs."""
DATAGRAMS_AT_ONCE_MAX = 64
"""Datagrams taken from the transport before other tasks have their turn."""
DRAINED_DATAGRAMS_MAX = 4096
"""Most datagrams taken before a late timer runs, so that a flood cannot hold back time."""

Clock = Callable[[], int]
Datagrams = Sequence[tuple[Address | None, bytes]]
RequestHandler = Callable[[str, bytes], Awaitable[bytes]]
"""Takes (name of the asking member, payload) and returns the reply's payload."""

logger = logging.getLogger("swimcluster")


class Recorder(Protocol):
    """Where inputs are noted before the machine sees them; `swimcluster.recorder.FlightRecorder` is one."""

    def note(self, now: int, call: str, arguments: tuple[Any, ...]) -> None: ...


class Driver:
    """The loops around one machine."""

    def __init__(
        self,
        machine: Swim,
        transport: Transport,
        clock: Clock,
        on_events: Callable[[list[Event]], None],
        *,
        on_request: RequestHandler | None = None,
        recorder: Recorder | None = None,
        on_crash: Callable[[], None] | None = None,
    ) -> None:
        self.machine = machine
        self.inputs = trio.lowlevel.ParkingLot()
        """Woken after each input."""
        self._transport = transport
        self._send_nowait: Callable[[Address, bytes], bool | None] | None = getattr(transport, "send_nowait", None)
        self._receive_some: Callable[[int], Awaitable[Datagrams]] = getattr(
            transport, "receive_some", self._receive_one
        )
        self._clock = clock
        self._on_events = on_events
        self._on_request = on_request
        self._recorder = recorder
        self._on_crash = on_crash
        self._lines = LineBudget()
        self._requests: dict[int, RequestReceived] = {}
        self._sending = 0
        self._exchanging = 0
        self._datagrams_taken = 0
        self._armed_for: int | None = None
        self._alarm: trio.CancelScope | None = None
        """Rings when the machine is due; None while its task is awake and sees for itself."""
        self._nursery: trio.Nursery | None = None
        self._stop = trio.CancelScope()

    @property
    def is_running(self) -> bool:
        """Whether inputs are being carried."""
        return self._nursery is not None and not self._stop.cancel_called

    @trio.lowlevel.enable_ki_protection
    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Drive until `stop`. Shielded once it has started, so that a cancelled program can still say that it leaves."""
        with self._stop:
            async with open_plain_nursery() as nursery, self._transport.serve(self._answer):
                # Shielded only from here on: trio leaves a start that was cancelled meanwhile waiting for its end.
                await trio.lowlevel.checkpoint_if_cancelled()
                self._stop.shield = True
                self._nursery = nursery
                nursery.start_soon(self._receive)
                nursery.start_soon(self._keep_time)
                self.after_input()
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    self._nursery = None

    def stop(self) -> None:
        """End `run` at once."""
        self._stop.cancel()

    @trio.lowlevel.enable_ki_protection
    def feed(self, call: str, *arguments: Any) -> Any:
        """Give the machine one input or command and carry out what follows from it; returns what the machine did."""
        result = self._give(call, *arguments)
        self.after_input()
        return result

    def _give(self, call: str, *arguments: Any) -> Any:
        now = self._clock()
        if self._recorder is not None:
            self._recorder.note(now, call, arguments)
        try:
            return getattr(self.machine, call)(now, *arguments)
        except SwimclusterError:
            raise
        except Exception:
            # A fault of the machine itself; it must be possible to see what led to it.
            if self._on_crash is not None:
                self._on_crash()
            raise

    def after_input(self) -> None:
        """Hand on events, perform transmits, do what is due, move the timer, wake who waits."""
        self._carry()
        now, deadline = self._clock(), self.machine.next_deadline()
        if deadline is not None and 0 <= now - deadline < LATE_NS:
            self._give("advance")
            self._carry()
            deadline = self.machine.next_deadline()
        if self._alarm is not None and (deadline != self._armed_for or (deadline is not None and deadline <= now)):
            self._armed_for = deadline
            self._alarm.deadline = _ring_at(now, deadline)  # Nobody is woken for that.
        if self.inputs:
            self.inputs.unpark_all()

    def _carry(self) -> None:
        while events := self.machine.events():
            for event in events:
                if isinstance(event, RequestReceived):
                    self._requests[event.request_id] = event
            self._on_events(events)
        for transmit in self.machine.transmits():
            if isinstance(transmit, Datagram):
                self._start_sending(transmit)
            else:
                self._start_exchange(transmit)

    # Time -------------------------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def _keep_time(self) -> None:
        task = trio.lowlevel.current_task()

        def ring(raise_cancel: object) -> trio.lowlevel.Abort:
            # An ordinary wake-up: an exception through the tasks' frames would cost more than the protocol's own work.
            trio.lowlevel.reschedule(task)
            return trio.lowlevel.Abort.FAILED

        while True:
            self._armed_for = deadline = self.machine.next_deadline()
            with trio.CancelScope(deadline=_ring_at(self._clock(), deadline)) as alarm:
                self._alarm = alarm
                await trio.lowlevel.wait_task_rescheduled(ring)
            self._alarm = None
            if not alarm.cancel_called:
                await trio.lowlevel.checkpoint_if_cancelled()  # It was not the alarm that rang.
            now, deadline = self._clock(), self.machine.next_deadline()
            if deadline is not None and deadline <= now:
                if now - deadline >= LATE_NS:
                    await self._drain()
                self.feed("advance")

    async def _drain(self) -> None:
        """Let the receive loop take what the sockets hold: it takes some in each scheduler pass or is idle."""
        idle_passes = 0
        first = self._datagrams_taken
        while idle_passes < 2 and self._datagrams_taken - first < DRAINED_DATAGRAMS_MAX:
            before = self._datagrams_taken
            await trio.lowlevel.checkpoint()
            idle_passes = idle_passes + 1 if self._datagrams_taken == before else 0

    # Datagrams --------------------------------------------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def _receive(self) -> None:
        while True:
            taken = await self._receive_some(DATAGRAMS_AT_ONCE_MAX)
            self._datagrams_taken += len(taken)
            for source, data in taken:
                self._give("receive_datagram", source, data)
            self.after_input()

    async def _receive_one(self, most: int) -> Datagrams:
        return [await self._transport.receive()]

    def _start_sending(self, datagram: Datagram) -> None:
        sent = None if self._send_nowait is None else self._send_nowait(datagram.destination, datagram.data)
        if sent:
            return
        if sent is None and self._nursery is not None and self._sending < SENDS_IN_FLIGHT_MAX:
            self._sending += 1
            self._nursery.start_soon(self._send, datagram)
        else:
            self._fail_later("send_failed", datagram.destination)

    @trio.lowlevel.enable_ki_protection
    async def _send(self, datagram: Datagram) -> None:
        sent = False
        try:
            with trio.move_on_after(SEND_DEADLINE_S):
                sent = await self._transport.send(datagram.destination, datagram.data)
        finally:
            self._sending -= 1
        if not sent:
            self.feed("send_failed", datagram.destination)

    def _fail_later(self, call: str, *arguments: object) -> None:
        """Report a failure as an input of its own, after this one: never from inside the loop over transmits."""
        if self._nursery is not None:
            self._nursery.start_soon(self._report, call, *arguments)

    @trio.lowlevel.enable_ki_protection
    async def _report(self, call: str, *arguments: object) -> None:
        self.feed(call, *arguments)

    # Exchanges --------------------------------------------------------------------------------------------------

    def _start_exchange(self, exchange: Exchange) -> None:
        if self._nursery is not None and self._exchanging < EXCHANGES_IN_FLIGHT_MAX:
            self._exchanging += 1
            self._nursery.start_soon(self._exchange, exchange)
        else:
            self._fail_later("exchange_failed", exchange.id, TOO_MANY)

    @trio.lowlevel.enable_ki_protection
    async def _exchange(self, exchange: Exchange) -> None:
        reply: bytes | None = None
        why: tuple[str, ...] = ()
        try:
            with trio.move_on_after(exchange.timeout_ns / NS_PER_S):
                reply = await self._transport.exchange(exchange.destination, exchange.data)
        except RefusedError as error:
            why = ("", str(error))
        except ExchangeError as error:
            logger.debug("exchange with %s: %s", exchange.destination, error)
        finally:
            self._exchanging -= 1
        if reply is None:
            self.feed("exchange_failed", exchange.id, *why)
        else:
            self.feed("exchange_replied", exchange.id, reply)

    async def _answer(self, source: Address | None, data: bytes) -> bytes | None:
        reply: bytes | PendingReply | None = self.feed("exchange_received", source, data)
        if isinstance(reply, PendingReply):
            return await self._answer_request(reply)
        return reply

    async def _answer_request(self, pending: PendingReply) -> bytes | None:
        """Let the program answer; without a handler, or when it fails, the exchange closes without a reply."""
        request = self._requests.pop(pending.request_id, None)
        if request is None:
            return None
        if self._on_request is None:
            self._tell(logging.WARNING, request.sender, "this member has no on_request")
            return None
        with trio.move_on_after(pending.timeout_ns / NS_PER_S):
            try:
                payload = await self._on_request(request.sender, request.payload)
                answer: bytes = self.feed("respond", pending.request_id, payload)
            except SwimclusterError as error:
                self._tell(logging.WARNING, request.sender, str(error))
            except Exception as error:  # noqa: BLE001 - the program's own; it costs this reply and nothing else
                self._tell(logging.ERROR, request.sender, "on_request failed", error)
            else:
                return answer
        return None

    def _tell(self, level: int, sender: str, why: str, fault: Exception | None = None) -> None:
        """Log a request that got no reply; how many there are is up to those who ask."""
        suffix = self._lines.take(level)
        if suffix is not None:
            logger.log(level, "a request of %s was not answered: %s%s", sender, why, suffix, exc_info=fault)


def _ring_at(now: int, deadline: int | None) -> float:
    """Return trio's time for a deadline of the machine; for ever when there is none."""
    return math.inf if deadline is None else trio.current_time() + (deadline - now) / NS_PER_S

"""The loops around a machine, with a scripted machine and transport: order, limits, faults."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio
import trio.testing
from memory_clusters import virtual_now

from swimcluster import Address, Datagram, Event, Exchange, ExchangeError, Swim
from swimcluster.driver import DRAINED_DATAGRAMS_MAX, EXCHANGES_IN_FLIGHT_MAX, SENDS_IN_FLIGHT_MAX, TOO_MANY, Driver
from swimcluster.transport import ExchangeHandler

SECOND = 1_000_000_000
THERE = Address("there", 1)
pytestmark = pytest.mark.autojump


class ScriptedMachine:
    """Keeps what it was given; hands out what a test put in."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.deadline: int | None = None
        self.to_send: list[Datagram | Exchange] = []
        self.on_call: Callable[[str], None] = lambda call: None

    def __getattr__(self, call: str) -> Callable[..., None]:
        def take(now: int, *arguments: Any) -> None:
            self.calls.append((call, now, *arguments))
            if call == "advance":
                self.deadline = None
            self.on_call(call)

        return take

    def events(self) -> list[Event]:
        return []

    def transmits(self) -> list[Datagram | Exchange]:
        sent, self.to_send = self.to_send, []
        return sent

    def next_deadline(self) -> int | None:
        return self.deadline

    def names(self) -> list[str]:
        return [call[0] for call in self.calls]


class ScriptedTransport:
    """Datagrams a test put in come out; sends and exchanges do what the test says."""

    local_address = Address("here", 1)

    def __init__(self) -> None:
        self.inbox: deque[bytes] = deque()
        self.arrived = trio.Event()
        self.send_takes_s = 0.0
        self.send_result = True
        self.exchange_takes_s = 0.0
        self.sends = 0

    def put(self, *datagrams: bytes) -> None:
        self.inbox.extend(datagrams)
        self.arrived.set()

    async def receive(self) -> tuple[Address | None, bytes]:
        while not self.inbox:
            self.arrived = trio.Event()
            await self.arrived.wait()
        await trio.lowlevel.checkpoint()
        return None, self.inbox.popleft()

    async def send(self, destination: Address, data: bytes) -> bool:
        self.sends += 1
        await trio.sleep(self.send_takes_s)
        return self.send_result

    async def exchange(self, destination: Address, data: bytes) -> bytes:
        await trio.sleep(self.exchange_takes_s)
        if not self.send_result:
            raise ExchangeError("scripted")
        return b"reply"

    @asynccontextmanager
    async def serve(self, handler: ExchangeHandler) -> AsyncIterator[None]:
        yield


@asynccontextmanager
async def driving(
    clock: Callable[[], int] = virtual_now, **options: Any
) -> AsyncIterator[tuple[Driver, ScriptedMachine, ScriptedTransport]]:
    machine, transport = ScriptedMachine(), ScriptedTransport()
    driver = Driver(cast("Swim", machine), transport, clock, lambda events: None, **options)
    async with trio.open_nursery() as nursery:
        await nursery.start(driver.run)
        try:
            yield driver, machine, transport
        finally:
            driver.stop()  # it is shielded: a failed assertion alone would not end it


async def test_the_timer_fires_at_the_deadline_and_an_earlier_one_moves_it() -> None:
    async with driving() as (driver, machine, _):
        start = virtual_now()
        machine.deadline = start + 10 * SECOND
        driver.after_input()
        await trio.sleep(1)
        machine.deadline = start + 3 * SECOND
        driver.after_input()
        await trio.sleep(5)
        assert machine.names() == ["advance"]
        assert machine.calls[0][1] == pytest.approx(start + 3 * SECOND, abs=1000)


async def test_what_an_input_makes_due_is_done_in_the_same_step() -> None:
    async with driving() as (driver, machine, _):

        def answer(call: str) -> None:
            if call == "receive_datagram":
                machine.deadline = virtual_now()
            elif call == "advance":
                machine.to_send = [Datagram(THERE, b"news")]

        machine.on_call = answer
        sent: list[bytes] = []
        driver._send_nowait = lambda destination, data: not sent.append(data)
        driver.feed("receive_datagram", None, b"x")
        assert machine.names() == ["receive_datagram", "advance"]
        assert sent == [b"news"]


async def test_all_datagrams_that_wait_are_taken_before_anything_is_sent() -> None:
    async with driving() as (driver, machine, transport):
        waiting: list[list[tuple[None, bytes]]] = [[(None, b"one"), (None, b"two"), (None, b"three")]]

        async def receive_some(most: int) -> list[tuple[None, bytes]]:
            if not waiting:
                await trio.sleep_forever()
            await trio.lowlevel.checkpoint()
            return waiting.pop()

        def answer(call: str) -> None:
            machine.deadline = virtual_now() if call == "receive_datagram" else None

        machine.on_call = answer
        await trio.testing.wait_all_tasks_blocked()
        driver._receive_some = receive_some  # type: ignore[assignment]
        transport.put(b"zero")  # wakes the loop, which then asks as above
        await trio.testing.wait_all_tasks_blocked()
        assert machine.names() == ["receive_datagram", "advance", *["receive_datagram"] * 3, "advance"]


async def test_a_late_timer_waits_until_the_sockets_are_empty() -> None:
    offset = 0

    def jumping_clock() -> int:
        return virtual_now() + offset

    async with driving(jumping_clock) as (driver, machine, transport):
        machine.deadline = jumping_clock() + SECOND
        driver.after_input()
        await trio.testing.wait_all_tasks_blocked()
        offset = 3600 * SECOND  # the host was suspended; everything that was sent meanwhile sits in the socket
        transport.put(*(b"%d" % number for number in range(500)))
        await trio.sleep(2)
        assert machine.names() == ["receive_datagram"] * 500 + ["advance"]


async def test_an_endless_flood_cannot_hold_back_a_late_timer() -> None:
    async with driving() as (driver, machine, transport):
        machine.on_call = lambda call: transport.put(b"more") if call == "receive_datagram" else None
        machine.deadline = virtual_now() - 3600 * SECOND
        transport.put(b"first")
        driver.after_input()
        while "advance" not in machine.names():
            await trio.sleep(0)
        machine.on_call = lambda call: None
        assert machine.names().count("receive_datagram") <= DRAINED_DATAGRAMS_MAX + 3


async def test_a_failed_send_comes_back_as_an_input_of_its_own() -> None:
    async with driving() as (driver, machine, transport):
        transport.send_result = False
        machine.to_send = [Datagram(THERE, b"x")]
        driver.after_input()
        await trio.testing.wait_all_tasks_blocked()
        assert [call[0::2] for call in machine.calls] == [("send_failed", THERE)]


async def test_sends_that_hang_are_bounded_in_number_and_time_and_count_as_failed() -> None:
    async with driving() as (driver, machine, transport):
        transport.send_takes_s = math.inf
        machine.to_send = [Datagram(THERE, b"x")] * (SENDS_IN_FLIGHT_MAX + 3)
        driver.after_input()
        await trio.testing.wait_all_tasks_blocked()
        assert transport.sends == SENDS_IN_FLIGHT_MAX
        assert machine.names() == ["send_failed"] * 3
        await trio.sleep(60)
        assert machine.names() == ["send_failed"] * (SENDS_IN_FLIGHT_MAX + 3)


async def test_a_transport_that_can_send_at_once_is_asked_first() -> None:
    async with driving() as (driver, machine, transport):
        answers = iter([True, False, None])
        driver._send_nowait = lambda destination, data: next(answers)
        machine.to_send = [Datagram(THERE, b"x")] * 3
        driver.after_input()
        await trio.testing.wait_all_tasks_blocked()
        assert machine.names() == ["send_failed"]  # False is final, None goes the slow way and arrives
        assert transport.sends == 1


async def test_each_exchange_ends_exactly_once_by_reply_failure_time_or_limit() -> None:
    async with driving() as (driver, machine, transport):
        machine.to_send = [Exchange(1, THERE, b"x", SECOND)]
        driver.after_input()
        await trio.testing.wait_all_tasks_blocked()
        transport.send_result = False
        machine.to_send = [Exchange(2, THERE, b"x", SECOND)]
        driver.after_input()
        await trio.testing.wait_all_tasks_blocked()
        transport.exchange_takes_s = math.inf
        machine.to_send = [Exchange(3 + n, THERE, b"x", SECOND) for n in range(EXCHANGES_IN_FLIGHT_MAX + 1)]
        driver.after_input()
        await trio.sleep(2)
        assert [call[2:] for call in machine.calls if len(call) > 3 and call[0] == "exchange_failed"] == [
            (3 + EXCHANGES_IN_FLIGHT_MAX, TOO_MANY)
        ]
        ended = [(call[0], call[2]) for call in machine.calls]
        assert ended[0] == ("exchange_replied", 1)
        assert ended[1] == ("exchange_failed", 2)
        last = 3 + EXCHANGES_IN_FLIGHT_MAX
        assert ended[2] == ("exchange_failed", last), "the one over the limit fails at once"
        assert sorted(number for _, number in ended[3:]) == list(range(3, last))
        assert {name for name, _ in ended[3:]} == {"exchange_failed"}


async def test_nothing_is_left_running_after_stop() -> None:
    with trio.fail_after(1):
        async with driving() as (driver, machine, transport):
            transport.send_takes_s = transport.exchange_takes_s = math.inf
            machine.to_send = [Datagram(THERE, b"x"), Exchange(1, THERE, b"x", 3600 * SECOND)]
            driver.after_input()
            assert driver.is_running
    assert not driver.is_running


async def test_a_fault_of_the_machine_is_reported_and_raised() -> None:
    crashes: list[str] = []

    def fail(call: str) -> None:
        raise RuntimeError(call)

    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="receive_datagram"), flatten_subgroups=True):
        async with driving(on_crash=lambda: crashes.append("crash")) as (_, machine, transport):
            machine.on_call = fail
            transport.put(b"x")
            await trio.sleep_forever()
    assert crashes == ["crash"]

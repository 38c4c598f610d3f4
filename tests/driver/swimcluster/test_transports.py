"""What every transport must do, tried on each of them, and what only sockets can do wrong."""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio
import trio.testing

from saiserve.bench.ports import free_port
from swimcluster.address import Address
from swimcluster.errors import ConfigError, ExchangeError
from swimcluster.transport import Transport, udp
from swimcluster.transport import resolve as resolving
from swimcluster.transport.framing import frame
from swimcluster.transport.memory import MemoryNetwork
from swimcluster.transport.udp import CONNECTIONS_PER_SOURCE_MAX, UdpTransport, open_udp_transport
from swimcluster.transport.udp_datagrams import open_udp_datagrams, socket_address
from tests.fakes.ipv6 import needs_ipv6
from tests.fakes.patience import WAIT_S

LOOPBACK = Address("127.0.0.1", 0)
Pair = Callable[[], AbstractAsyncContextManager[tuple[Transport, Transport]]]


@asynccontextmanager
async def udp_pair(host: str = "127.0.0.1") -> AsyncIterator[tuple[UdpTransport, UdpTransport]]:
    patient = {"exchange_timeout_s": WAIT_S}
    async with (
        open_udp_transport(Address(host, 0), **patient) as one,
        open_udp_transport(Address(host, 0), **patient) as other,
    ):
        yield one, other


@asynccontextmanager
async def udp6_pair() -> AsyncIterator[tuple[Transport, Transport]]:
    async with udp_pair("::1") as pair:
        yield pair


@asynccontextmanager
async def memory_pair() -> AsyncIterator[tuple[Transport, Transport]]:
    network = MemoryNetwork()
    async with network.open_transport(Address("a", 0)) as one, network.open_transport(Address("b", 0)) as other:
        yield one, other


@pytest.fixture(
    params=[udp_pair, pytest.param(udp6_pair, marks=needs_ipv6), memory_pair], ids=["udp", "udp6", "memory"]
)
def pair(request: pytest.FixtureRequest) -> Pair:
    return request.param


async def shout(source: Address | None, data: bytes) -> bytes | None:
    return data.upper()


async def test_a_datagram_arrives_with_the_address_it_came_from(pair: Pair) -> None:
    async with pair() as (one, other):
        assert await one.send(other.local_address, b"hello")
        with trio.fail_after(WAIT_S):
            assert await other.receive() == (one.local_address, b"hello")


async def test_an_exchange_brings_the_reply(pair: Pair) -> None:
    async with pair() as (one, other), other.serve(shout):
        assert await one.exchange(other.local_address, b"question" * 30_000) == b"QUESTION" * 30_000


async def test_an_exchange_that_is_refused_is_an_exchange_error(pair: Pair) -> None:
    async def refuse(source: Address | None, data: bytes) -> bytes | None:
        return None

    async with pair() as (one, other), other.serve(refuse):
        with pytest.raises(ExchangeError):
            await one.exchange(other.local_address, b"question")


async def test_many_exchanges_at_once_get_each_their_own_reply(pair: Pair) -> None:
    replies: dict[int, bytes] = {}

    async with pair() as (one, other), other.serve(shout):

        async def ask(number: int) -> None:
            replies[number] = await one.exchange(other.local_address, b"q%d" % number)

        async with trio.open_nursery() as nursery:
            for number in range(CONNECTIONS_PER_SOURCE_MAX):
                nursery.start_soon(ask, number)
    assert replies == {number: b"Q%d" % number for number in range(CONNECTIONS_PER_SOURCE_MAX)}


async def test_serving_may_end_and_begin_again(pair: Pair) -> None:
    async with pair() as (one, other):
        for _ in range(2):
            async with other.serve(shout):
                assert await one.exchange(other.local_address, b"a") == b"A"


async def test_an_error_of_the_body_leaves_serve_as_it_is(pair: Pair) -> None:
    async with pair() as (_, other):
        with pytest.raises(ZeroDivisionError):
            async with other.serve(shout):
                raise ZeroDivisionError


async def test_port_zero_takes_one_number_for_udp_and_tcp() -> None:
    async with open_udp_transport(LOOPBACK) as transport:
        port = transport.local_address.port
        assert port != 0
        assert transport._tcp.getsockname()[1] == transport._sock.getsockname()[1] == port


async def test_a_port_whose_udp_half_is_taken_is_a_config_error_that_names_it() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        address = Address("127.0.0.1", free_port())  # its TCP half is nobody's
        taken.bind((address.host, address.port))
        with pytest.raises(ConfigError, match=str(address)):
            async with open_udp_transport(address):
                pass
    async with open_udp_transport(address):  # nothing of the failed attempt still holds the TCP half
        pass


@needs_ipv6
@pytest.mark.parametrize("host", ["", "::"])
async def test_a_dual_stack_transport_speaks_ipv4_and_ipv6_and_names_each_as_users_do(host: str) -> None:
    async with (
        open_udp_transport(Address(host, 0)) as both,
        open_udp_transport(LOOPBACK) as four,
        open_udp_transport(Address("::1", 0)) as six,
        both.serve(shout),
    ):
        port = both.local_address.port
        for single, literal in ((four, "127.0.0.1"), (six, "::1")):
            assert await single.send(Address(literal, port), b"hi")
            with trio.fail_after(WAIT_S):
                assert await both.receive() == (single.local_address, b"hi")
            assert await both.send(single.local_address, b"ho")
            with trio.fail_after(WAIT_S):
                assert await single.receive() == (Address(literal, port), b"ho")
            assert await single.exchange(Address(literal, port), b"x") == b"X"


async def test_datagrams_alone_share_a_port_number_with_somebody_elses_tcp_server() -> None:
    async with open_udp_transport(LOOPBACK) as other:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
            address = Address("127.0.0.1", free_port())  # its UDP half is nobody's
            server.bind((address.host, address.port))
            server.listen()
            async with open_udp_datagrams(address) as datagrams:
                assert datagrams.local_address == address
                assert datagrams.send_nowait(other.local_address, b"hi")
                with trio.fail_after(WAIT_S):
                    assert await other.receive() == (address, b"hi")
                with pytest.raises(ConfigError, match=str(address)):
                    async with open_udp_datagrams(address):
                        pass


async def test_a_datagram_of_another_family_is_a_failed_send_not_an_error() -> None:
    async with open_udp_transport(LOOPBACK) as four:
        assert not await four.send(Address("::1", 9), b"x")
        assert four.counters.send_errors == 1
        assert not await four.send(Address("127.0.0.1", 9), b"x" * 70_000)
        assert four.counters.send_errors == 2


class FullSocket:
    """A socket in which datagrams wait; loopback itself may deliver them later than `send` returns."""

    def __init__(self, sock: socket.socket, *waiting: bytes) -> None:
        self._sock = sock
        self._waiting = list(waiting)

    def recvfrom_into(self, buffer: memoryview) -> tuple[int, tuple[str, int]]:
        if not self._waiting:
            return self._sock.recvfrom_into(buffer)
        data = self._waiting.pop(0)
        buffer[: len(data)] = data
        return len(data), ("127.0.0.1", 9)

    def fileno(self) -> int:
        return self._sock.fileno()


async def test_what_waits_in_the_socket_is_received_at_once_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async with udp_pair() as (one, other):
        there = other.local_address
        await one.send(there, b"wakes it")
        with trio.fail_after(WAIT_S), monkeypatch.context() as full:
            await trio.lowlevel.wait_readable(other._sock)
            full.setattr(other, "_sock", FullSocket(other._sock, b"0", b"1", b"2", b"3"))
            first = await other.receive_some(3)
            rest = await other.receive_some(3)
            await one.send(there, b"late")
            assert await other.receive_some(3) == [(one.local_address, b"late")]
        assert [data for _, data in first] == [b"0", b"1", b"2"]
        assert [data for _, data in rest] == [b"3", b"wakes it"]


class FailingSocket:
    """A socket whose next receives fail as the kernel's do after an ICMP message or under memory pressure."""

    def __init__(self, sock: socket.socket, errors: list[int]) -> None:
        self._sock = sock
        self._errors = errors

    def recvfrom_into(self, buffer: memoryview) -> tuple[int, tuple[str, int]]:
        if self._errors:
            raise OSError(self._errors.pop(0), "scripted")
        return self._sock.recvfrom_into(buffer)

    def fileno(self) -> int:
        return self._sock.fileno()

    def getsockname(self) -> tuple[str, int]:
        return self._sock.getsockname()


async def test_a_socket_error_is_counted_and_the_next_datagram_is_received(monkeypatch: pytest.MonkeyPatch) -> None:
    async with udp_pair() as (one, other):
        errors = [errno.ECONNREFUSED, errno.ENOBUFS, errno.EHOSTUNREACH]
        monkeypatch.setattr(other, "_sock", FailingSocket(other._sock, errors))
        await one.send(other.local_address, b"still here")
        with trio.fail_after(WAIT_S):
            assert await other.receive() == (one.local_address, b"still here")
        assert other.counters.receive_errors == 3
        monkeypatch.undo()


async def test_receiving_ends_when_the_transport_is_closed() -> None:
    async def receive(transport: UdpTransport) -> None:
        with pytest.raises(trio.ClosedResourceError):
            await transport.receive()

    with trio.fail_after(WAIT_S):
        async with trio.open_nursery() as nursery, open_udp_transport(LOOPBACK) as transport:
            nursery.start_soon(receive, transport)
            await trio.testing.wait_all_tasks_blocked()


async def test_nobody_listening_is_an_exchange_error() -> None:
    async with udp_pair() as (one, other):
        address = other.local_address
        other._tcp.close()
        with pytest.raises(ExchangeError, match=str(address.port)):
            await one.exchange(address, b"anyone?")


async def test_an_announced_length_over_the_limit_is_refused_unread_on_either_side() -> None:
    async def flood(source: Address | None, data: bytes) -> bytes | None:
        return b"x" * 101

    async with (
        open_udp_transport(LOOPBACK, exchange_bytes_max=100) as small,
        open_udp_transport(LOOPBACK, exchange_bytes_max=1000) as large,
        small.serve(shout),
        large.serve(flood),
    ):
        assert await large.exchange(small.local_address, b"y" * 100) == b"Y" * 100
        with pytest.raises(ExchangeError):
            await large.exchange(small.local_address, b"y" * 101)
        assert small.counters.exchanges_broken == 1
        with pytest.raises(ExchangeError, match="limit is 100"):
            await small.exchange(large.local_address, b"y")


async def test_half_open_connections_of_one_host_are_bounded() -> None:
    async with open_udp_transport(LOOPBACK, exchange_timeout_s=WAIT_S) as transport, transport.serve(shout):
        port = transport.local_address.port
        hogs = [await trio.open_tcp_stream("127.0.0.1", port) for _ in range(CONNECTIONS_PER_SOURCE_MAX)]
        for hog in hogs:
            await hog.send_all(frame(b"never finished")[:5])
        with trio.fail_after(WAIT_S):
            await until(lambda: transport._answering.total() == CONNECTIONS_PER_SOURCE_MAX)
            late = await trio.open_tcp_stream("127.0.0.1", port)
            assert await ended(late), "the one over the limit is closed at once"
            assert transport.counters.connections_refused == 1
            for stream in (late, *hogs):
                await stream.aclose()
            await until(lambda: transport._answering.total() == 0)


async def test_a_half_open_connection_ends_by_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(udp, "REQUEST_DEADLINE_S", 0.2)
    async with open_udp_transport(LOOPBACK, exchange_timeout_s=2 * WAIT_S) as transport, transport.serve(shout):
        async with await trio.open_tcp_stream("127.0.0.1", transport.local_address.port) as hog:
            await hog.send_all(frame(b"never finished")[:5])
            with trio.fail_after(WAIT_S):
                assert await ended(hog)
        assert transport._answering.total() == 0


async def until(claim: Callable[[], bool]) -> None:
    while not claim():
        await trio.sleep(0.01)


async def ended(stream: trio.SocketStream) -> bool:
    """Whether the other side closed the connection instead of saying something."""
    try:
        return await stream.receive_some(1) == b""
    except trio.BrokenResourceError:
        return True


async def test_a_name_is_resolved_anew_and_exchanges_rotate_over_its_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    async def lookup(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        asked.append(host)
        return [(0, 0, 0, "", (literal, port)) for literal in ("127.0.0.2", "127.0.0.1")]

    monkeypatch.setattr(resolving.trio.socket, "getaddrinfo", lookup)
    async with udp_pair() as (one, other), other.serve(shout):
        seed = Address("seed.example", other.local_address.port)
        for _ in range(3):  # 127.0.0.2 refuses, whichever comes first
            assert await one.exchange(seed, b"a") == b"A"
        assert asked == ["seed.example"] * 3
        assert await one.send(seed, b"x")
        assert await one.send(seed, b"y")
        assert len(asked) == 4  # datagrams share one answer


async def test_an_unknown_name_is_an_exchange_error_and_a_failed_send() -> None:
    async with open_udp_transport(LOOPBACK) as transport:
        nowhere = Address("name.invalid", 1)
        with pytest.raises(ExchangeError, match=r"name\.invalid"):
            await transport.exchange(nowhere, b"x")
        assert not await transport.send(nowhere, b"x")


@pytest.mark.autojump
async def test_memory_cuts_are_per_direction_and_an_exchange_behind_one_waits_until_cancelled() -> None:
    network = MemoryNetwork(delay_s=0.01)
    async with (
        network.open_transport(Address("a", 1)) as one,
        network.open_transport(Address("b", 1)) as other,
        one.serve(shout),
    ):
        network.cut(one.local_address, other.local_address)
        await one.send(other.local_address, b"lost")
        await other.send(one.local_address, b"kept")
        assert await one.receive() == (other.local_address, b"kept")
        with trio.move_on_after(1) as scope:
            await other.receive()
        assert scope.cancelled_caught
        with trio.move_on_after(60) as scope:  # the reply is what the cut swallows
            await other.exchange(one.local_address, b"x")
        assert scope.cancelled_caught
        network.heal()
        assert await other.exchange(one.local_address, b"x") == b"X"


async def test_memory_addresses_are_exclusive() -> None:
    network = MemoryNetwork()
    async with network.open_transport(Address("a", 1)):
        with pytest.raises(ConfigError):
            async with network.open_transport(Address("a", 1)):
                pass


NO_PLACES = ["::1%a..b", "1::%" + "z" * 60, "fe80::1%\u00fc\u20ac", "fe80::1%99999999999999", "a\0b"]
"""What a member may say of itself, or a program of a seed, and no socket takes."""


@pytest.mark.parametrize("host", NO_PLACES)
@pytest.mark.parametrize("bound", ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)])
async def test_an_address_that_cannot_be_is_a_failed_send_and_an_exchange_error(host: str, bound: str) -> None:
    async with open_udp_transport(Address(bound, 0)) as transport:
        assert not await transport.send(Address(host, 9), b"x")
        with pytest.raises(ExchangeError):
            await transport.exchange(Address(host, 9), b"x")


@needs_ipv6
async def test_a_zone_says_through_which_interface_a_datagram_goes() -> None:
    index = socket.if_nametoindex("lo")
    assert socket_address("fe80::1%lo", 9, is_ipv6=True) == ("fe80::1", 9, 0, index)
    assert socket_address("fe80::1%7", 9, is_ipv6=True) == ("fe80::1", 9, 0, 7)
    async with open_udp_datagrams(Address("::1", 0)) as datagrams:
        # Loopback has no such address, and the zone must not be passed over in favour of an interface that may have.
        assert not await datagrams.send(Address("fe80::1%no-such-zone", 9), b"x")
        assert datagrams.counters.send_errors == 1

"""Kept-alive connections: bounded, never left behind."""

from __future__ import annotations

import pytest
import trio
from loopback import http_server, not_found

from saiserve.peers.connections import Connections, LinkError
from swimcluster.address import Address
from tests.fakes.patience import WAIT_S


async def get(connections: Connections, address: Address, bytes_max: int = 1_000) -> bytes:
    async with connections.link(address) as link:
        await link.request("GET", "/", [], b"")
        return await link.body(bytes_max)


async def test_connections_in_use_are_bounded_and_no_place_is_lost() -> None:
    connections = Connections(most=2, connect_s=WAIT_S)
    async with http_server(not_found) as (address, _):
        async with connections.link(address), connections.link(address):
            with pytest.raises(LinkError) as caught:
                await get(connections, address)
            assert not caught.value.sent
        for _ in range(5):
            assert await get(connections, address) == b"the application"
        assert connections.open == 0
        await connections.aclose()


async def test_idle_connections_are_bounded_and_closed_when_the_other_side_goes() -> None:
    connections = Connections(idle_most=3, connect_s=WAIT_S)
    async with http_server(not_found) as (address, stop):
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(get, connections, address)
        assert connections.idle <= 3
        stop()
    with trio.fail_after(WAIT_S):  # loopback itself may be late with the news
        while connections.idle:
            await trio.sleep(0.01)
            connections.sweep()


async def test_looking_through_idle_connections_while_others_take_them_is_no_fault() -> None:
    connections = Connections(connect_s=WAIT_S)
    async with http_server(not_found) as (address, stop):
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(get, connections, address)
        assert connections.idle > 2
        stop()
    connections._swept_at = float("-inf")  # the next link looks through them
    faults: list[LinkError] = []

    async def fail() -> None:
        try:
            await get(connections, address)
        except LinkError as error:
            faults.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(fail)
    assert len(faults) == 6
    assert (connections.open, connections.idle) == (0, 0)


async def test_a_link_left_before_its_reply_was_read_is_closed() -> None:
    connections = Connections(connect_s=WAIT_S)
    async with http_server(not_found) as (address, _):
        async with connections.link(address) as link:
            await link.request("GET", "/", [], b"")
        assert (connections.open, connections.idle) == (0, 0)


async def test_a_reply_over_its_bound_is_an_error_and_closes() -> None:
    connections = Connections(connect_s=WAIT_S)
    async with http_server(not_found) as (address, _):
        with pytest.raises(LinkError, match="more than 3 bytes"):
            await get(connections, address, bytes_max=3)
        assert (connections.open, connections.idle) == (0, 0)


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort"])
async def test_broken_servers_are_link_errors(answer: bytes) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(1_000)
            await stream.send_all(answer)

    connections = Connections(connect_s=WAIT_S)
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, [listener])
        with pytest.raises(LinkError) as caught:
            await get(connections, Address("127.0.0.1", listener.socket.getsockname()[1]))
        assert caught.value.sent
        nursery.cancel_scope.cancel()
    assert (connections.open, connections.idle) == (0, 0)

"""Membership over the node's HTTP port."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx2
import pytest
import trio
from loopback import http_server, not_found

from saiserve import limits
from saiserve.peers.connections import Connections
from saiserve.peers.server import PeerPort
from saiserve.peers.swim_transport import DATAGRAMS_WAITING_MAX, SwimTransport
from swimcluster import Config, JoinAttemptFailed, MemberState, open_cluster
from swimcluster.address import Address
from swimcluster.errors import ExchangeError, RefusedError
from tests.fakes.patience import PATIENT, WAIT_S

KEY = b"a key of sixteen bytes or more"


@asynccontextmanager
async def http_transport(timeout_s: float = WAIT_S) -> AsyncIterator[tuple[SwimTransport, PeerPort]]:
    """A transport whose HTTP side is really bound; its address is known only once the server is up."""
    connections = Connections(connect_s=WAIT_S)
    port = PeerPort(not_found, verifier=None, engine=lambda _: None)
    async with http_server(port) as (address, _):
        transport = SwimTransport(address, connections, timeout_s=timeout_s)
        port._swim = transport
        try:
            yield transport, port
        finally:
            await connections.aclose()


async def echo(source: Address | None, data: bytes) -> bytes | None:
    assert source is not None
    assert source.host == "127.0.0.1"
    return None if data == b"silence" else data[::-1]


async def test_datagrams_and_exchanges_go_over_kept_connections() -> None:
    async with http_transport() as (one, _), http_transport() as (other, _), other.serve(echo):
        for number in range(20):
            assert await one.send(other.local_address, b"datagram %d" % number)
            assert await other.receive() == (None, b"datagram %d" % number)
        assert await one.exchange(other.local_address, b"abc") == b"cba"
        assert await one.exchange(other.local_address, bytes(1_000_000)) == bytes(1_000_000)
        assert one._connections.idle == 1


async def test_an_exchange_without_a_reply_fails_and_the_next_one_works() -> None:
    async with http_transport() as (one, _), http_transport() as (other, _), other.serve(echo):
        with pytest.raises(ExchangeError):
            await one.exchange(other.local_address, b"silence")
        assert await one.exchange(other.local_address, b"ab") == b"ba"


async def test_a_dead_member_is_a_failed_send_and_a_failed_exchange() -> None:
    async with http_transport() as (one, _):
        nobody = Address("127.0.0.1", 1)
        assert not await one.send(nobody, b"x")
        with pytest.raises(ExchangeError):
            await one.exchange(nobody, b"x")
        assert one._connections.open == one._connections.idle == 0


async def test_a_program_without_membership_is_named_in_the_log_once_and_not_said_to_give_no_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with http_transport() as (one, _), http_server(not_found) as (address, _):
        with pytest.raises(RefusedError, match="CLUSTER_SECRET"):
            await one.exchange(address, b"x")
        assert not await one.send(address, b"x")
        config = Config.local(name="one", keys=(KEY,), seeds=(address,), **PATIENT)
        async with open_cluster(config, transport=one) as cluster, cluster.subscribe() as events:
            with trio.fail_after(WAIT_S):
                while not isinstance(await anext(events), JoinAttemptFailed):
                    pass
    lines = [record.getMessage() for record in caplog.records if record.name == "swimcluster"]
    (told,) = [line for line in lines if str(address) in line]
    assert told.startswith(f"{address}: it takes no membership")


async def test_a_member_that_stops_in_between_is_a_failed_send() -> None:
    connections = Connections(connect_s=WAIT_S)
    port = PeerPort(not_found, verifier=None, engine=lambda _: None)
    async with http_transport() as (one, _):
        async with http_server(port) as (address, stop):
            other = SwimTransport(address, connections)
            port._swim = other
            async with other.serve(echo):
                assert await one.send(address, b"x")
                stop()
        assert not await one.send(address, b"x")


async def test_a_member_that_accepts_but_never_answers_is_a_failed_send_in_time() -> None:
    async with http_transport(timeout_s=0.5) as (one, _), trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        host, port = listener.socket.getsockname()[:2]
        nursery.start_soon(trio.serve_listeners, lambda _: trio.sleep_forever(), [listener])
        with trio.fail_after(WAIT_S):
            assert not await one.send(Address(host, port), b"x")
        nursery.cancel_scope.cancel()


async def test_datagrams_nobody_reads_are_dropped_and_counted() -> None:
    async with http_transport() as (one, _), one.serve(echo):
        for _ in range(DATAGRAMS_WAITING_MAX + 3):
            await one.serve_http(b"datagram", b"x")
        assert one.dropped == 3


async def test_a_body_longer_than_any_message_is_refused_while_it_comes() -> None:
    async with http_transport() as (one, port), one.serve(echo):
        headers = {"x-sai-swim": "exchange"}
        sent = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal sent
            while sent < 64 * limits.PEER_SWIM_BODY_BYTES_MAX:
                sent += 65_536
                yield bytes(65_536)

        async with httpx2.AsyncClient(base_url=f"http://{one.local_address}", timeout=WAIT_S) as client:
            long = bytes(limits.PEER_SWIM_BODY_BYTES_MAX)
            assert (await client.post("/cluster/swim", content=long, headers=headers)).content == long
            assert (await client.post("/cluster/swim", content=long + b"x", headers=headers)).status_code == 413
            for kind, length in (("datagram", 1_401), ("", 1), ("other", 1)):
                reply = await client.post("/cluster/swim", content=bytes(length), headers={"x-sai-swim": kind})
                assert reply.status_code == 413, kind
            with contextlib.suppress(httpx2.TransportError):
                await client.post("/cluster/swim", content=endless(), headers=headers)
        assert sent < 16 * limits.PEER_SWIM_BODY_BYTES_MAX
        with trio.fail_after(WAIT_S):
            while port.active_swim:
                await trio.sleep(0.01)


async def test_of_long_messages_only_a_few_are_held_and_short_ones_still_pass() -> None:
    async with http_transport() as (one, port), one.serve(echo), trio.open_nursery() as nursery:
        streams = []
        head = b"POST /cluster/swim HTTP/1.1\r\nHost: n\r\nX-SAI-Swim: exchange\r\nContent-Length: 200000\r\n\r\n"
        for _ in range(limits.PEER_SWIM_LONG_MAX):
            stream = await trio.open_tcp_stream(one.local_address.host, one.local_address.port)
            nursery.start_soon(stream.send_all, head + bytes(150_000))
            streams.append(stream)
        with trio.fail_after(WAIT_S):
            while port._long_swim < limits.PEER_SWIM_LONG_MAX:
                await trio.sleep(0.02)
        async with http_transport() as (other, _):
            assert await other.exchange(one.local_address, bytes(60_000)) == bytes(60_000)
            with pytest.raises(ExchangeError):
                await other.exchange(one.local_address, bytes(100_000))
            for stream in streams:
                await stream.aclose()
            with trio.fail_after(WAIT_S):
                while port._long_swim:
                    await trio.sleep(0.02)
            assert await other.exchange(one.local_address, bytes(100_000)) == bytes(100_000)
        nursery.cancel_scope.cancel()


async def test_three_members_find_each_other_and_miss_the_one_that_goes() -> None:
    async with AsyncExitStack() as stack:
        clusters = []
        first: Address | None = None
        for name in ("one", "two"):
            transport, _ = await stack.enter_async_context(http_transport())
            config = Config.local(name=name, keys=(KEY,), seeds=(first,) if first else (), **PATIENT)
            clusters.append(await stack.enter_async_context(open_cluster(config, transport=transport)))
            first = first or transport.local_address
        async with http_transport() as (transport, _):
            config = Config.local(name="three", keys=(KEY,), seeds=(first,) if first else (), **PATIENT)
            async with open_cluster(config, transport=transport) as third:
                with trio.fail_after(WAIT_S):
                    for cluster in (*clusters, third):
                        await cluster.wait_for(lambda members: len(alive(members)) == 3)
        with trio.fail_after(WAIT_S):
            for cluster in clusters:
                await cluster.wait_for(lambda members: len(alive(members)) == 2)


def alive(members: tuple[object, ...]) -> list[object]:
    return [member for member in members if getattr(member, "state", None) is MemberState.ALIVE]

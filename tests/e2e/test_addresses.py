"""The address a node tells others: usable ones only, of either family, and clashes are told."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from acceptance.cluster import UNHURRIED_S, wait_view
from acceptance.nodes import READY_S, Fleet, Node, fleet, free_port
from acceptance.served import post_served
from saiserve.peers.connections import Connections
from saiserve.peers.swim_transport import SwimTransport
from swimcluster.address import Address, parse_address
from tests.fakes.ipv6 import needs_ipv6

VIEW_S, TOLD_S = UNHURRIED_S, UNHURRIED_S

pytestmark = pytest.mark.slow


async def addresses(node: Node) -> dict[str, str]:
    """Live members and where they are, as a node sees it."""
    return {m["name"]: m["address"] for m in (await node.state())["members"] if m["state"] == "alive"}


async def answers(node: Node, model: str) -> str:
    """Ask a node for a model; the name of the node that served it."""
    async with node.client() as client:
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        reply = await post_served(client, "/v1/chat/completions", body)
        assert reply.status_code == 200, reply.text
        return str(reply.headers.get("x-sai-node", ""))


async def pair(group: Fleet, host: str, reached: str, **environment: str) -> tuple[Node, Node]:
    """Two nodes bound to `host` with a model each, the second joining the first at `reached`."""
    first, second = free_port(), free_port()
    nodes = []
    for name, port, seeds in (("a", first, ""), ("b", second, str(Address(reached, first)))):
        settings = {key: value.format(port=port) for key, value in environment.items()}
        node = group.start(name, f"simulated:of-{name}", port=port, seeds=seeds, host=host, environment=settings)
        node.host = reached
        await node.wait_ready()
        nodes.append(node)
    a, b = nodes
    await wait_view([a, b], {"a", "b"}, VIEW_S)
    return a, b


async def serve_each_other(a: Node, b: Node) -> None:
    """Each answers for the other's model."""
    await answers(a, "of-b")
    await answers(b, "of-a")


@pytest.mark.parametrize("transport", ["tcp", "udp"])
@pytest.mark.parametrize("host", ["0.0.0.0", pytest.param("::", marks=needs_ipv6)])
async def test_a_node_bound_to_every_interface_tells_an_address_that_can_be_reached(host: str, transport: str) -> None:
    async with fleet() as group:
        a, b = await pair(group, host, "127.0.0.1", CLUSTER_ADVERTISE="", CLUSTER_TRANSPORT=transport)
        for node in (a, b):
            for told in (await addresses(node)).values():
                assert not parse_address(told).is_unspecified
        await serve_each_other(a, b)


@needs_ipv6
@pytest.mark.parametrize("transport", ["tcp", "udp"])
async def test_nodes_meet_over_ipv6_and_write_their_addresses_with_brackets(transport: str) -> None:
    async with fleet() as group:
        a, b = await pair(group, "::1", "::1", CLUSTER_TRANSPORT=transport)
        assert await addresses(a) == {"a": f"[::1]:{a.port}", "b": f"[::1]:{b.port}"}
        await serve_each_other(a, b)


@needs_ipv6
async def test_a_host_header_has_an_ipv6_address_in_brackets() -> None:
    heard = bytearray()

    async def listen(stream: trio.SocketStream) -> None:
        async for piece in stream:
            heard.extend(piece)

    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="::1")
        nursery.start_soon(trio.serve_listeners, listen, [listener])
        there = Address("::1", listener.socket.getsockname()[1])
        connections = Connections(connect_s=VIEW_S)
        nursery.start_soon(SwimTransport(there, connections, timeout_s=2 * VIEW_S).send, there, b"x")
        with trio.fail_after(VIEW_S):
            while f"host: {there}\r\n".encode() not in bytes(heard).lower():
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    await connections.aclose()


async def test_a_node_may_advertise_a_host_name() -> None:
    async with fleet() as group:
        a, b = await pair(group, "127.0.0.1", "127.0.0.1", CLUSTER_ADVERTISE="localhost:{port}")
        assert await addresses(b) == {"a": f"localhost:{a.port}", "b": f"localhost:{b.port}"}
        await serve_each_other(a, b)


async def test_an_address_of_another_node_is_told_and_no_request_goes_to_the_wrong_one() -> None:
    async with fleet() as group:
        a = await group.start_ready("a", "simulated:of-a", seeds="")
        wrong = await group.start_ready("w", "simulated:of-w", environment={"CLUSTER_ADVERTISE": a.address})
        c = await group.start_ready("c", "simulated:of-c", seeds=a.address)
        await wait_view([a, c], {"a", "c"}, VIEW_S)
        with trio.fail_after(TOLD_S):
            while f"w advertises {a.address}, where a answers: mend w's address" not in wrong.log_text():
                await trio.sleep(0.1)
            while f"w advertises {a.address}" not in a.log_text() + c.log_text():
                await trio.sleep(0.1)
        await trio.sleep(5)  # what is not to happen has had its time
        assert "two live processes claim" not in a.log_text() + c.log_text() + wrong.log_text()
        await wait_view([a, c], {"a", "c"}, VIEW_S)
        with trio.fail_after(VIEW_S):
            while await served_model(wrong, "of-a") != 200:
                await trio.sleep(0.2)
        assert await served_model(wrong, "of-w") == 200
        assert await served_model(a, "of-w") == await served_model(c, "of-w") == 404
        assert await served_model(a, "of-c") == await served_model(c, "of-a") == 200
        assert a.log_text().count("advertises") + c.log_text().count("advertises") < 10


async def served_model(node: Node, model: str) -> int:
    """The status a node answers with when asked for a model."""
    async with node.client() as client:
        body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        return int((await post_served(client, "/v1/chat/completions", body)).status_code)


@pytest.mark.parametrize("advertise", ["0.0.0.0:8080", "127.0.0.1:0", "[::]:8080"])
async def test_an_address_nobody_can_connect_to_is_refused_at_the_start(advertise: str) -> None:
    async with fleet() as group:
        node = group.start("a", "none", seeds="", environment={"CLUSTER_ADVERTISE": advertise})
        with trio.fail_after(READY_S):
            code = await trio.to_thread.run_sync(node.process.wait)
        assert code == 2
        assert "CLUSTER_ADVERTISE" in node.log_text()
        assert "nobody can connect" in node.log_text()

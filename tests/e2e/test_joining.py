"""Names, seeds and returns over real processes: nobody stays alone, nobody is shown twice."""

from __future__ import annotations

import pytest
import trio

from acceptance.cluster import wait_view
from acceptance.nodes import Fleet, Node, fleet, free_port

SIM = "simulated:sim"
ALONE_S = 10.0
"""A node whose seeds do not answer serves its own model within this."""
RETRY_S = 20.0
"""Longest seed retry with jitter, and the time to tell everybody."""


async def serves_alone(group: Fleet, seeds: str) -> Node:
    started = trio.current_time()
    node = group.start("b", SIM, seeds=seeds)
    await node.wait_ready(ALONE_S)
    assert trio.current_time() - started < ALONE_S
    async with node.client() as client:
        body = {"model": "sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    return node


@pytest.mark.slow
async def test_a_node_whose_seed_is_down_serves_alone_and_joins_when_it_comes() -> None:
    async with fleet() as group:
        port = free_port()
        b = await serves_alone(group, f"127.0.0.1:{port}")
        assert "no answer from" in b.log_text()
        a = await group.start_ready("a", "none", seeds="", port=port)
        await wait_view([a, b], {"a", "b"}, RETRY_S)


@pytest.mark.slow
async def test_a_node_that_seeds_itself_is_no_second_member() -> None:
    async with fleet() as group:
        port = free_port()
        a = await group.start_ready("a", "none", seeds=f"127.0.0.1:{port}", port=port)
        b = await group.start_ready("b", SIM, seeds=f"{a.address}")
        await wait_view([a, b], {"a", "b"}, 5)
        assert len((await a.state())["members"]) == 2


@pytest.mark.slow
async def test_a_seed_name_that_does_not_resolve_holds_nobody_up() -> None:
    async with fleet() as group:
        a = await group.start_ready("a", "none", seeds="")
        b = await serves_alone(group, f"no-such-host.invalid:8081,{a.address}")
        await wait_view([a, b], {"a", "b"}, RETRY_S)


@pytest.mark.slow
async def test_a_seed_that_accepts_and_never_answers_holds_nobody_up() -> None:
    async with fleet() as group, trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")

        async def hold(stream: trio.SocketStream) -> None:
            await trio.sleep_forever()

        nursery.start_soon(trio.serve_listeners, hold, [listener])
        mute = f"127.0.0.1:{listener.socket.getsockname()[1]}"
        a = await group.start_ready("a", "none", seeds="")
        b = await serves_alone(group, f"{mute},{a.address}")
        await wait_view([a, b], {"a", "b"}, RETRY_S)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_node_back_on_its_port_within_a_second_shows_its_new_models() -> None:
    async with fleet() as group:
        a = await group.start_ready("a", "none", seeds="")
        b = await group.start_ready("b", SIM)
        await wait_view([a, b], {"a", "b"}, 10)
        b.kill()
        b = await group.start_ready("b", "simulated:other", port=b.port)
        await wait_view([a, b], {"a", "b"}, 10)
        members = [m for m in (await a.state())["members"] if m["name"] == "b"]
        assert [[model["id"] for model in member["models"]] for member in members] == [["other"]]
        async with a.client() as client:
            body = {"model": "other", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200


@pytest.mark.slow
async def test_a_node_that_left_comes_back_elsewhere_at_once() -> None:
    async with fleet() as group:
        a = await group.start_ready("a", "none", seeds="")
        b = await group.start_ready("b", SIM)
        await wait_view([a, b], {"a", "b"}, 10)
        assert await b.stop() == 0
        states = {m["name"]: m["state"] for m in (await a.state())["members"]}
        assert states["b"] == "left"
        b = await group.start_ready("b", SIM)
        await wait_view([a, b], {"a", "b"}, 5)


@pytest.mark.slow
async def test_all_nodes_restarted_together_find_each_other_again() -> None:
    async with fleet() as group:
        ports = [free_port() for _ in range(3)]
        names = ("a", "b", "c")
        addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
        for _ in range(3):
            nodes = [group.start(n, SIM, port=p, seeds=addresses) for n, p in zip(names, ports, strict=True)]
            for node in nodes:
                await node.wait_ready()
            await wait_view(nodes, set(names), RETRY_S)
            for node in nodes:
                node.kill()


@pytest.mark.slow
async def test_membership_over_udp_finds_kills_and_returns() -> None:
    async with fleet() as group:
        udp = {"CLUSTER_TRANSPORT": "udp"}
        a = await group.start_ready("a", "none", seeds="", environment=udp)
        b = await group.start_ready("b", SIM, environment=udp)
        await wait_view([a, b], {"a", "b"}, 10)
        async with a.client() as client:
            body = {"model": "sim", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
            assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        b.kill()
        b = await group.start_ready("b", SIM, environment=udp)
        await wait_view([a, b], {"a", "b"}, 10)

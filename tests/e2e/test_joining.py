"""Names, seeds and returns over real processes: nobody stays alone, nobody is shown twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise

import pytest
import trio

from acceptance.check import LateError, at_best
from acceptance.cluster import UNHURRIED_S, wait_view
from acceptance.nodes import READY_S, Fleet, Node, fleet, free_port
from acceptance.processes import processor_s
from acceptance.served import post_served
from tests.fakes.relay import open_relay

SIM = "simulated:sim"
ALONE_S = 10.0
"""A node whose seeds do not answer serves its own model within this."""
LONGEST_RETRY_S = 120.0
"""The delay between attempts has doubled to its longest by then."""
RETRY_S = UNHURRIED_S
"""Longest seed retry with jitter, and the time to tell everybody."""
DEAD_S = 120.0
HEAL_S = 180.0
"""Two reconnect intervals and a push/pull interval (docs/protocol.md, P21), thrice, for a busy machine."""
BURIED_TIMES = 3
"""A cut goes on for so many times what it took until all were dead to each other."""
RESTARTS = 10
CPU_SHARE_MAX = 0.1
"""Of one processor, for a node that is alone; by processor time, so that a busy machine does not matter."""
END_S = 120.0
"""A process that was refused its name has ended by then, on a busy machine too."""
ALTERNATION_S = 20.0
"""So long at least two processes of one name are watched, in which a view may change so often:"""
CHANGES_MAX = 2


async def status(node: Node, model: str) -> int:
    """What a node answers when asked for a model."""
    async with node.client() as client:
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        return int((await post_served(client, "/v1/chat/completions", body)).status_code)


async def serves(node: Node, model: str) -> None:
    """Wait until a node answers for a model: who is alive is known a moment before what it serves."""
    with trio.fail_after(RETRY_S):
        while await status(node, model) != 200:
            await trio.sleep(0.2)


async def where(node: Node, name: str) -> list[tuple[str, str]]:
    """State and address of each member of a name, as a node sees them."""
    return [(m["state"], m["address"]) for m in (await node.state())["members"] if m["name"] == name]


async def serves_alone(group: Fleet, seeds: str) -> Node:
    """Start a node b whose seeds do not answer; it serves its own model all the same."""
    return await at_best(partial(_serves_alone, group, seeds))


async def _serves_alone(group: Fleet, seeds: str) -> Node:
    node = group.start("b", SIM, seeds=seeds)
    with trio.fail_after(READY_S):
        while not await node.listens():  # until then the machine decides how long it takes
            await trio.sleep(0.02)
    began = trio.current_time()
    await node.wait_ready()
    took = trio.current_time() - began
    print(f"serves {took:.1f} s after its port was open, seeds {seeds}")
    assert await status(node, "sim") == 200
    if took >= ALONE_S:
        await node.stop()
        raise LateError(f"it served {took:.1f} s after its port was open")
    return node


@asynccontextmanager
async def once_each(*viewers: Node) -> AsyncIterator[None]:
    """No view sampled within the block shows a name twice."""
    samples = 0

    async def look() -> None:
        nonlocal samples
        while True:
            for node in viewers:
                if node.process.poll() is None:
                    names = [member["name"] for member in (await node.state())["members"]]
                    assert len(names) == len(set(names)), names
                    samples += 1
            await trio.sleep(0.1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        yield
        nursery.cancel_scope.cancel()
    assert samples


@pytest.mark.slow
async def test_a_node_whose_seed_is_down_serves_alone_and_joins_when_it_comes() -> None:
    async with fleet() as group:
        port = free_port()
        b = await serves_alone(group, f"127.0.0.1:{port}")
        before, began = processor_s(b.process.pid), trio.current_time()
        with trio.fail_after(LONGEST_RETRY_S):
            while f"no answer from 127.0.0.1:{port}; trying again in 15.0 s" not in b.log_text():
                await trio.sleep(0.2)
        share = (processor_s(b.process.pid) - before) / (trio.current_time() - began)
        print(f"alone for {trio.current_time() - began:.0f} s at {share:.1%} of a processor")
        assert share < CPU_SHARE_MAX
        a = await group.start_ready("a", "none", seeds="", port=port)
        print(f"one view {await wait_view([a, b], {'a', 'b'}, RETRY_S):.1f} s after the seed was ready")


@pytest.mark.slow
async def test_a_node_that_seeds_itself_is_no_second_member() -> None:
    async with fleet() as group:
        port = free_port()
        a = await group.start_ready("a", "none", seeds=f"127.0.0.1:{port}", port=port)
        b = await group.start_ready("b", SIM, seeds=f"{a.address}")
        await wait_view([a, b], {"a", "b"}, RETRY_S)
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


async def sees(node: Node, other: Node, state: str) -> None:
    """Wait until a node sees another, once, in this state and where it is or was."""
    with trio.fail_after(RETRY_S):
        while await where(node, other.name) != [(state, other.address)]:
            await trio.sleep(0.1)


async def cut_off(nodes: list[Node]) -> None:
    """Wait until each node has buried all others."""
    with trio.fail_after(DEAD_S):
        for node in nodes:
            while {m["state"] for m in (await node.state())["members"] if m["name"] != node.name} != {"dead"}:
                await trio.sleep(0.2)


@pytest.mark.slow
async def test_nodes_that_all_buried_each_other_rest_alone_and_are_one_cluster_after_the_cut() -> None:
    async with fleet() as group, trio.open_nursery() as nursery:
        relays = [await open_relay(nursery, free_port()) for _ in range(3)]
        nodes: list[Node] = []
        for name, relay in zip("abc", relays, strict=True):
            settings = {"CLUSTER_TRANSPORT": "udp", "CLUSTER_ADVERTISE": relay.address}
            seeds = relays[0].address if nodes else ""
            options = {"port": relay.behind, "seeds": seeds, "environment": settings}
            nodes.append(await group.start_ready(name, f"simulated:of-{name}", **options))
        await wait_view(nodes, set("abc"), RETRY_S)
        for relay in relays:
            relay.cut()
        began = trio.current_time()
        await cut_off(nodes)
        alone_s = max(BURIED_TIMES * (trio.current_time() - began), 20.0)
        used = [processor_s(node.process.pid) for node in nodes]
        await trio.sleep(alone_s)
        for node, before in zip(nodes, used, strict=True):
            assert await status(node, f"of-{node.name}") == 200
            assert (processor_s(node.process.pid) - before) / alone_s < CPU_SHARE_MAX, node.name
        for relay in relays:
            relay.mend()
        await wait_view(nodes, set("abc"), HEAL_S)
        await serves(nodes[0], "of-c")
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_node_found_dead_comes_back_elsewhere_with_other_models() -> None:
    async with fleet() as group:
        a = await group.start_ready("a", "none", seeds="")
        b = await group.start_ready("b", SIM)
        c = await group.start_ready("c", "none", seeds=a.address)
        await wait_view([a, b, c], {"a", "b", "c"}, RETRY_S)
        b.kill()
        with trio.fail_after(DEAD_S):
            while [await where(node, "b") for node in (a, c)] != [[("dead", b.address)]] * 2:
                await trio.sleep(0.2)
        async with once_each(a, c):
            b = await group.start_ready("b", "simulated:other")
            await wait_view([a, b, c], {"a", "b", "c"}, RETRY_S)
        for node in (a, b, c):
            await sees(node, b, "alive")
        await serves(a, "other")
        await serves(c, "other")
        assert await status(a, "sim") == 404


@pytest.mark.slow
async def test_a_second_holder_of_a_name_ends_with_a_sentence_and_no_view_alternates() -> None:
    async with fleet() as group:
        a = await group.start_ready("a", "none", seeds="")
        b = await group.start_ready("b", SIM)
        await wait_view([a, b], {"a", "b"}, RETRY_S)
        second = group.start("b", "simulated:other")
        seen: dict[str, list[list[tuple[str, str]]]] = {"a": [], "b": []}
        began = trio.current_time()
        with trio.fail_after(END_S):
            while second.process.poll() is None or trio.current_time() - began < ALTERNATION_S:
                for node in (a, b):
                    # A holder that stood still is suspected and refutes: that is no other holder's turn.
                    seen[node.name].append([(s.replace("suspect", "alive"), at) for s, at in await where(node, "b")])
                await trio.sleep(0.2)
        assert second.process.poll() != 0
        assert "the name 'b' is held by a live member" in second.log_text()
        for views in seen.values():
            assert all(len(view) == 1 for view in views)
            assert sum(x != y for x, y in pairwise(views)) <= CHANGES_MAX
        await sees(a, b, "alive")
        await sees(b, b, "alive")
        await serves(a, "sim")


@pytest.mark.slow
async def test_a_node_back_on_its_port_within_a_second_shows_its_new_models() -> None:
    async with fleet() as group:
        a = await group.start_ready("a", "none", seeds="")
        b = await group.start_ready("b", SIM)
        await wait_view([a, b], {"a", "b"}, RETRY_S)
        b.kill()
        async with once_each(a):
            b = await group.start_ready("b", "simulated:other", port=b.port)
            await wait_view([a, b], {"a", "b"}, RETRY_S)
        members = [m for m in (await a.state())["members"] if m["name"] == "b"]
        assert [[model["id"] for model in member["models"]] for member in members] == [["other"]]
        await serves(a, "other")


@pytest.mark.slow
async def test_a_node_that_left_comes_back_elsewhere_at_once() -> None:
    async with fleet() as group:
        a = await group.start_ready("a", "none", seeds="")
        b = await group.start_ready("b", SIM)
        await wait_view([a, b], {"a", "b"}, RETRY_S)
        assert await b.stop() == 0
        await sees(a, b, "left")
        async with once_each(a):
            b = await group.start_ready("b", "simulated:other")
            await wait_view([a, b], {"a", "b"}, RETRY_S)
        await sees(a, b, "alive")
        await serves(a, "other")


@pytest.mark.slow
async def test_all_nodes_restarted_together_find_each_other_again() -> None:
    async with fleet() as group:
        ports = [free_port() for _ in range(3)]
        names = ("a", "b", "c")
        addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
        for _ in range(RESTARTS):
            models = [f"simulated:of-{name}" for name in names]
            nodes = [group.start(*n, port=p, seeds=addresses) for *n, p in zip(names, models, ports, strict=True)]
            for node in nodes:
                await node.wait_ready()
            async with once_each(*nodes):
                await wait_view(nodes, set(names), RETRY_S)
            for node in nodes:
                assert len((await node.state())["members"]) == len(names)
            with trio.fail_after(RETRY_S):
                while [await status(node, "of-b") for node in nodes] != [200] * len(nodes):
                    await trio.sleep(0.1)
            for node in nodes:
                node.kill()


@pytest.mark.slow
async def test_membership_over_udp_finds_kills_and_returns() -> None:
    async with fleet() as group:
        udp = {"CLUSTER_TRANSPORT": "udp"}
        a = await group.start_ready("a", "none", seeds="", environment=udp)
        b = await group.start_ready("b", SIM, environment=udp)
        await wait_view([a, b], {"a", "b"}, RETRY_S)
        await serves(a, "sim")
        b.kill()
        b = await group.start_ready("b", SIM, environment=udp)
        await wait_view([a, b], {"a", "b"}, RETRY_S)

"""Recorded and altered membership traffic against real nodes: nobody is added, removed or changed by it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio

from acceptance.cluster import wait_view
from acceptance.nodes import Fleet, Node, fleet, free_port
from tests.fakes.relay import Relay, inject, inject_requests, open_relay

VIEW_S, DEAD_S = 20.0, 60.0
RECORD_S = 8.0
PER_S = 800
"""Below a node's limit for one source, so that each packet is really looked at."""
LOG_LINES_PER_MINUTE = 200

pytestmark = pytest.mark.slow
View = dict[str, tuple[str, str]]


@dataclass
class Watch:
    """Samples what nodes see each fifth of a second."""

    nodes: list[Node]
    seen: set[tuple[str, tuple[tuple[str, tuple[str, str]], ...]]] = field(default_factory=set)

    async def run(self) -> None:
        while True:
            for node in self.nodes:
                self.seen.add((node.name, tuple(sorted((await view(node)).items()))))
            await trio.sleep(0.2)


async def view(node: Node) -> View:
    """Members with their states and addresses, as a node sees them."""
    return {m["name"]: (m["state"], m["address"]) for m in (await node.state())["members"]}


@asynccontextmanager
async def unchanged(*nodes: Node) -> AsyncIterator[None]:
    """No sampled view of these nodes changes within the block, nor in the seconds after it."""
    watch = Watch(list(nodes))
    before = {(node.name, tuple(sorted((await view(node)).items()))) for node in nodes}
    lines = {node.name: node.log_text().count("\n") for node in nodes}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        yield
        await trio.sleep(6)
        nursery.cancel_scope.cancel()
    assert watch.seen == before
    for node in nodes:
        assert node.log_text().count("\n") - lines[node.name] < LOG_LINES_PER_MINUTE, node.log_text()[-2000:]
        assert node.process.poll() is None


async def start(group: Fleet, relay: Relay, name: str, seed: str, **environment: str) -> Node:
    """A node whose address is its relay's."""
    settings = {"CLUSTER_TRANSPORT": "udp", "CLUSTER_ADVERTISE": relay.address, **environment}
    return await group.start_ready(name, f"simulated:of-{name}", port=relay.behind, seeds=seed, environment=settings)


@asynccontextmanager
async def three() -> AsyncIterator[tuple[Fleet, list[Relay], list[Node]]]:
    """Nodes a, b, c behind relays that have recorded their joining and some seconds of their life."""
    async with fleet() as group, trio.open_nursery() as nursery:
        relays = [await open_relay(nursery, free_port()) for _ in range(3)]
        nodes: list[Node] = []
        for name, relay in zip("abc", relays, strict=True):
            nodes.append(await start(group, relay, name, relays[0].address if nodes else ""))
        await wait_view(nodes, set("abc"), VIEW_S)
        await trio.sleep(RECORD_S)
        yield group, relays, nodes
        nursery.cancel_scope.cancel()


async def replay(records: list[Relay], targets: list[Relay], source: str = "127.0.0.1") -> int:
    """Send all that was recorded to each target once more; the number of datagrams."""
    datagrams = [data for record in records for data in record.datagrams]
    requests = [data for record in records for data in record.requests if data.startswith(b"POST /cluster/swim")]
    assert len(datagrams) > 50
    for target in targets:
        await inject(target, datagrams, per_s=PER_S, source=source)
        await inject_requests(target, requests[:20])
    return len(datagrams) * len(targets)


async def test_what_was_recorded_revives_buries_and_moves_nobody() -> None:
    async with three() as (group, relays, (a, b, c)):
        recorded = [Relay(r.behind, r.port, list(r.datagrams), list(r.requests)) for r in relays]
        b.kill()
        with trio.fail_after(DEAD_S):
            while (await view(a))["b"][0] != "dead" or (await view(c))["b"][0] != "dead":
                await trio.sleep(0.2)
        async with unchanged(a, c):
            await replay(recorded, [relays[0], relays[2]])
        again = await start(group, relays[1], "b", relays[0].address)
        await wait_view([a, again, c], set("abc"), VIEW_S)
        await again.stop()
        await trio.sleep(2)
        third = await start(group, relays[1], "b", relays[0].address)
        await wait_view([a, third, c], set("abc"), VIEW_S)
        await trio.sleep(2)
        recorded = [Relay(r.behind, r.port, list(r.datagrams), list(r.requests)) for r in relays]
        async with unchanged(a, third, c):
            await replay(recorded, relays, source="127.0.0.9")


async def test_another_cluster_with_the_same_secret_takes_nothing_of_this_one() -> None:
    async with three() as (group, relays, nodes), trio.open_nursery() as nursery:
        theirs = await open_relay(nursery, free_port())
        other = await start(group, theirs, "x", "", CLUSTER_NAME="another")
        async with unchanged(other, *nodes):
            await replay(relays, [theirs])
        nursery.cancel_scope.cancel()


async def test_datagrams_with_any_byte_changed_are_dropped_and_the_log_stays_short() -> None:
    async with three() as (_, relays, (a, b, c)):
        shortest = sorted(relays[0].datagrams[-300:], key=len)[:50]
        flipped = [
            data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :]
            for data in shortest
            for place in range(len(data))
        ]
        assert len(flipped) > 4_000
        async with unchanged(a, b, c):
            await inject(relays[0], flipped, per_s=PER_S)
        assert max(relay.longest for relay in relays) <= 1_400

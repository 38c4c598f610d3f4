"""Recorded and altered membership traffic against real nodes: nobody is added, removed or changed by it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from membership_views import counted, unchanged, view

from acceptance.cluster import wait_view
from acceptance.nodes import Fleet, Node, fleet, free_port
from tests.fakes.relay import Relay, inject, inject_requests, open_relay

VIEW_S, DEAD_S = 20.0, 60.0
RECORD_S = 8.0
PER_S = 800
"""Below a node's limit for one source, so that each packet is really looked at."""
STRANGER = "127.0.0.9"
"""Not a member's host, so that the members' own traffic is never over the limit for one source."""
CHUNK, COUNTED_S = 200, 60.0
LOST_SHARE = 0.1
"""Of datagrams that nobody waits for, on a busy machine."""
FORGED = ("dropped_malformed", "dropped_version", "dropped_cluster", "dropped_key", "dropped_mac")

pytestmark = pytest.mark.slow


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


async def inject_counted(node: Node, relay: Relay, datagrams: list[bytes], *counters: str) -> None:
    """Send datagrams to a node and see each in one of these counters; some at a time, so that none is lost on the way."""
    before, sent = await counted(node, *counters), 0
    while sent < len(datagrams):
        chunk = datagrams[sent : sent + CHUNK]
        await inject(relay, chunk, per_s=PER_S, source=STRANGER)
        sent += len(chunk)
        with trio.fail_after(COUNTED_S):
            while await counted(node, *counters) - before < sent:
                await trio.sleep(0.1)
    assert await counted(node, *counters) - before == sent
    assert await counted(node, "dropped_rate") == 0


async def replay(records: list[Relay], targets: list[Relay], source: str = "127.0.0.1") -> None:
    """Send all that was recorded to each target once more."""
    datagrams = [data for record in records for data in record.datagrams]
    requests = [data for record in records for data in record.requests if data.startswith(b"POST /cluster/swim")]
    assert len(datagrams) > 50
    for target in targets:
        await inject(target, datagrams, per_s=PER_S, source=source)
        await inject_requests(target, requests[:20])


async def test_what_was_recorded_revives_buries_and_moves_nobody() -> None:
    async with three() as (group, relays, (a, b, c)):
        recorded = [Relay(r.behind, r.port, list(r.datagrams), list(r.requests)) for r in relays]
        b.kill()
        with trio.fail_after(DEAD_S):
            while (await view(a))["b"][0] != "dead" or (await view(c))["b"][0] != "dead":
                await trio.sleep(0.2)
        known = await counted(a, "dropped_replay")
        async with unchanged(a, c):
            await replay(recorded, [relays[0], relays[2]])
        assert await counted(a, "dropped_replay") - known >= len(recorded[0].datagrams) * (1 - LOST_SHARE)
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
            datagrams = [data for relay in relays for data in relay.datagrams]
            await inject_counted(other, theirs, datagrams, "dropped_cluster")
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
            await inject_counted(a, relays[0], flipped, *FORGED)
        assert max(relay.longest for relay in relays) <= 1_400

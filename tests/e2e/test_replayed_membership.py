"""Recorded and altered membership traffic against real nodes: nobody is added, removed or changed by it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from membership_views import again_if_still, counted, unchanged, view

from acceptance.cluster import UNHURRIED_S, wait_view
from acceptance.nodes import Fleet, Node, fleet, free_port
from tests.fakes.relay import Relay, inject, inject_requests, open_relay

VIEW_S, DEAD_S = UNHURRIED_S, UNHURRIED_S
RECORD_S, RECORDED_MIN = 8.0, 60
"""Of their life, and datagrams to each that must have passed then: on a busy machine it may take longer."""
PER_S = 800
"""Below a node's limit for one source, so that each packet is really looked at."""
STRANGER = "127.0.0.9"
"""Not a member's host, so that the members' own traffic is never over the limit for one source."""
CHUNK, COUNTED_S = 100, 120.0
"""So many lie in a socket's buffer while a node stands still; further ones are sent when it has looked at these."""
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
        with trio.fail_after(VIEW_S):
            while min(len(relay.datagrams) for relay in relays) < RECORDED_MIN:
                await trio.sleep(0.1)
        yield group, relays, nodes
        nursery.cancel_scope.cancel()


async def inject_counted(node: Node, relay: Relay, datagrams: list[bytes], *counters: str) -> None:
    """Send datagrams to a node and see each in one of these counters; some at a time, so that none is lost on the way."""
    before = await counted(node, *counters)
    await inject_seen(node, relay, datagrams, *counters)
    assert await counted(node, *counters) - before == len(datagrams)
    assert await counted(node, "dropped_rate") == 0


async def inject_seen(node: Node, relay: Relay, datagrams: list[bytes], *counters: str, source: str = STRANGER) -> None:
    """Send datagrams to a node, some at a time, each time until these counters have grown by as many."""
    for start in range(0, len(datagrams), CHUNK):
        chunk, before = datagrams[start : start + CHUNK], await counted(node, *counters)
        await inject(relay, chunk, per_s=PER_S, source=source)
        with trio.fail_after(COUNTED_S):
            while await counted(node, *counters) - before < len(chunk):
                await trio.sleep(0.1)


async def replay(records: list[Relay], targets: list[tuple[Node, Relay]], source: str = "127.0.0.1") -> None:
    """Send all that was recorded to each target once more."""
    datagrams = [data for record in records for data in record.datagrams]
    requests = [data for record in records for data in record.requests if data.startswith(b"POST /cluster/swim")]
    assert len(datagrams) > 50
    for node, relay in targets:
        await inject_seen(node, relay, datagrams, "datagrams_received", source=source)
        await inject_requests(relay, requests[:20])


@again_if_still
async def test_what_was_recorded_revives_buries_and_moves_nobody() -> None:
    async with three() as (group, relays, (a, b, c)):
        recorded = [Relay(r.behind, r.port, list(r.datagrams), list(r.requests)) for r in relays]
        b.kill()
        with trio.fail_after(DEAD_S):
            while (await view(a))["b"][0] != "dead" or (await view(c))["b"][0] != "dead":
                await trio.sleep(0.2)
        known = await counted(a, "dropped_replay")
        async with unchanged(a, c):
            await replay(recorded, [(a, relays[0]), (c, relays[2])])
            with trio.fail_after(COUNTED_S):  # members' own datagrams were among those that had been received
                while await counted(a, "dropped_replay") - known < len(recorded[0].datagrams):
                    await trio.sleep(0.1)
        again = await start(group, relays[1], "b", relays[0].address)
        await wait_view([a, again, c], set("abc"), VIEW_S)
        await again.stop()
        await trio.sleep(2)
        third = await start(group, relays[1], "b", relays[0].address)
        await wait_view([a, third, c], set("abc"), VIEW_S)
        await trio.sleep(2)
        recorded = [Relay(r.behind, r.port, list(r.datagrams), list(r.requests)) for r in relays]
        async with unchanged(a, third, c):
            await replay(recorded, list(zip((a, third, c), relays, strict=True)), source=STRANGER)


@again_if_still
async def test_another_cluster_with_the_same_secret_takes_nothing_of_this_one() -> None:
    async with three() as (group, relays, nodes), trio.open_nursery() as nursery:
        theirs = await open_relay(nursery, free_port())
        other = await start(group, theirs, "x", "", CLUSTER_NAME="another")
        async with unchanged(other, *nodes):
            await replay(relays, [(other, theirs)])
            datagrams = [data for relay in relays for data in relay.datagrams]
            await inject_counted(other, theirs, datagrams, "dropped_cluster")
        nursery.cancel_scope.cancel()


@again_if_still
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

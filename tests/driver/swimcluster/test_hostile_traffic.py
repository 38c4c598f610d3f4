"""Wrong keys, replays and altered packets against real sockets: no view changes, and the counters tell each input."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio

from saiserve.bench.ports import free_port
from swimcluster import Address, Cluster, Config, open_cluster
from tests.fakes.patience import WAIT_S
from tests.fakes.relay import HOST, Relay, inject, inject_requests, open_relay
from tests.fakes.steady_clock import SteadyClock

pytestmark = pytest.mark.slow

KEY, OTHER_KEY = b"a key of the cluster", b"a key of nobody else"
STRANGER = "127.0.0.9"
"""Not a member's host, so that the members' own traffic is never over the limit for one source."""
PER_S = 1500
RECORDED_MIN = 60
"""Datagrams that passed each relay before they are sent again."""
LOG_LINES_PER_MINUTE = 200
FORGED = ("dropped_malformed", "dropped_version", "dropped_cluster", "dropped_key", "dropped_mac")
QUICK = {"probe_interval_s": 0.2, "probe_timeout_s": 0.1, "gossip_interval_s": 0.05, "source_rate_max": 0}
View = list[tuple[object, ...]]


@asynccontextmanager
async def behind(
    relay: Relay, clock: SteadyClock, name: str, seed: str = "", **settings: object
) -> AsyncIterator[Cluster]:
    """A member whose address is its relay's."""
    keys = {"keys": [KEY]} | QUICK | settings
    bind, seeds = Address(HOST, relay.behind), [seed] if seed else []
    config = Config.lan(name=name, bind=bind, advertise=Address(HOST, relay.port), seeds=seeds, **keys)
    async with open_cluster(config, join_wait_s=1, clock=clock) as cluster:
        yield cluster


@dataclass(frozen=True)
class Three:
    """Members a, b, c that see each other, and what stands before them."""

    nursery: trio.Nursery
    clock: SteadyClock
    relays: list[Relay]
    clusters: list[Cluster]


@asynccontextmanager
async def three() -> AsyncIterator[Three]:
    """Members behind relays that have recorded their traffic."""
    clock = SteadyClock()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(clock.run)
        relays = [await open_relay(nursery, free_port()) for _ in range(3)]
        seed = relays[0].address
        async with (
            behind(relays[0], clock, "a") as a,
            behind(relays[1], clock, "b", seed) as b,
            behind(relays[2], clock, "c", seed) as c,
        ):
            with trio.fail_after(WAIT_S):
                for cluster in (a, b, c):
                    await cluster.wait_for(lambda members: len(members) == 3)
                while min(len(relay.datagrams) for relay in relays) < RECORDED_MIN:
                    await trio.sleep(0.1)
            yield Three(nursery, clock, relays, [a, b, c])
        nursery.cancel_scope.cancel()


def view(cluster: Cluster) -> View:
    """All that traffic must not change."""
    return [(m.name, m.state, m.address, m.instance, m.epoch, m.incarnation, m.metadata) for m in cluster.members]


def counted(cluster: Cluster, names: Sequence[str]) -> int:
    """The sum of these counters."""
    statistics = cluster.statistics()
    return sum(getattr(statistics, name) for name in names)


@asynccontextmanager
async def unchanged(*clusters: Cluster) -> AsyncIterator[None]:
    """No view changes within the block, nor in the second after it, and nothing was dropped unlooked at."""
    before = [view(cluster) for cluster in clusters]
    seen = [before]

    async def sample() -> None:
        while True:
            seen.append([view(cluster) for cluster in clusters])
            await trio.sleep(0.05)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sample)
        yield
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert all(views == before for views in seen)
    assert counted(clusters[0], ["dropped_rate"]) == 0


async def settled(cluster: Cluster, names: Sequence[str], wanted: int) -> None:
    """Wait until these counters show so much, which the sockets' buffers may delay."""
    with trio.move_on_after(WAIT_S):
        while counted(cluster, names) < wanted:
            await trio.sleep(0.02)


async def test_every_replayed_datagram_and_request_is_counted_and_changes_nothing() -> None:
    async with three() as found:
        relays, clusters = found.relays, found.clusters
        for relay, cluster in zip(relays, clusters, strict=True):
            datagrams, requests = list(relay.datagrams), list(relay.requests)
            before = counted(cluster, ["dropped_replay"])
            async with unchanged(*clusters):
                await inject(relay, datagrams, per_s=PER_S, source=STRANGER)
                await inject_requests(relay, requests)
                await settled(cluster, ["dropped_replay"], before + len(datagrams) + len(requests))
            assert counted(cluster, ["dropped_replay"]) - before == len(datagrams) + len(requests)
        assert any(relay.requests for relay in relays)


async def test_every_altered_datagram_is_counted_and_changes_nothing() -> None:
    async with three() as found:
        relays, clusters = found.relays, found.clusters
        shortest = sorted(relays[0].datagrams, key=len)[:20]
        flipped = [d[:place] + bytes([d[place] ^ 0x41]) + d[place + 1 :] for d in shortest for place in range(len(d))]
        assert len(flipped) > 1500
        before = counted(clusters[0], FORGED)
        async with unchanged(*clusters):
            await inject(relays[0], flipped, per_s=PER_S, source=STRANGER)
            await settled(clusters[0], FORGED, before + len(flipped))
        assert counted(clusters[0], FORGED) - before == len(flipped)


async def test_another_cluster_with_the_same_key_counts_each_datagram_of_this_one() -> None:
    async with three() as found:
        relays, clusters = found.relays, found.clusters
        theirs = await open_relay(found.nursery, free_port())
        datagrams = [data for relay in relays for data in relay.datagrams]
        async with behind(theirs, found.clock, "x", cluster="another") as other, unchanged(*clusters, other):
            await inject(theirs, datagrams, per_s=PER_S, source=STRANGER)
            await settled(other, ["dropped_cluster"], len(datagrams))
            assert counted(other, ["dropped_cluster"]) == len(datagrams)


@pytest.mark.parametrize("keys", [{"keys": [OTHER_KEY]}, {"keys": [], "insecure": True}])
async def test_a_node_with_another_key_or_none_is_counted_told_and_let_in_by_nobody(
    keys: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    async with three() as found:
        relays, clusters = found.relays, found.clusters
        theirs = await open_relay(found.nursery, free_port())
        seed, a = relays[0].address, clusters[0]
        async with unchanged(*clusters), behind(theirs, found.clock, "d", seed, seed_retry_max_s=1, **keys) as stranger:
            with trio.fail_after(WAIT_S):  # between two attempts all that began have been counted
                while not stranger.statistics().exchanges_started == counted(a, ["dropped_key"]) > 2:
                    await trio.sleep(0.02)
                while counted(stranger, ["dropped_key"]) < 3:
                    await trio.sleep(0.02)
            assert [member.name for member in stranger.members] == ["d"]
        told = [
            record.getMessage() for record in caplog.records if "give both one secret in common" in record.getMessage()
        ]
        assert any(line.startswith(f"{seed}: ") for line in told)  # the stranger's side, once a minute
        assert any(not line.startswith(f"{seed}: ") for line in told)
        assert len(caplog.records) < LOG_LINES_PER_MINUTE / 10

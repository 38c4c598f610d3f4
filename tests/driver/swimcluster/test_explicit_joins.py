"""`Cluster.join` always ends, with the seed that let this node in or with an error, whatever else goes on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from memory_clusters import MemoryNetwork, member

from swimcluster import Address, Cluster, JoinError
from swimcluster.joining import JOINS_MAX, SEEDS_MAX

pytestmark = pytest.mark.autojump

A, NOBODY = "a:7946", "nobody:7946"


async def outcome(cluster: Cluster, seeds: Sequence[str]) -> str | None:
    """Return who let the node in, None for nobody."""
    with trio.fail_after(60):
        try:
            return str(await cluster.join(seeds))
        except JoinError:
            return None


async def outcomes(cluster: Cluster, *calls: Sequence[str]) -> list[str | None]:
    """Join several ways at once."""
    found: dict[int, str | None] = {}

    async def join(place: int, seeds: Sequence[str]) -> None:
        found[place] = await outcome(cluster, seeds)

    async with trio.open_nursery() as nursery:
        for place, seeds in enumerate(calls):
            nursery.start_soon(join, place, seeds)
    return [found[place] for place in range(len(calls))]


@pytest.mark.parametrize("seeds", [[], ["0.0.0.0:7946"], ["[::]:7946"], [NOBODY, NOBODY]])
async def test_a_join_without_a_seed_to_dial_fails(seeds: list[str]) -> None:
    async with member(MemoryNetwork(), "b") as b:
        assert await outcome(b, seeds) is None


@pytest.mark.parametrize("delay_s", [0.0, 0.05])
async def test_joins_at_the_same_time_end_each_with_its_own_outcome(delay_s: float) -> None:
    network = MemoryNetwork(delay_s=delay_s)
    async with member(network, "a"), member(network, "b") as b:
        calls = [[A], [NOBODY], [A], [NOBODY, A], [], ["nowhere:1", NOBODY]]
        for turn in range(len(calls)):
            turned = calls[turn:] + calls[:turn]
            expected = [A if A in seeds else None for seeds in turned]
            assert await outcomes(b, *turned) == expected


async def test_a_join_under_way_is_not_forgotten_when_another_seed_lets_the_node_in() -> None:
    network = MemoryNetwork(delay_s=0.05)
    async with member(network, "a") as a, member(network, "c"):
        network.cut_both(a.local.address, Address("d", 7946))
        async with member(network, "d", "a", join_wait_s=1, exchange_timeout_s=1) as d:
            await trio.sleep(3)
            found: list[str | None] = []

            async def join() -> None:
                network.delay_s = 0.5  # the own round, which begins meanwhile, is quicker
                found.append(await outcome(d, ["c:7946"]))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(join)
                await trio.sleep(0.1)
                network.delay_s = 0.01
                network.heal()
            assert found == ["c:7946"]


async def test_a_join_ends_when_the_node_leaves_and_fails_afterwards() -> None:
    network = MemoryNetwork()
    async with member(network, "a") as a, member(network, "b") as b:
        network.cut_both(a.local.address, b.local.address)
        async with trio.open_nursery() as nursery:

            async def join() -> None:
                assert await outcome(b, [A]) is None

            nursery.start_soon(join)
            await trio.sleep(0.1)
            await b.leave()
        assert await outcome(b, [A]) is None


async def test_addresses_from_the_disk_make_room_for_a_seed_that_is_asked_for() -> None:
    network = MemoryNetwork()
    async with member(network, "a"), member(network, "b", "nobody") as b:
        b.feed("learn_addresses", [Address("gone", port) for port in range(1, SEEDS_MAX + 10)])
        assert await outcome(b, [A]) == A


async def test_joins_under_way_are_bounded_and_the_oldest_fails() -> None:
    network = MemoryNetwork(delay_s=1)
    async with member(network, "a"), member(network, "b") as b:
        found = await outcomes(b, *[[A, f"n{number}:1"] for number in range(JOINS_MAX + 10)])
        assert found.count(None) == 10
        assert found.count(A) == JOINS_MAX

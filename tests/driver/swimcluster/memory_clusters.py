"""Members on an in-memory network and a virtual clock, for the driver's tests."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from swimcluster import Address, Cluster, Config, Member, MemberState, open_cluster
from swimcluster.transport.memory import MemoryNetwork, MemoryTransport

KEY = b"a key for tests, not for you"


def virtual_now() -> int:
    """Nanoseconds of trio's clock, which `@pytest.mark.autojump` makes jump."""
    return round(trio.current_time() * 1e9)


def config(name: str, *seeds: str, **overrides: Any) -> Config:
    """LAN settings of a member that listens at `name`:7946 on the in-memory network."""
    overrides.setdefault("keys", [KEY])
    return Config.lan(name=name, seeds=[f"{seed}:7946" for seed in seeds], **overrides)


@asynccontextmanager
async def member(
    network: MemoryNetwork, name: str, *seeds: str, host: str = "", **options: Any
) -> AsyncIterator[Cluster]:
    """Open one member; options of `open_cluster` and settings may be mixed."""
    for_open = {
        key: options.pop(key)
        for key in ("metadata", "on_request", "join_wait_s", "recorded_inputs_max")
        if key in options
    }
    async with (
        network.open_transport(Address(host or name, 7946)) as transport,
        open_cluster(
            config(name, *seeds, **options),
            transport=transport,
            clock=virtual_now,
            rng=random.Random(name),
            **for_open,
        ) as cluster,
    ):
        yield cluster


@asynccontextmanager
async def pair(**options: object) -> AsyncIterator[tuple[Cluster, Cluster, MemoryNetwork]]:
    """Two members, a and b, that see each other."""
    network = MemoryNetwork(delay_s=0.001)
    async with member(network, "a", **options) as a, member(network, "b", "a", **options) as b:
        with trio.fail_after(5):
            await a.wait_for(lambda members: len(members) == 2)
            await b.wait_for(lambda members: len(members) == 2)
        yield a, b, network


def names(members: tuple[Member, ...]) -> list[str]:
    return [found.name for found in members]


def state_of(cluster: Cluster, name: str) -> MemberState | None:
    found = cluster.member(name)
    return None if found is None else found.state


__all__ = ["KEY", "MemoryNetwork", "MemoryTransport", "config", "member", "names", "pair", "state_of", "virtual_now"]

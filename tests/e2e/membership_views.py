"""What real nodes see of each other and count, sampled, so that a test can say that nothing changed."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial, wraps

import trio

from acceptance.check import LateError, at_best
from acceptance.nodes import Node, plain_client

LOG_LINES_PER_MINUTE = 200
LATER_S = 6.0
"""Watched after an attack, as news needs its time."""
SLOW_S = 0.25
"""A node whose loop came so late can miss a probe's time-out: it, and not the attack, may bring a suspicion."""
STILL_S = 2.0
"""One that came so late may be buried: half the shortest suspicion (LAN preset). Then all of it is tried again."""

View = dict[str, tuple[str, str]]
Seen = tuple[str, tuple[tuple[str, tuple[str, str]], ...]]


async def view(node: Node) -> View:
    """Members with their states and addresses, as a node sees them."""
    return {m["name"]: (m["state"], m["address"]) for m in (await node.state())["members"]}


async def metrics(node: Node) -> str:
    """All that a node measures, as its operator reads it."""
    async with plain_client(60) as client:
        response = await client.get(f"{node.url}/metrics", headers=node.operator)
        return str(response.raise_for_status().text)


async def counted(node: Node, *names: str) -> int:
    """The sum of these counters of a node's membership."""
    found = dict(re.findall(r"^swimcluster_(\w+)_total (\d+)$", await metrics(node), re.MULTILINE))
    return sum(int(found[name]) for name in names)


async def loop_lag_s(node: Node) -> float:
    """How late a node's event loop was at worst within the last minute."""
    found = re.search(r"^saiserve_loop_lag_max_seconds (\S+)$", await metrics(node), re.MULTILINE)
    assert found
    return float(found[1])


@dataclass
class Watch:
    """Samples what nodes see each fifth of a second."""

    nodes: list[Node]
    seen: set[Seen] = field(default_factory=set)
    late_s: float = 0.0
    """How late this process itself was at worst; what nodes say to each other may pass through it."""

    async def run(self) -> None:
        while True:
            await self.look()
            due = trio.current_time() + 0.2
            await trio.sleep_until(due)
            self.late_s = max(self.late_s, trio.current_time() - due)

    async def look(self) -> None:
        for node in self.nodes:
            self.seen.add((node.name, tuple(sorted((await view(node)).items()))))


def without_suspicions(seen: set[Seen]) -> set[Seen]:
    """The same views as if every suspect were alive."""
    return {(who, tuple((n, (s.replace("suspect", "alive"), a)) for n, (s, a) in members)) for who, members in seen}


def again_if_still(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Run a test again where the machine stood still so that it says nothing."""

    @wraps(test)
    async def run(**arguments: object) -> None:
        await at_best(partial(test, **arguments))

    return run


@asynccontextmanager
async def unchanged(*nodes: Node) -> AsyncIterator[None]:
    """No sampled view of these nodes changes within the block, nor in the seconds after it; nobody is even suspected.

    Where the machine itself stood still, a suspicion tells nothing; its member must have refuted it all the same.

    Raises:
        LateError: it stood still for so long that a member may have been buried for it.
    """
    watch, before = Watch(list(nodes)), Watch(list(nodes))
    await before.look()
    lines = {node.name: node.log_text().count("\n") for node in nodes}
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        yield
        await trio.sleep(LATER_S)
        nursery.cancel_scope.cancel()
    minutes = (trio.current_time() - began) / 60
    if watch.seen != before.seen:
        late_s = {"here": watch.late_s} | {node.name: await loop_lag_s(node) for node in nodes}
        if without_suspicions(watch.seen) != without_suspicions(before.seen):
            is_still = max(late_s.values()) > STILL_S
            raise (LateError if is_still else AssertionError)(f"{late_s} {watch.seen ^ before.seen}")
        assert max(late_s.values()) > SLOW_S, (late_s, watch.seen - before.seen)
    for node in nodes:
        allowed = LOG_LINES_PER_MINUTE * max(1.0, minutes)
        assert node.log_text().count("\n") - lines[node.name] < allowed, node.log_text()[-2000:]
        assert node.process.poll() is None

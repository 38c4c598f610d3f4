"""One cluster of one side from birth to end, measured: `python -m benchmarks.membership.life` prints one JSON object.

A process of its own, so that it can have a loopback of its own (`loopback.py`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import trio

from benchmarks.membership.lines import View, monotonic_ns
from benchmarks.membership.loopback import bring_up, bytes_sent
from benchmarks.membership.node_process import NodeProcess

NS_PER_S = 1_000_000_000
FIRST_PORT = 21_000
SPARES = 3
"""Processes started beforehand for those who return, so that no start of an interpreter is measured."""
SETTLE_S = 2.0
IDLE_AFTER_S = 12.0
"""From the last join until the idle cluster is metered: by then neither side repeats the news of the joins."""
CHANGE_PAUSE_S = 1.0
"""So that a change does not meet the news of the last one."""
START_S = 120.0
DETECTION_S = 45.0
SPREAD_S = 15.0
KILLS = 2


@dataclass
class Life:
    """Seconds, one list entry per observation; None stands for "not within the limit"."""

    join: list[float | None] = field(default_factory=list)
    """From the order to open until each member lists all."""
    kill: list[list[float | None]] = field(default_factory=list)
    """Per kill: from SIGKILL until each other member no longer lists the victim."""
    metadata: list[list[float | None]] = field(default_factory=list)
    """Per change: until each other member has it."""
    moved: list[float | None] = field(default_factory=list)
    """Until all see a killed member back at once on another port, as the new process."""
    moved_after_death: list[float | None] = field(default_factory=list)
    """The same for a member that everyone holds dead."""
    lost_state: list[float | None] = field(default_factory=list)
    """Until all see a killed member back at once on its own port with nothing remembered."""
    cpu_s_per_member_minute: float = 0.0
    bytes_per_member_second: float | None = None


class Experiment:
    """The members of one life and what is done to them."""

    def __init__(self, side: str, members: int, nursery: trio.Nursery) -> None:
        self.changed = trio.lowlevel.ParkingLot()
        self.spares = [NodeProcess(side, self.changed) for _ in range(members + SPARES)]
        self.nodes: list[NodeProcess] = []
        self._ports = iter(range(FIRST_PORT, FIRST_PORT + 1000))
        for node in self.spares:
            nursery.start_soon(node.serve)

    async def until(self, condition: Callable[[], bool], limit_s: float) -> bool:
        """Wait for a condition on what nodes told; False when it did not come true in time."""
        with trio.move_on_after(limit_s):
            while not condition():
                await self.changed.park()
        return condition()

    async def spread(
        self, observers: Sequence[NodeProcess], since: int, predicate: Callable[[View], bool], limit_s: float
    ) -> list[float | None]:
        """Return after how many seconds each observer told a view that satisfies the predicate."""
        await self.until(
            lambda: all(node.first_since(since, predicate) is not None for node in observers),
            limit_s,
        )
        firsts = [node.first_since(since, predicate) for node in observers]
        return [None if first is None else (first - since) / NS_PER_S for first in firsts]

    async def start(self, members: int) -> list[float | None]:
        """Open a seed, then all the others at once; returns when each saw all."""
        if not await self.until(lambda: all("ready" in node.heard for node in self.spares), START_S):
            raise RuntimeError(f"the processes did not start within {START_S:g} s")
        seed = self.spares.pop()
        await seed.open("m0", next(self._ports), [], "first")
        if not await self.until(lambda: "open" in seed.heard, START_S):
            raise RuntimeError("the first member did not open")
        self.nodes = [seed, *(self.spares.pop() for _ in range(members - 1))]
        since = monotonic_ns()
        for number, node in enumerate(self.nodes[1:], 1):
            await node.open(f"m{number}", next(self._ports), [seed.address], "first")
        names = {node.name for node in self.nodes}
        times = await self.spread(self.nodes, since, lambda view: view.keys() == names, START_S)
        await self.until(lambda: all("open" in node.heard for node in self.nodes), START_S)
        return times

    async def cpu(self) -> float:
        """Return the processor seconds of all members so far."""
        for node in self.nodes:
            node.heard.pop("cpu", None)
            await node.tell(do="cpu")
        await self.until(lambda: all("cpu" in node.heard for node in self.nodes), START_S)
        return sum(float(node.heard["cpu"]["seconds"]) for node in self.nodes)

    async def load(self, seconds: float) -> tuple[float, float]:
        """Return (processor seconds per member-minute, bytes per member-second) of an idle cluster."""
        before, sent, since = await self.cpu(), bytes_sent(), monotonic_ns()
        await trio.sleep(seconds)
        elapsed, sent = (monotonic_ns() - since) / NS_PER_S, bytes_sent() - sent
        cpu = await self.cpu() - before
        return 60 * cpu / len(self.nodes) / elapsed, sent / len(self.nodes) / elapsed

    async def change_metadata(self, number: int) -> list[float | None]:
        """Let one member change its metadata; returns when each other one had it."""
        node, value = self.nodes[number % len(self.nodes)], f"value {number}"
        since = monotonic_ns()
        await node.tell(do="metadata", value=value)
        others = [other for other in self.nodes if other is not node]
        return await self.spread(others, since, lambda view: view.get(node.name, ("", ""))[1] == value, SPREAD_S)

    async def kill(self) -> tuple[str, list[float | None]]:
        """Kill the last member; returns its name and when each other one held it dead."""
        victim = self.nodes.pop()
        since = monotonic_ns()
        victim.kill()
        return victim.name, await self.spread(self.nodes, since, lambda view: victim.name not in view, DETECTION_S)

    async def bring_back(self, name: str, port: int | None, limit_s: float) -> float | None:
        """Open a spare under a name; returns when everyone saw it, and it everyone. A refused one is ended."""
        node = self.spares.pop()
        since = monotonic_ns()
        await node.open(name, port or next(self._ports), [self.nodes[0].address], "second")
        wanted = (node.address, "second")
        times = await self.spread(self.nodes, since, lambda view: view.get(name) == wanted, limit_s)
        if any(time is None for time in times):
            node.kill()
            return None
        self.nodes.append(node)
        return max(time for time in times if time is not None)

    async def kill_and_bring_back(self, *, same_port: bool, limit_s: float) -> float | None:
        """Kill the last member and open it again at once."""
        victim = self.nodes.pop()
        await victim.end()
        port = int(victim.address.rpartition(":")[2]) if same_port else None
        return await self.bring_back(victim.name, port, limit_s)


async def live(side: str, members: int, steady_s: float, changes: int, patience_s: float) -> Life:
    """Run one life; `patience_s` bounds each wait for a returning member."""
    life = Life()
    async with trio.open_nursery() as nursery:
        cluster = Experiment(side, members, nursery)
        life.join = await cluster.start(members)
        await trio.sleep(IDLE_AFTER_S)
        life.cpu_s_per_member_minute, life.bytes_per_member_second = await cluster.load(steady_s)
        for number in range(changes):
            await trio.sleep(CHANGE_PAUSE_S)
            life.metadata.append(await cluster.change_metadata(number))
        life.lost_state.append(await cluster.kill_and_bring_back(same_port=True, limit_s=patience_s))
        await trio.sleep(SETTLE_S)
        for _ in range(KILLS):
            name, times = await cluster.kill()
            life.kill.append(times)
        life.moved_after_death.append(await cluster.bring_back(name, None, patience_s))
        life.moved.append(await cluster.kill_and_bring_back(same_port=False, limit_s=patience_s))
        nursery.cancel_scope.cancel()
    return life


def main() -> None:
    """Run one life and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", choices=("ours", "theirs"), required=True)
    parser.add_argument("--members", type=int, required=True)
    parser.add_argument("--steady", type=float, required=True)
    parser.add_argument("--changes", type=int, required=True)
    parser.add_argument("--patience", type=float, required=True)
    parser.add_argument("--isolated", action="store_true", help="the network is this process's own")
    parsed = parser.parse_args()
    if parsed.isolated:
        bring_up()
    life = trio.run(live, parsed.side, parsed.members, parsed.steady, parsed.changes, parsed.patience)
    if not parsed.isolated:
        life.bytes_per_member_second = None  # the machine's loopback carries the traffic of others too
    print(json.dumps(asdict(life)))


if __name__ == "__main__":
    main()

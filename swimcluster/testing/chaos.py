"""Random fault schedules, and a run of one: chaos, then calm, with every invariant watched and convergence demanded."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from swimcluster.address import Address
from swimcluster.testing.application import Answers, Ask, Broadcast, Send
from swimcluster.testing.cluster import SimulatedCluster
from swimcluster.testing.coverage import Coverage
from swimcluster.testing.faults import (
    Crash,
    Cut,
    DiskFull,
    Fault,
    Hold,
    Partition,
    Pause,
    Rebind,
    Replay,
    Schedule,
    SendsFail,
    SlowCpu,
    Suspend,
    Weather,
    play,
)
from swimcluster.testing.invariants import Checks
from swimcluster.testing.membership_faults import (
    Leave,
    Readvertise,
    RotateKeys,
    SecondHolder,
    SetMetadata,
    Strangers,
    Twin,
    stop_refused,
)
from swimcluster.testing.network import MILLISECOND, SECOND, Burst, LogNormal, Network, Trouble, Uniform
from swimcluster.testing.randomness import fork
from swimcluster.testing.search import Outcome
from swimcluster.transmits import JoinStatus

TICK_NS = 100 * MILLISECOND
SIZES = (2, 3, 4, 5, 7)
FAULTS_PER_MINUTE = 12
CALM_LIMIT_S = {"lan": 150.0, "local": 60.0}
"""In which the views must become one after the last fault: two reconnect intervals, a push/pull interval and the
longest suspicion of a small cluster, with room for scaled probes."""

Maker = Callable[[random.Random, list[str], int, int], Fault]
"""(rng, names, at_ns, for_ns) → a fault."""


def _some(rng: random.Random, names: list[str]) -> frozenset[str]:
    return frozenset(rng.sample(names, rng.randint(1, max(1, len(names) - 1))))


def _two(rng: random.Random, names: list[str]) -> tuple[str, str]:
    one, other = rng.sample(names, 2)
    return one, other


def _new_address(rng: random.Random) -> Address:
    return Address(f"10.100.{rng.randrange(256)}.{rng.randrange(1, 255)}", 7946)


def _crash(rng: random.Random, names: list[str], at: int, length: int) -> Fault:
    address = _new_address(rng) if rng.random() < 0.3 else None
    return Crash(at, length, rng.choice(names), rng.random() < 0.6, rng.random() < 0.5, address)


def _weather(rng: random.Random, names: list[str], at: int, length: int) -> Fault:
    sources = _some(rng, names) if rng.random() < 0.5 else None
    destinations = _some(rng, names) if rng.random() < 0.5 else None
    kinds: list[dict[str, Any]] = [
        {"loss": rng.choice((0.05, 0.2, 0.5, 0.9))},
        {"burst": Burst(0.02, 0.1)},
        {"latency": Uniform(50 * MILLISECOND, 400 * MILLISECOND)},
        {"latency": LogNormal(20 * MILLISECOND, 1.0)},
        {"duplicate": 0.3, "reorder": 0.3},
        {"reorder": 0.2, "reorder_ns": 2 * SECOND},
        {"corrupt": 0.2},
        {"mtu": rng.choice((300, 576))},
        {"half_open": 0.5},
        {"exchange_delay_ns": rng.choice((200 * MILLISECOND, 3 * SECOND))},
        {"bytes_per_s": rng.choice((300, 2_000))},
    ]
    return Weather(at, length, Trouble(sources, destinations, **rng.choice(kinds)))


def _cut(rng: random.Random, names: list[str], at: int, length: int) -> Fault:
    sources = _some(rng, names) if rng.random() < 0.8 else None
    return Cut(at, length, sources, _some(rng, names), rng.random() < 0.6)


def _second_holder(rng: random.Random, names: list[str], at: int, length: int) -> Fault:
    return SecondHolder(at, length, rng.choice(names), _new_address(rng), rng.random() < 0.5)


def _twin(rng: random.Random, names: list[str], at: int, length: int) -> Fault:
    name, address = rng.choice(names), _new_address(rng)
    return Twin(at, length, name, address if rng.random() < 0.5 else None)


MENU: dict[str, tuple[float, Maker]] = {
    "crash": (5, _crash),
    "leave": (2, lambda rng, names, at, length: Leave(at, length + 6 * SECOND, rng.choice(names))),
    "pause": (3, lambda rng, names, at, length: Pause(at, length, rng.choice(names))),
    "suspend": (2, lambda rng, names, at, length: Suspend(at, 2 * length, rng.choice(names))),
    "hold": (2, lambda rng, names, at, length: Hold(at, length, rng.choice(names))),
    "slow": (
        2,
        lambda rng, names, at, length: SlowCpu(at, length, rng.choice(names), rng.choice((5, 50)) * MILLISECOND),
    ),
    "sends fail": (1, lambda rng, names, at, length: SendsFail(at, length, rng.choice(names))),
    "disk full": (1, lambda rng, names, at, length: DiskFull(at, length, rng.choice(names))),
    "weather": (8, _weather),
    "cut": (4, _cut),
    "partition": (3, lambda rng, names, at, length: Partition(at, length, _some(rng, names))),
    "replay": (2, lambda rng, names, at, length: Replay(at, 100, rng.randrange(1000), rng.random() < 0.5)),
    "rebind": (1, lambda rng, names, at, length: Rebind(at, rng.choice(names), _new_address(rng))),
    "readvertise": (1, lambda rng, names, at, length: Readvertise(at, rng.choice(names), _new_address(rng))),
    "metadata": (3, lambda rng, names, at, length: SetMetadata(at, rng.choice(names), rng.randbytes(8))),
    # Two holders of one name: together as likely as one other. Both draw alike, so neither changes what is drawn beside it.
    "second holder": (0.5, _second_holder),
    "twin": (0.5, _twin),
    "strangers": (
        1,
        lambda rng, names, at, length: Strangers(at, length, _new_address(rng), Address("10.0.0.0", 7946)),
    ),
    "send": (1, lambda rng, names, at, length: Send(at, *_two(rng, names), rng.randbytes(100))),
    "ask": (2, lambda rng, names, at, length: Ask(at, *_two(rng, names), rng.randbytes(100))),
    "broadcast": (2, lambda rng, names, at, length: Broadcast(at, rng.choice(names), rng.randbytes(16))),
    "rotate": (1, lambda rng, names, at, length: RotateKeys(at, length, rng.randbytes(32), _some(rng, names))),
}
"""What chaos is drawn from, with weights."""


def random_schedule(rng: random.Random, names: list[str], *, start_ns: int, length_ns: int) -> Schedule:
    """Faults at random times within `length_ns`, all ended by its end."""
    count = max(1, round(FAULTS_PER_MINUTE * length_ns / SECOND / 60))
    makers = list(MENU.values())
    weights = [weight for weight, _ in makers]
    faults = []
    for _ in range(count):
        maker = rng.choices(makers, weights)[0][1]
        length = int(SECOND * min(60.0, 0.1 + rng.expovariate(1 / 8)))
        length = min(length, length_ns // 3)
        at = start_ns + int(rng.random() * max(1, length_ns - 2 * length - 6 * SECOND))
        faults.append(maker(rng, names, at, length))
    return tuple(sorted(faults, key=lambda fault: fault.at_ns))


class ChaosRun:
    """One seed: a cluster that forms, a schedule of faults, calm, and the judgement."""

    def __init__(self, seed: int, *, ticks: int, schedule: Schedule | None = None, machine: Any = None) -> None:
        rng = fork(seed, "chaos")
        self.seed, self.ticks = seed, ticks
        self.preset = rng.choice(("lan", "local"))
        self.coverage = Coverage()
        options = {} if machine is None else {"machine": machine}
        self.cluster = SimulatedCluster(
            rng.choice(SIZES),
            seed=seed,
            preset=self.preset,
            network=Network(seed=seed, record=True, loss=rng.choice((0.0, 0.01, 0.05))),
            observers=[self.coverage],
            drift_ppm=rng.choice((0, 0, 200)),
            # By name: a first node that loses its disk and moves could be found by nobody otherwise.
            named_seeds=2,
            **options,
        )
        stop_refused(self.cluster.world)
        Answers(self.cluster, lambda asked, asker, payload: payload)
        self.checks = Checks(self.cluster)
        self.names = list(self.cluster.places)
        self.homes = {name: self.cluster.world.nodes[name].address for name in self.names}
        chaos_ns = max(10 * SECOND, ticks * TICK_NS - round(CALM_LIMIT_S[self.preset] * SECOND))
        drawn = random_schedule(rng, self.names, start_ns=3 * SECOND, length_ns=chaos_ns)
        self.schedule = drawn if schedule is None else schedule

    def run(self) -> Outcome:
        """Chaos and calm; every violation, and views that do not become one, are told."""
        cluster, world = self.cluster, self.cluster.world
        try:
            cluster.start_all(within_s=2)
            world.run_until(play(world, self.schedule))
            self._calm()
            if cluster.settle(limit_s=CALM_LIMIT_S[self.preset]) is None:
                differences = "; ".join(cluster.differences(most=4))
                self.checks.report(f"{world.now / SECOND:.3f} s: no agreement after calm: {differences}")
        except Exception as error:  # noqa: BLE001 - a machine that raises is a finding like any other
            notes = "; ".join(getattr(error, "__notes__", ()))
            self.checks.report(f"{world.now / SECOND:.3f} s: {type(error).__name__}: {error} ({notes})")
        counts = self.coverage.with_network(world)
        return Outcome(self.seed, world.digest(), tuple(self.checks.violations), counts)

    def _calm(self) -> None:
        """Mend everything and let everybody run who should."""
        world = self.cluster.world
        world.note("calm")
        world.network.mend()
        for node in world.nodes.values():
            if node.paused:
                world.resume(node)
            if node.held:
                world.release(node)
            node.service_ns, node.send_fails = 0, False
        for name in world.nodes:
            if name not in self.names and world.nodes[name].running:
                world.stop(world.nodes[name])
        for name in self.names:
            machine: Any = world.nodes[name].machine
            leaving = self.cluster.places[name].leaving
            if machine is not None and (leaving or machine.join_status is JoinStatus.NAME_IN_USE):
                self.cluster.stop(name)
            if not world.nodes[name].running:
                self.cluster.start(name)
        # Two hosts were given one address: whoever is not reached there gets back the one it began with.
        for name in self.names:
            if world.network.holder(world.nodes[name].address) != name:
                world.move(world.nodes[name], self.homes[name])
        # Whoever was moved unseen (a NAT) must say so itself: nobody can know it otherwise.
        for name in self.names:
            node = world.nodes[name]
            if self.cluster.machine(name).local.address != node.address:
                self.cluster.call(name, "readvertise", node.address)


def chaos(seed: int, *, ticks: int, schedule: Schedule | None = None) -> Outcome:
    """Run one seed for about `ticks` tenths of virtual seconds."""
    return ChaosRun(seed, ticks=ticks, schedule=schedule).run()

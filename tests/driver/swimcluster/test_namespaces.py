"""Five real nodes on five hosts of their own: what docs/protocol.md promises over a network that cuts and loses.

Their deadlines are real ones. Where this machine itself stood still for longer than they allow, a death tells nothing,
and the test says that it was not run.
"""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import namespaces
import pytest
import transitions
import trio
from member_processes import OVER_HTTP, PROGRAM, Node, Nodes, View, alive

from tests.fakes.patience import WAIT_S

HOSTS = 5
NAMES = "abcde"
EVERYBODY = alive(*NAMES)
SAMPLES_PER_S_MIN = 3
STILL_S = 1.5
"""A process that said nothing for so long may be buried in time: half the shortest suspicion (Local preset)."""

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Kind:
    """How members talk."""

    program: Path
    suspicion_min_s: float


KINDS = {
    "udp": Kind(PROGRAM, 3.0),  # datagrams over UDP, exchanges over TCP, Local preset
    "http": Kind(OVER_HTTP, 4.0),  # everything is a POST to the server's port, LAN preset
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


class StoodStillError(Exception):
    """This machine stood still, so that what was seen tells nothing of the protocol."""


class Stillness:
    """How long this process, which carries all packets, stood still at worst."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def watch(self) -> None:
        while True:
            began = trio.current_time()
            await trio.sleep(0.1)
            self.longest_s = max(self.longest_s, trio.current_time() - began)


ROUTER = Stillness()


def without(found: list[str], nodes: list[Node]) -> None:
    """What was found is nothing, unless the machine stood still."""
    times = [[*node.times, time.monotonic()] for node in nodes if not node.is_put_to_sleep]
    silences = [later - sooner for of_one in times for sooner, later in pairwise(of_one)]
    still_s = max([ROUTER.longest_s, *silences])
    if found and still_s > STILL_S:
        raise StoodStillError(f"this machine stood still for {still_s:.1f} s: {found}")
    assert found == []


@asynccontextmanager
async def running_or_still() -> AsyncIterator[None]:
    """Skips a test on a machine that stood still."""
    try:
        yield
    except BaseExceptionGroup as group:
        still: BaseException | None = group.subgroup(StoodStillError)
        if still is None:
            raise
        while isinstance(still, BaseExceptionGroup):
            still = still.exceptions[0]
        pytest.skip(str(still))


@asynccontextmanager
async def five(kind: Kind) -> AsyncIterator[tuple[list[Node], namespaces.Router]]:
    """Five members that know each other; afterwards all they told is judged."""
    reason = namespaces.why_not()
    if reason:
        pytest.skip(reason)
    async with running_or_still(), namespaces.network(HOSTS) as router, trio.open_nursery() as nursery:
        nodes = Nodes(nursery)
        try:
            started = []
            for number, name in enumerate(NAMES):
                bind = f"{namespaces.host(number)}:7946"
                seeds = () if number == 0 else (f"{namespaces.host(0)}:7946",)
                prefix = ("ip", "netns", "exec", namespaces.namespace(number))
                started.append(await nodes.start(name, seeds=seeds, bind=bind, prefix=prefix, program=kind.program))
                await started[-1].sees(bool)
            await all_see(started, EVERYBODY)
            for node in started:
                node.forget()
            ROUTER.longest_s = 0.0
            nursery.start_soon(ROUTER.watch)
            began = trio.current_time()
            yield started, router
            judge(started, kind, trio.current_time() - began)
        finally:
            await nodes.close()
            nursery.cancel_scope.cancel()


def judge(nodes: list[Node], kind: Kind, seconds: float) -> None:
    """Every sampled transition is one that the protocol promises, and there were enough samples to see them."""
    histories = {node.name: list(zip(node.times, node.history, strict=True)) for node in nodes}
    sampled = sorted(map(len, histories.values()))[1]  # but one, which may have been stopped
    print(f"{sum(map(len, histories.values()))} views; {dict(transitions.count(histories))}")
    few = [f"{sampled} views in {seconds:.0f} s"] if sampled <= SAMPLES_PER_S_MIN * seconds else []
    without([*few, *transitions.faults(histories, suspicion_min_s=kind.suspicion_min_s)], nodes)


async def all_see(nodes: list[Node], claim: Callable[[View], bool], within_s: float = 2 * WAIT_S) -> float:
    took: list[float] = []

    async def wait(node: Node) -> None:
        took.append(await node.sees(claim, within_s))

    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(wait, node)
    return max(took)


def seen(nodes: list[Node], names: str, state: str = "DEAD") -> list[str]:
    """Who of the nodes ever told that it saw one of `names` in `state`, and when: seconds of its own history."""
    return [
        f"{node.name} saw {name} {state} after {at - node.times[0]:.1f} s"
        for node in nodes
        for name in names
        for at in [next((t for t, v in zip(node.times, node.history, strict=True) if is_in(v, name, state)), None)]
        if at is not None
    ]


def is_in(view: View, name: str, state: str) -> bool:
    return view.get(name, {}).get("state") == state


async def test_a_member_that_hears_but_is_not_heard_dies_alone_and_comes_back(kind: Kind) -> None:
    async with five(kind) as (nodes, router):
        healthy = nodes[:4]
        router.cuts = {(4, other) for other in range(4)}
        took = await all_see(healthy, alive(*"abcd"))
        print(f"mute member DEAD everywhere after {took:.1f} s")
        await trio.sleep(5)
        without(seen(healthy, "abcd"), healthy)
        router.heal()
        took = await all_see(nodes, EVERYBODY)
        print(f"whole again {took:.1f} s after the cut was mended")


async def test_one_cut_link_in_one_direction_kills_nobody(kind: Kind) -> None:
    async with five(kind) as (nodes, router):
        router.cuts = {(0, 1)}
        await trio.sleep(25)
        assert router.lost > 10
        without(seen(nodes, NAMES), nodes)
        router.cuts = {(0, 1), (1, 0)}
        await trio.sleep(15)
        without(seen(nodes, NAMES), nodes)


async def test_thirty_percent_loss_everywhere_kills_nobody(kind: Kind) -> None:
    async with five(kind) as (nodes, router):
        router.loss = 0.3
        await trio.sleep(40)
        assert router.lost > 200
        without(seen(nodes, NAMES), nodes)
        router.heal()
        await all_see(nodes, EVERYBODY)


async def test_a_link_slower_than_the_probe_time_out_kills_nobody(kind: Kind) -> None:
    async with five(kind) as (nodes, router):
        for other in range(4):
            router.delays_s |= {(4, other): 0.4, (other, 4): 0.4}
        await trio.sleep(25)
        assert router.delayed > 100
        without(seen(nodes, NAMES), nodes)
        router.heal()
        await all_see(nodes, EVERYBODY)


async def test_a_host_whose_link_goes_down_survives_the_errors_of_its_kernel_and_comes_back(kind: Kind) -> None:
    async with five(kind) as (nodes, router):
        *others, cut_off = nodes
        before = cut_off.refused
        namespaces.set_link(4, "down")
        took = await all_see(others, alive(*"abcd"))
        print(f"unplugged member DEAD everywhere after {took:.1f} s, {cut_off.refused - before} sends refused")
        assert cut_off.refused > before
        without(seen(others, "abcd"), others)
        assert router.lost > 0
        await trio.sleep(5)
        namespaces.set_link(4, "up")
        took = await all_see(nodes, EVERYBODY)
        print(f"whole again {took:.1f} s after the link was up")
        assert cut_off.process.poll() is None
        assert cut_off.errors.count(b"Traceback") == 0


async def test_routes_that_refuse_to_send_kill_nobody_while_one_member_is_reached(kind: Kind) -> None:
    async with five(kind) as (nodes, _):
        routes = [("blackhole", 0), ("unreachable", 1), ("prohibit", 2)]
        before = nodes[4].refused
        for refusal, target in routes:
            namespaces.refuse(4, refusal, target)
        await trio.sleep(25)
        print(f"{nodes[4].refused - before} sends refused")
        assert nodes[4].refused - before > 10
        without(seen(nodes, NAMES), nodes)
        for refusal, target in routes:
            namespaces.allow(4, refusal, target)
        await all_see(nodes, EVERYBODY)
        assert nodes[4].errors.count(b"Traceback") == 0


async def test_two_halves_bury_each_other_and_are_one_again_after_the_cut(kind: Kind) -> None:
    async with five(kind) as (nodes, router):
        left, right = nodes[:2], nodes[2:]
        router.part({0, 1}, {2, 3, 4})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(all_see, left, alive("a", "b"))
            nursery.start_soon(all_see, right, alive("c", "d", "e"))
        without(seen(left, "ab"), left)
        without(seen(right, "cde"), right)
        await trio.sleep(20)  # longer than the dead are gossiped to
        router.heal()
        took = await all_see(nodes, EVERYBODY)
        print(f"one view {took:.1f} s after the cut was mended")


async def test_a_suspended_host_is_buried_and_refutes_when_it_wakes(kind: Kind) -> None:
    async with five(kind) as (nodes, _):
        *others, sleeper = nodes
        sleeper.is_put_to_sleep = True
        sleeper.process.send_signal(signal.SIGSTOP)
        took = await all_see(others, alive(*"abcd"))
        print(f"suspended member DEAD everywhere after {took:.1f} s")
        await trio.sleep(10)
        sleeper.process.send_signal(signal.SIGCONT)
        took = await all_see(nodes, EVERYBODY)
        print(f"back {took:.1f} s after it woke")
        await trio.sleep(5)
        without(seen(nodes, "abcd"), nodes)  # who slept may accuse nobody

"""Nodes and engines that die under running streams, and clients that must not notice."""

from __future__ import annotations

import random
import signal
from typing import Any

import httpx2
import trio

from acceptance.chat import Stream, chat_body, check_stream, stream_chat
from acceptance.check import Check, Scale
from acceptance.cluster import SMOL, UNHURRIED_S, unhurried, wait_view
from acceptance.nodes import Node, fleet
from acceptance.processes import engines, send_signal

STREAMS = 16
TOKENS = 48
INNOCENTS = 3
CULPRIT_S = 600.0
"""The request that crashes engines says nothing until its end, which others' answers and two new engines come before."""
REPORTED_S = 3.0
"""A load that lasts so long is no old report."""


async def _kill_rounds(scale: Scale) -> str:
    rounds = scale.pick(20, 3)
    rng = random.Random(20)
    resumed = 0
    async with fleet() as group:
        entry = await group.start_ready("entry", "none", seeds="")
        workers = {name: await group.start_ready(name, SMOL, seeds=entry.address) for name in ("node-a", "node-b")}
        for round_number in range(3 * rounds):
            if round_number >= rounds and resumed:
                break  # further rounds only where each kill came before its node had a stream
            await wait_view([entry, *workers.values()], {"entry", *workers}, UNHURRIED_S)
            await unhurried(entry, *workers)
            victim = rng.choice(sorted(workers))
            streams = await _streams_under_a_kill(entry, workers[victim], rng, round_number)
            for stream in streams:
                check_stream(stream, completion_tokens=TOKENS)
            resumed += sum(victim in stream.route for stream in streams)
            workers[victim] = await group.start_ready(victim, SMOL, seeds=entry.address)
    assert resumed > 0, "no stream ran on a node that was killed"
    return f"{rounds} rounds of {STREAMS} streams, {resumed} of them on the killed node: nothing lost, repeated or miscounted"


async def _streams_under_a_kill(entry: Node, victim: Node, rng: random.Random, round_number: int) -> list[Stream]:
    streams: list[Stream] = []

    async def one(number: int) -> None:
        body = chat_body(
            SMOL,
            f"Round {round_number}, story {number}: tell me about a {rng.choice(['fox', 'ship', 'tree', 'king'])}.",
            TOKENS,
            logprobs=True,
            ignore_eos=True,
        )
        async with entry.client() as client:
            streams.append(await stream_chat(client, body))

    async def kill() -> None:
        # Somewhere between queueing, prefill and the middle of the answers.
        await trio.sleep(rng.uniform(0.2, 6.0))
        victim.kill()

    async with trio.open_nursery() as nursery:
        for number in range(STREAMS):
            nursery.start_soon(one, number)
        nursery.start_soon(kill)
    return streams


async def _crashing_request(scale: Scale) -> str:
    """The engine processes under one request are killed one after the other; others of the batch live."""
    async with fleet() as group:
        entry = await group.start_ready("entry", "none", seeds="")
        workers = [await group.start_ready(name, SMOL, seeds=entry.address) for name in ("node-a", "node-b", "node-c")]
        await wait_view([entry, *workers], {"entry", "node-a", "node-b", "node-c"}, UNHURRIED_S)
        outcome: dict[str, Any] = {}

        async def culprit() -> None:
            async with entry.client(CULPRIT_S) as client:
                body = chat_body(SMOL, "The request that takes engines down", 7500, ignore_eos=True, stream=False)
                del body["stream_options"]
                outcome["culprit"] = await client.post("/v1/chat/completions", json=body)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(culprit)
            holder = await _busy_worker(entry, workers)
            for number in range(INNOCENTS):
                nursery.start_soon(_innocent(entry, f"innocent {number}", outcome))
            await trio.sleep(1.0)
            _kill_engine(holder)
            # Those of the batch are tried apart and complete; whoever is busy then has the culprit.
            with trio.fail_after(120):
                while len(outcome) < INNOCENTS:
                    await trio.sleep(0.05)
            _kill_engine(await _busy_worker(entry, workers, for_s=REPORTED_S))
        reply = outcome.pop("culprit")
        assert reply.status_code == 500, f"status {reply.status_code}: {reply.text[:300]}"
        for name, stream in outcome.items():
            assert isinstance(stream, Stream), name
            check_stream(stream, completion_tokens=24)
        for node in (entry, *workers):
            assert node.process.poll() is None, f"{node.name} died"
        for node in workers:
            await node.wait_ready()
        async with entry.client() as client:
            after = await stream_chat(client, chat_body(SMOL, "Are you all still there?", 8))
        assert after.done
        return f"second crash: {reply.json()['error']['message'][:120]!r}; {len(outcome)} innocents complete, all nodes live"


def _innocent(entry: Node, name: str, outcome: dict[str, Any]) -> Any:
    async def run() -> None:
        async with entry.client() as client:
            body = chat_body(SMOL, f"An innocent story, {name}", 24, logprobs=True, ignore_eos=True)
            outcome[name] = await stream_chat(client, body)

    return run


async def _busy_worker(entry: Node, workers: list[Node], *, for_s: float = 0.0) -> Node:
    """The worker whose engine holds the long request, as the workers themselves report for so long on end."""
    last, since = "", trio.current_time()
    with trio.fail_after(UNHURRIED_S):
        while True:
            # One that just went is reported busy for a moment.
            busy = [node for node in workers if await _running(node) > 0 and living_engines(node)]
            name = busy[0].name if len(busy) == 1 else ""
            if name != last:
                last, since = name, trio.current_time()
            if name and trio.current_time() - since >= for_s:
                return busy[0]
            await trio.sleep(0.05)
    raise AssertionError("unreachable")


async def _running(node: Node) -> int:
    try:
        state = await node.state()
    except httpx2.HTTPError:
        return 0
    mine = next((m for m in state["members"] if m["name"] == node.name), None)
    return int(mine["busy"]) if mine else 0


def living_engines(node: Node) -> list[Any]:
    """Engine processes of a node; one that was killed and not yet reaped is none."""
    return engines(node.process.pid)


def _kill_engine(node: Node) -> None:
    """Kill the engine process of a node."""
    found = living_engines(node)
    assert found, f"{node.name} has no engine process"
    for engine in found:
        send_signal(engine, signal.SIGKILL)


CHECKS = (
    Check("kill-rounds", "kill -9 of a serving node under 16 real streams: no client notices", _kill_rounds),
    Check("crashing-request", "a request that crashes engines gets a 500 at the second crash; innocents live", _crashing_request),
)  # fmt: skip

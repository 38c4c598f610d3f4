"""A real node under many requests, most of them given up: nobody else is disturbed, and memory stays as it was.

    python -m benchmarks soak aborts [--model smol|gemma] [--rounds 500] [--seed 1]
    python -m benchmarks soak mixed  [--model smol|gemma] [--requests 10000] [--seed 1]

`aborts`: each round 8 requests are dropped at random moments, beside two long streams and a prompt of 3,000 tokens that are
renewed as they end; SIGTERM comes while they run. `mixed`: every kind of request, a third of them dropped. The last line is
one JSON object; the exit code is 0 exactly when all it promises holds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import trio

from acceptance.nodes import API_KEY, Node, fleet
from acceptance.processes import engines, memory_mib
from benchmarks.engine.servers import MODELS
from saiserve.bench.client import AnswerError, Client
from saiserve.bench.prompts import WORDS
from saiserve.serve import EXIT_GRACE_S

ROUNDS: Final = 500
REQUESTS: Final = 10_000
VICTIMS: Final = 8
"""Requests of one round of aborts."""
MOMENTS_S: Final = (0.01, 4.0)
"""When a request is dropped; short times as often as long ones, so that every phase is met."""
PATIENCE_ROUNDS: Final = 100
"""Rounds more until one undisturbed stream and prompt must have ended."""
LONG_STREAMS: Final = 2
LONG_TOKENS, PROMPT_TOKENS = 200, 3_000
"""Of each undisturbed stream, and of the undisturbed prompt."""
CLIENTS: Final = 12
"""Requests at once in `mixed`."""
DROPPED_SHARE: Final = 0.33
BASE_ROUND, BASE_REQUEST = 100, 1_000
"""From here on memory may grow by `GROWTH_MIB` at most; shorter runs are not judged by it."""
GROWTH_MIB: Final = 30.0
SAMPLES: Final = 10
"""Memory is the median of so many samples."""
SAMPLE_EACH: Final = 25
"""Requests of `mixed` between two samples."""
ANSWER_S: Final = 1_800.0
DRAIN_S: Final = 30.0
STOOD_STILL_S: Final = 20.0
"""A clock that jumps so far means that the machine stood still: what broke over it says nothing."""
KV_CELLS: Final = 16_384
SETTINGS: Final = {"LANES": "16", "KV_CELLS": f"{KV_CELLS}", "CACHE_MIB": "128", "DRAIN_S": f"{DRAIN_S:g}"}


@dataclass
class Tally:
    """What was seen."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)
    """Resident memory of node and engine together, one sample a round."""
    stops: int = 0
    """Times the machine stood still."""

    def growth_mib(self, base: int) -> float | None:
        """Median of the last samples above that around `base`; None when there are too few."""
        if len(self.memory_mib) < base + SAMPLES:
            return None
        middle = statistics.median
        return middle(self.memory_mib[-SAMPLES:]) - middle(self.memory_mib[base - SAMPLES : base])


@dataclass
class Soak:
    """One node with its clients."""

    node: Node
    client: Client
    chance: random.Random
    tally: Tally = field(default_factory=Tally)
    engines: set[int] = field(default_factory=set)
    is_over: bool = False

    def text(self, words: int) -> str:
        """Words that no cache has seen in this order."""
        return " ".join(self.chance.choice(WORDS) for _ in range(words))

    def chat(self, words: int, tokens: int, **extra: Any) -> Awaitable[Any]:
        """A streamed answer to a prompt of its own."""
        return self.client.chat([{"role": "user", "content": self.text(words)}], tokens, **extra)

    async def attempt(self, name: str, what: Callable[[], Awaitable[Any]]) -> None:
        """One request that must succeed; unless the machine stood still, its failure is a fault."""
        stops = self.tally.stops
        try:
            await what()
        except (AnswerError, OSError, trio.TooSlowError, trio.BrokenResourceError) as error:
            with trio.CancelScope(shield=True):
                await trio.sleep(2)  # whoever watches the clock may wake later than this
            if not self.is_over and self.tally.stops == stops:
                self.tally.faults.append(f"{name}: {error or type(error).__name__}")
        else:
            self.tally.counts[name] += 1

    async def dropped(self, name: str, what: Callable[[], Awaitable[Any]], within_s: float) -> None:
        """One request whose client goes away after so long; it may have ended before."""
        with trio.move_on_after(within_s) as scope:
            await self.attempt(name, what)
        self.tally.counts["dropped"] += scope.cancelled_caught

    def moment(self) -> float:
        """A random time, seconds."""
        first, last = MOMENTS_S
        return float(first * (last / first) ** self.chance.random())

    def drawn(self) -> tuple[str, float | None]:
        """A kind of request of `mixed`, and after how many seconds its client goes; None when it stays."""
        is_dropped = self.chance.random() < DROPPED_SHARE
        return self.chance.choice(sorted(KINDS)), self.moment() if is_dropped else None

    def sample_memory(self) -> None:
        """Add up what the node and its engines hold."""
        kept = {self.node.process.pid, *self.engine_pids()}
        held = memory_mib(self.node.process.pid)
        self.tally.memory_mib.append(sum(mib for pid, mib in held.items() if pid in kept))

    def engine_pids(self) -> set[int]:
        """Process ids of the node's engines."""
        return {one.pid for one in engines(self.node.process.pid)}

    def check_engines(self) -> None:
        """Other engines than at the beginning mean that one was lost."""
        if self.engine_pids() != self.engines and not self.tally.stops:
            self.tally.faults.append("an engine process was lost")


@asynccontextmanager
async def soaking(model: str, seed: int, tally: Tally) -> AsyncIterator[Soak]:
    """A node of its own, watched for lost engines and tracebacks."""
    async with fleet() as nodes:
        node = await nodes.start_ready("soak", MODELS[model], environment=SETTINGS)
        client = Client(node.port, MODELS[model], API_KEY, answer_s=ANSWER_S)
        soak = Soak(node, client, random.Random(seed), tally)
        soak.engines = soak.engine_pids()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_watch_clock, tally)
            yield soak
            nursery.cancel_scope.cancel()
        client.close()
        if node.process.poll() is None:
            soak.check_engines()
        if "Traceback" in node.log_text():
            tally.faults.append(f"the node's log has a traceback:\n{node.log_text()[-3000:]}")


async def _watch_clock(tally: Tally) -> None:
    while True:
        before = time.monotonic()
        await trio.sleep(1)
        tally.stops += time.monotonic() - before > STOOD_STILL_S


# Aborts


async def aborts(
    model: str,
    *,
    rounds: int = ROUNDS,
    long_tokens: int = LONG_TOKENS,
    prompt_tokens: int = PROMPT_TOKENS,
    seed: int = 1,
    tell: Callable[[str], None] = print,
) -> Tally:
    """Rounds of dropped requests, until the undisturbed ones have ended too, then SIGTERM."""
    tally = Tally()
    async with soaking(model, seed, tally) as soak, trio.open_nursery() as nursery:
        if rounds > BASE_ROUND:
            await _touch_cells(soak, prompt_tokens)
        for _ in range(LONG_STREAMS):
            nursery.start_soon(_renewed, soak, "long stream", partial(_long_stream, soak, long_tokens))
        nursery.start_soon(_renewed, soak, "long prompt", partial(_long_prompt, soak, prompt_tokens))
        for number in itertools.count(1):
            async with trio.open_nursery() as victims:
                for _ in range(VICTIMS):
                    what = partial(soak.chat, soak.chance.randint(1, 400), 200)
                    victims.start_soon(soak.dropped, "ended before it was dropped", what, soak.moment())
            soak.sample_memory()
            if number % 20 == 0:
                tell(
                    f"round {number}: {tally.memory_mib[-1]:.0f} MiB, {dict(tally.counts)}, {len(tally.faults)} faults"
                )
            starving = [name for name in UNDISTURBED if not tally.counts[name]]
            if number >= rounds + PATIENCE_ROUNDS and starving:
                tally.faults.append(f"no {starving[0]} ended")
            if number >= rounds and (tally.faults or not starving):
                break
        soak.is_over = True
        soak.check_engines()
        await _end(soak)
    return tally


UNDISTURBED: Final = ("long stream", "long prompt")


async def _touch_cells(soak: Soak, tokens: int) -> None:
    """Write to most cells of the KV cache: memory that is reserved counts as held once it has been touched."""
    async with trio.open_nursery() as nursery:
        for _ in range(KV_CELLS // tokens - 1):
            nursery.start_soon(soak.attempt, "prompt that fills the cache", partial(_long_prompt, soak, tokens))


async def _renewed(soak: Soak, name: str, ask: Callable[[], Awaitable[None]]) -> None:
    while not soak.is_over:
        await soak.attempt(name, ask)


async def _long_stream(soak: Soak, tokens: int) -> None:
    reply = await soak.chat(20, tokens)
    if reply.tokens != tokens:
        raise AnswerError(f"{reply.tokens} tokens instead of {tokens}")


async def _long_prompt(soak: Soak, tokens: int) -> None:
    reply = await soak.chat(tokens, 8)
    if reply.prompt_tokens < tokens or reply.tokens != 8:
        raise AnswerError(f"{reply.prompt_tokens} prompt tokens, {reply.tokens} tokens")


async def _end(soak: Soak) -> None:
    """SIGTERM while streams run: the node ends in time, by itself."""
    process, begun = soak.node.process, time.monotonic()
    soak.node.signal(signal.SIGTERM)
    while process.poll() is None and time.monotonic() - begun < 2 * DRAIN_S:
        await trio.sleep(0.05)
    took_s = time.monotonic() - begun
    soak.tally.counts["seconds from SIGTERM to the end"] = round(took_s)
    if process.poll() != 0 or took_s > DRAIN_S + EXIT_GRACE_S:
        soak.tally.faults.append(f"after SIGTERM: exit {process.poll()} after {took_s:.1f} s")


# Mixed


async def mixed(model: str, *, requests: int = REQUESTS, seed: int = 1, tell: Callable[[str], None] = print) -> Tally:
    """Every kind of request, some dropped."""
    tally = Tally()
    async with soaking(model, seed, tally) as soak:
        left = enumerate([soak.drawn() for _ in range(requests)])  # beforehand: the same ones for a seed, in any order

        async def work() -> None:
            for number, (name, dropped_after_s) in left:
                what = partial(KINDS[name], soak)
                if dropped_after_s is not None:
                    await soak.dropped(name, what, dropped_after_s)
                else:
                    await soak.attempt(name, what)
                if number % SAMPLE_EACH == 0:
                    soak.sample_memory()
                if number % 500 == 499:
                    tell(f"request {number + 1}: {tally.memory_mib[-1]:.0f} MiB, {len(tally.faults)} faults")

        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(work)
    return tally


async def _chat(soak: Soak) -> None:
    await soak.chat(soak.chance.randint(1, 120), 8, temperature=0.8)


async def _turns(soak: Soak) -> None:
    told = [{"role": "system", "content": " ".join(WORDS)}, {"role": "user", "content": soak.text(5)}]
    reply = await soak.client.chat(told, 8)
    more = [*told, {"role": "assistant", "content": reply.text}, {"role": "user", "content": soak.text(5)}]
    await soak.client.chat(more, 8)


def _post(path: str, body: Callable[[Soak], dict[str, Any]], status: int = 200) -> Callable[[Soak], Awaitable[None]]:
    """A plain request that is answered with this status."""

    async def ask(soak: Soak) -> None:
        try:
            await soak.client.ask("POST", path, {"model": soak.client.model, **body(soak)})
        except AnswerError as error:
            if f"status {status} " not in str(error):
                raise
        else:
            if status != 200:
                raise AnswerError(f"{path} was answered, {status} was right")

    return ask


def _user(soak: Soak, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": soak.text(12)}], "max_tokens": 8, **fields}


SCHEMA: Final = {
    "type": "json_schema",
    "json_schema": {"name": "a", "schema": {"type": "object", "properties": {"a": {"type": "boolean"}}}},
}
KINDS: Final[dict[str, Callable[[Soak], Awaitable[None]]]] = {
    "chat": _chat,
    "turns": _turns,
    "several": _post("/v1/chat/completions", lambda soak: _user(soak, n=3, temperature=1, logprobs=True)),
    "schema": _post("/v1/chat/completions", lambda soak: _user(soak, response_format=SCHEMA)),
    "text": _post("/v1/completions", lambda soak: {"prompt": soak.text(30), "max_tokens": 12}),
    "vectors": _post("/v1/embeddings", lambda soak: {"input": [soak.text(9), soak.text(40)]}),
    "tokens": _post("/tokenize", lambda soak: {"content": soak.text(200)}),
    "a bad bias": _post("/v1/chat/completions", lambda soak: _user(soak, logit_bias={"999999999": 5}), 400),
    "a bad schema": _post(
        "/v1/chat/completions",
        lambda soak: _user(soak, response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": 5}}),
        400,
    ),
    "too long": _post("/v1/completions", lambda soak: {"prompt": soak.text(20_000), "max_tokens": 1}, 400),
}


def verdict(tally: Tally, base: int) -> dict[str, Any]:
    """The object of the last line."""
    growth = tally.growth_mib(base)
    return {
        "counts": dict(tally.counts),
        "faults": tally.faults,
        "stood_still": tally.stops,
        "memory_mib": [round(value, 1) for value in tally.memory_mib[:: max(1, len(tally.memory_mib) // 25)]],
        "growth_mib": None if growth is None else round(growth, 1),
        "holds": not tally.faults and (growth is None or growth <= GROWTH_MIB),
    }


def main() -> int:
    """Return 0 when it holds, 1 when not."""
    parser = argparse.ArgumentParser(prog="benchmarks soak", description=__doc__)
    parser.add_argument("what", choices=["aborts", "mixed"])
    parser.add_argument("--model", choices=sorted(MODELS), default="smol")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--seed", type=int, default=1)
    parsed = parser.parse_args()
    tell = partial(print, file=sys.stderr, flush=True)
    if parsed.what == "aborts":
        tally = trio.run(partial(aborts, parsed.model, rounds=parsed.rounds, seed=parsed.seed, tell=tell))
        base = BASE_ROUND
    else:
        tally = trio.run(partial(mixed, parsed.model, requests=parsed.requests, seed=parsed.seed, tell=tell))
        base = BASE_REQUEST // SAMPLE_EACH
    found = verdict(tally, base)
    print(json.dumps(found))
    return 0 if found["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())

"""What one stream notices of others: a long prompt beside it, much cached, and a conversation that was parked. Ours alone."""

from __future__ import annotations

import time
from collections import defaultdict
from itertools import pairwise

import trio

from benchmarks.engine.rows import Row, absolute, compare
from benchmarks.engine.scale import Experiment, Scale
from benchmarks.engine.servers import REPORT_S, Setup, metrics, ours
from saiserve.bench.client import Client, Reply
from saiserve.bench.prompts import Messages, text, user

LONG_WORDS = {"smol": 1750, "gemma": 1950}
"""Words of a prompt of 2,000 tokens."""
FILL_WORDS = {"smol": 3500, "gemma": 3900}
"""Of one of 4,000."""
PARKED_WORDS = {"smol": 870, "gemma": 970}
"""Of one of 1,000."""
HOT_TOKENS = 2_048
"""Idle tokens that stay in the KV cache at most (the engine's default); more parks the oldest."""
PARKED_S = 1.0
"""Time in which what is to be parked is; what is to be hot comes back at once, because it rests half a second at most."""


async def gap(model: str, scale: Scale) -> list[Row]:
    """A running stream while a 2,000-token prompt is read, and the prompt's time beside it and alone."""
    gaps: list[float] = []
    alone: list[float] = []
    beside: list[float] = []
    async with ours(Setup(model)) as server:
        for number in range(scale.turns(3)):
            for is_beside in (number % 2 == 0, number % 2 == 1):
                if is_beside:
                    worst, reply = await _beside(server, model, number, scale.pick(600, 300))
                    gaps.append(worst)
                    beside.append(_prefill_rate(reply))
                else:
                    reply = await server.chat(user(LONG_WORDS[model], "alone", number), 1)
                    alone.append(_prefill_rate(reply))
    return [
        absolute(f"largest gap beside a {reply.prompt_tokens:,}-token prompt, {model}", "s", gaps, 0.5),
        compare(f"that prompt's prefill beside a stream to alone, {model}", "tok/s", beside, alone, 0.7, at_least=True),
    ]


def _prefill_rate(reply: Reply) -> float:
    return (reply.prompt_tokens - reply.cached_tokens) / reply.first_s


async def _beside(client: Client, model: str, number: int, tokens: int) -> tuple[float, Reply]:
    """The stream's largest gap while the prompt was read, and the prompt's reply."""
    done: dict[str, Reply] = {}

    async def run(name: str, chat: Messages, most: int) -> None:
        done[name] = await client.chat(chat, most)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, "stream", user(20, "stream", number), tokens)
        await trio.sleep(1.0)
        nursery.start_soon(run, "prompt", user(LONG_WORDS[model], "beside", number), 1)
    stream, prompt = done["stream"], done["prompt"]
    start = prompt.sent_at - stream.sent_at
    end = start + prompt.first_s
    moments = [at for at in stream.times if start - 0.5 <= at <= end + 0.5]
    assert stream.times[-1] > end, "the stream ended before the prompt was read"
    return max(late - early for early, late in pairwise(moments)), prompt


async def idle(model: str, scale: Scale) -> list[Row]:
    """One stream with nothing cached, and with 50,000 tokens cached."""
    rates: dict[bool, list[float]] = defaultdict(list)
    goal = scale.pick(50_000, 8_000)
    setup = Setup(model, cache_mib=3_072)
    async with ours(setup) as empty, ours(setup) as full:
        held = 0
        while held < goal:
            reply = await full.chat(user(FILL_WORDS[model], "fill", held), 1)
            held += reply.prompt_tokens
        await trio.sleep(2.0)
        bytes_held = (await metrics(full))["saiserve_engine_host_bytes"]
        for number in range(scale.turns(6)):
            sides = [(False, empty), (True, full)]
            for is_full, client in sides if number % 2 == 0 else sides[::-1]:
                reply = await client.chat(user(20, "idle", number), scale.pick(128, 32))
                rates[is_full].append(reply.decode_rate)
    name = f"one stream beside {held:,} cached tokens to an empty cache, {model}"
    return [
        compare(name, "tok/s", rates[True], rates[False], 0.95, at_least=True),
        absolute(
            f"host memory of {held:,} cached tokens, {model}",
            "MiB",
            [bytes_held / 2**20],
            None,
        ),
    ]


async def parked(model: str, scale: Scale) -> list[Row]:
    """Coming back to a 1,000-token conversation that was moved to host memory, and to one that is still in the cache."""
    waits: list[float] = []
    missed: list[float] = []
    elsewhere = scale.pick(3 * HOT_TOKENS, HOT_TOKENS)
    async with ours(Setup(model)) as server:
        for number in range(scale.turns(5)):
            hot, _ = await _come_back(server, model, ("hot", number), elsewhere=0)
            before = await _moved(server)
            cold, reply = await _come_back(server, model, ("parked", number), elsewhere=elsewhere)
            if await _moved(server) > before:  # age alone does not choose what is parked: it may have stayed
                waits.append(cold - hot)
                missed.append(reply.prompt_tokens - reply.cached_tokens)
    assert waits, "no conversation came back from host memory"
    return [
        absolute(f"coming back to a parked {reply.prompt_tokens:,}-token conversation, more than to a hot one, {model}",
                 "s", waits, 0.080),
        absolute(f"tokens it computes on coming back, {model}", "tokens", missed, None),
    ]  # fmt: skip


async def _moved(server: Client) -> float:
    """Prefixes that have come back from host memory so far."""
    await trio.sleep(REPORT_S)
    return (await metrics(server))["saiserve_engine_moves_from_host_total"]


async def _come_back(client: Client, model: str, seed: object, elsewhere: int) -> tuple[float, Reply]:
    """Time to first token of a conversation's second turn, after `elsewhere` tokens of other conversations; at once if 0."""
    messages = user(PARKED_WORDS[model], seed)
    reply = await client.chat(messages, 8)
    others = 0
    while others < elsewhere:
        others += (await client.chat(user(PARKED_WORDS[model], "other", seed, others), 1)).prompt_tokens
    if elsewhere:
        await trio.sleep(PARKED_S)
    messages = [*messages, {"role": "assistant", "content": reply.text}, {"role": "user", "content": text(5, seed)}]
    started = time.perf_counter()
    reply = await client.chat(messages, 2)
    assert time.perf_counter() - started < 60
    return reply.first_s, reply


EXPERIMENTS = (
    Experiment("gap", gap),
    Experiment("idle", idle),
    Experiment("parked", parked),
)

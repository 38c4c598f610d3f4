"""One stream alone; sixteen at once with distinct prompts, or behind a shared one."""

from __future__ import annotations

import statistics
from collections import defaultdict

from benchmarks.engine.rows import Row, absolute, compare
from benchmarks.engine.scale import Experiment, Scale, both, order
from benchmarks.engine.servers import Setup
from benchmarks.ranks import p99
from saiserve.bench.load import Burst, at_once
from saiserve.bench.prompts import Messages, behind, text, user

STREAMS = 16
WORDS = 150
TOKENS = 32


async def decode(model: str, scale: Scale) -> list[Row]:
    """One stream: tokens per second after the first."""
    rates: dict[bool, list[float]] = defaultdict(list)
    firsts: dict[bool, list[float]] = defaultdict(list)
    async with both(Setup(model)) as (mine, other):
        for number in range(scale.turns(8)):
            for is_ours, client in order(number, mine, other):
                reply = await client.chat(user(20, "decode", number), scale.pick(160, 32))
                rates[is_ours].append(reply.decode_rate)
                firsts[is_ours].append(reply.first_s)
    return [
        compare(f"one stream, decode, {model}", "tok/s", rates[True], rates[False], 0.97, at_least=True),
        compare(f"one stream, first token, {model}", "s", firsts[True], firsts[False], None, at_least=False),
    ]


async def distinct(model: str, scale: Scale) -> list[Row]:
    """Sixteen distinct prompts at once."""
    return await _distinct(model, scale, Setup(model), f"16 distinct, {model}", bounded=True)


async def lanes(model: str, scale: Scale) -> list[Row]:
    """The same with the lanes a node chooses by itself."""
    return await _distinct(model, scale, Setup(model, lanes=0), f"16 distinct, default lanes, {model}", bounded=False)


async def _distinct(model: str, scale: Scale, setup: Setup, name: str, *, bounded: bool) -> list[Row]:
    bursts: dict[bool, list[Burst]] = defaultdict(list)
    async with both(setup) as (mine, other):
        for number in range(scale.turns(4)):
            for is_ours, client in order(number, mine, other):
                chats = [user(WORDS, "distinct", number, each) for each in range(STREAMS)]
                bursts[is_ours].append(await at_once(client, chats, TOKENS))
    return _rows(name, bursts, rate=1.0 if bounded else None, first=1.05 if bounded else None)


async def shared(model: str, scale: Scale, words: int, rate: float, first: float) -> list[Row]:
    """Sixteen at once behind one system prompt: cold, then the same again, then other questions behind it."""
    cold: dict[bool, list[Burst]] = defaultdict(list)
    warm: dict[bool, list[Burst]] = defaultdict(list)
    async with both(Setup(model)) as (mine, other):
        for number in range(scale.turns(3 if words < 1000 else 2)):
            for is_ours, client in order(number, mine, other):
                chats = _behind(words, number)
                cold[is_ours].append(await at_once(client, chats, TOKENS))
                warm[is_ours].append(await at_once(client, chats, TOKENS))
    name = f"16 behind {words:,} shared words, {model}"
    return [
        *_rows(name, cold, rate=rate, first=first),
        *_rows(f"the same again: {name}", warm, rate=1.2, first=None),
        _reuse(name, cold[True]),
    ]


def _behind(words: int, number: int) -> list[Messages]:
    system = text(words, "system", words, number)
    return [behind(system, 20, "question", number, each) for each in range(STREAMS)]


def _reuse(name: str, bursts: list[Burst]) -> Row:
    """Our share of prompt tokens that came from the cache, cold."""
    shares = [
        sum(reply.cached_tokens for reply in burst.replies) / sum(reply.prompt_tokens for reply in burst.replies)
        for burst in bursts
    ]
    return absolute(f"reused, {name}", "share", shares, None)


def _rows(name: str, bursts: dict[bool, list[Burst]], *, rate: float | None, first: float | None) -> list[Row]:
    mine, other = bursts[True], bursts[False]

    def rates(side: list[Burst]) -> list[float]:
        return [burst.tokens_per_s for burst in side]

    def firsts(side: list[Burst]) -> list[float]:
        return [statistics.median(burst.first_s) for burst in side]

    def lasts(side: list[Burst]) -> list[float]:
        return [p99(burst.first_s) for burst in side]

    return [
        compare(name, "output tok/s", rates(mine), rates(other), rate, at_least=True),
        compare(f"{name}: first token p50", "s", firsts(mine), firsts(other), first, at_least=False),
        compare(f"{name}: first token p99", "s", lasts(mine), lasts(other), None, at_least=False),
    ]


async def shared_350(model: str, scale: Scale) -> list[Row]:
    """Behind 350 words."""
    return await shared(model, scale, 350, 3.5, 0.3)


async def shared_1200(model: str, scale: Scale) -> list[Row]:
    """Behind 1,200 words."""
    return await shared(model, scale, 1200, 6.0, 0.2)


EXPERIMENTS = (
    Experiment("decode", decode),
    Experiment("distinct", distinct),
    Experiment("lanes", lanes),
    Experiment("shared350", shared_350),
    Experiment("shared1200", shared_1200),
)

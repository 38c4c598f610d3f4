"""Conversations that come back turn after turn, and requests that arrive when they like."""

from __future__ import annotations

import json
import random
import statistics
from collections import defaultdict
from itertools import pairwise

from benchmarks.engine.rows import Row, absolute, compare
from benchmarks.engine.scale import Experiment, Scale, both, order
from benchmarks.engine.servers import Setup
from benchmarks.ranks import p99
from saiserve.bench.client import Client
from saiserve.bench.load import Burst, Talk, arriving, at_once, converse
from saiserve.bench.prompts import Messages, user

WORDS = 60
TOKENS = 32
LOAD = 0.7
ARRIVAL_TOKENS = (16, 64)


async def turns_4(model: str, scale: Scale) -> list[Row]:
    """Four conversations of four turns, with room for all."""
    rates: dict[bool, list[float]] = defaultdict(list)
    shares: dict[bool, list[float]] = defaultdict(list)
    talks, turns = 4, 4
    async with both(Setup(model)) as (mine, other):
        for number in range(scale.turns(4)):
            for is_ours, client in order(number, mine, other):
                seconds, done = await converse(client, talks, turns, WORDS, TOKENS, "turns", number)
                rates[is_ours].append(talks * turns * TOKENS / seconds)
                shares[is_ours].append(await _reused_of_possible(other, done))
    return [
        compare(f"4 conversations x 4 turns, {model}", "output tok/s", rates[True], rates[False], 1.0, at_least=True),
        absolute(f"4 x 4: reused of what could be, {model}", "share", shares[True], 0.97, at_least=True),
        absolute(f"4 x 4: the same of llama-server, {model}", "share", shares[False], None),
    ]


async def turns_16(model: str, scale: Scale) -> list[Row]:
    """Sixteen conversations of six turns on four lanes."""
    rates: dict[bool, list[float]] = defaultdict(list)
    shares: dict[bool, list[float]] = defaultdict(list)
    talks, turns = 16, scale.pick(6, 2)
    async with both(Setup(model, slots=4)) as (mine, other):
        for number in range(scale.turns(2)):
            for is_ours, client in order(number, mine, other):
                seconds, done = await converse(client, talks, turns, WORDS, TOKENS, "many", number)
                rates[is_ours].append(talks * turns * TOKENS / seconds)
                shares[is_ours].append(await _reused_of_possible(other, done))
    name = f"16 conversations x {turns} turns on 4 lanes, {model}"
    return [
        compare(name, "output tok/s", rates[True], rates[False], 1.1, at_least=True),
        absolute(f"16 x {turns}: reused of what could be, {model}", "share", shares[True], None),
        absolute(f"16 x {turns}: the same of llama-server, {model}", "share", shares[False], None),
    ]


async def _reused_of_possible(tokenizer: Client, talks: list[Talk]) -> float:
    """Prompt tokens reused to those a cache that forgets nothing could have given; ids counted by llama-server."""
    reused = possible = 0
    for talk in talks:
        for (before, reply), (messages, then) in pairwise(talk.turns):
            answered = [*before, {"role": "assistant", "content": reply.text}]
            known, asked = await _ids(tokenizer, answered), await _ids(tokenizer, messages)
            possible += next(
                (place for place, (a, b) in enumerate(zip(known, asked, strict=False)) if a != b),
                min(len(known), len(asked)),
            )
            reused += then.cached_tokens
    return reused / possible


async def _ids(tokenizer: Client, messages: Messages) -> list[int]:
    """Token ids of a chat, without the beginning of the next answer."""
    ask = tokenizer.ask
    rendered = await ask("POST", "/apply-template", {"messages": messages, "add_generation_prompt": False})
    body = {"content": json.loads(rendered)["prompt"], "add_special": True, "parse_special": True}
    return [int(token) for token in json.loads(await ask("POST", "/tokenize", body))["tokens"]]


async def arrivals(model: str, scale: Scale) -> list[Row]:
    """Poisson arrivals at 70 % of what llama-server serves when it is always busy."""
    bursts: dict[bool, list[Burst]] = defaultdict(list)
    requests = scale.pick(60, 12)
    async with both(Setup(model)) as (mine, other):
        full = await at_once(other, [user(_words(each), "full", each) for each in range(32)], sum(ARRIVAL_TOKENS) // 2)
        rate = LOAD * len(full.replies) / full.elapsed_s
        for number in range(scale.turns(2)):
            schedule = _schedule(requests, rate, number)
            for is_ours, client in order(number, mine, other):
                bursts[is_ours].append(await arriving(client, schedule))
    mine_side, other_side = bursts[True], bursts[False]
    name = f"arrivals at 70 % load, {model}"

    def firsts(side: list[Burst]) -> list[float]:
        return [p99(burst.first_s) for burst in side]

    def middles(side: list[Burst]) -> list[float]:
        return [statistics.median(burst.first_s) for burst in side]

    def gaps(side: list[Burst]) -> list[float]:
        return [p99(burst.gaps) for burst in side]

    return [
        compare(f"{name}: first token p99", "s", firsts(mine_side), firsts(other_side), 0.8, at_least=False),
        compare(f"{name}: between tokens p99", "s", gaps(mine_side), gaps(other_side), 1.0, at_least=False),
        compare(f"{name}: first token p50", "s", middles(mine_side), middles(other_side), None, at_least=False),
    ]


def _words(*seed: object) -> int:
    return random.Random(repr(("words", *seed))).choice((40, 100, 150, 300))


def _schedule(requests: int, rate: float, number: int) -> list[tuple[float, Messages, int]]:
    draw = random.Random(f"arrivals {number}")
    at = 0.0
    schedule = []
    for each in range(requests):
        at += draw.expovariate(rate)
        schedule.append((at, user(_words(number, each), "arrival", number, each), draw.randint(*ARRIVAL_TOKENS)))
    return schedule


EXPERIMENTS = (
    Experiment("turns4", turns_4),
    Experiment("turns16", turns_16),
    Experiment("arrivals", arrivals),
)

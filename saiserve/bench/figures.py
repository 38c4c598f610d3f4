"""What is measured of one server, the same way for all, and the table of it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from saiserve.bench.client import Client
from saiserve.bench.load import Burst, at_once
from saiserve.bench.prompts import behind, text, user

PROMPT_WORDS = 400
SHORT_WORDS = 10
SYSTEM_WORDS = 350
TOKENS = 64
BURST_TOKENS = 32
ALONE_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. `more_is_better` says which side of a comparison is ahead."""

    name: str
    unit: str
    value: float
    more_is_better: bool


async def measure(client: Client, streams: int, seed: str) -> list[Figure]:
    """Prefill, decode and waiting times, alone and with `streams` at once. `seed` makes prompts nobody has read."""
    figures = await _alone(client, seed)
    for count in sorted({1, 4, streams} - {1}):
        burst = await at_once(client, [user(SHORT_WORDS, seed, count, each) for each in range(count)], TOKENS)
        figures.append(Figure(f"decode, {count} streams together", "tok/s", _steady_rate(burst), more_is_better=True))
    distinct = await at_once(client, [user(100, seed, "own", each) for each in range(streams)], BURST_TOKENS)
    system = text(SYSTEM_WORDS, seed, "system")
    shared = await at_once(client, [behind(system, 20, seed, each) for each in range(streams)], BURST_TOKENS)
    for name, burst in ((f"{streams} at once", distinct), (f"{streams} behind one prompt", shared)):
        figures.append(Figure(f"{name}: output", "tok/s", burst.tokens_per_s, more_is_better=True))
        figures.append(Figure(f"{name}: first token", "s", statistics.median(burst.first_s), more_is_better=False))
    return figures


async def _alone(client: Client, seed: str) -> list[Figure]:
    """One request after the other."""
    long = [await client.chat(user(PROMPT_WORDS, seed, "long", each), 2) for each in range(ALONE_ROUNDS)]
    short = [await client.chat(user(SHORT_WORDS, seed, "short", each), TOKENS) for each in range(ALONE_ROUNDS)]
    middle = statistics.median
    prefill = middle([(reply.prompt_tokens - reply.cached_tokens) / reply.first_s for reply in long])
    return [
        Figure(f"prefill, {long[0].prompt_tokens} tokens", "tok/s", prefill, more_is_better=True),
        Figure("decode, 1 stream", "tok/s", middle([reply.decode_rate for reply in short]), more_is_better=True),
        Figure("first token, short prompt", "s", middle([reply.first_s for reply in short]), more_is_better=False),
    ]


def _steady_rate(burst: Burst) -> float:
    """Tokens per second of all streams together, while all of them run."""
    starts = max(reply.sent_at + reply.times[0] for reply in burst.replies)
    ends = min(reply.sent_at + reply.times[-1] for reply in burst.replies)
    counted = sum(sum(starts < reply.sent_at + at <= ends for at in reply.times) for reply in burst.replies)
    return counted / (ends - starts) if ends > starts else 0.0


def table(figures: Mapping[str, list[Figure]]) -> str:
    """The figures of one server or two, with the ratio of the first to the second."""
    names = list(figures)
    lines = [f"{'':34}{''.join(f'{name:>14}' for name in names)}{'ratio':>8}" if len(names) > 1 else ""]
    lines = [line for line in lines if line]
    for row in zip(*figures.values(), strict=True):
        values = "".join(f"{f'{figure.value:.3g} {figure.unit}':>14}" for figure in row)
        ratio = f"{row[0].value / row[1].value:>8.2f}" if len(row) > 1 and row[1].value else ""
        lines.append(f"{row[0].name:34}{values}{ratio}")
    return "\n".join(lines)

"""What is measured of one server, the same way for all, and the table of it."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from saiserve.bench.client import Client
from saiserve.bench.load import Burst, at_once
from saiserve.bench.prompts import Messages, behind, text, user

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


async def measure(client: Client, streams: int, seed: str, tell: Callable[[str], None]) -> list[Figure]:
    """Prefill, decode and waiting times, alone and with `streams` at once. `seed` makes prompts nobody has read.

    `tell` hears before each measurement what it is, and of how many.
    """
    figures: list[Figure] = []
    measurements = _measurements(client, streams, seed)
    for number, (what, run) in enumerate(measurements.items(), 1):
        tell(f"{number} of {len(measurements)}: {what}")
        figures += await run()
    return figures


def _measurements(client: Client, streams: int, seed: str) -> dict[str, Callable[[], Awaitable[list[Figure]]]]:
    """What is measured one after the other, by the name it is told by; some make several rows of the table."""
    system = text(SYSTEM_WORDS, seed, "system")
    together = {
        f"decode, {count} streams together": [user(SHORT_WORDS, seed, count, each) for each in range(count)]
        for count in sorted({1, 4, streams} - {1})
    }
    bursts = {
        f"{streams} at once": [user(100, seed, "own", each) for each in range(streams)],
        f"{streams} behind one prompt": [behind(system, 20, seed, each) for each in range(streams)],
    }
    return {
        "prefill": partial(_prefill, client, seed),
        "decode and first token, 1 stream": partial(_decode_alone, client, seed),
        **{name: partial(_decode_together, client, name, chats) for name, chats in together.items()},
        **{name: partial(_burst, client, name, chats) for name, chats in bursts.items()},
    }


async def _prefill(client: Client, seed: str) -> list[Figure]:
    long = [await client.chat(user(PROMPT_WORDS, seed, "long", each), 2) for each in range(ALONE_ROUNDS)]
    rate = statistics.median([(reply.prompt_tokens - reply.cached_tokens) / reply.first_s for reply in long])
    return [Figure(f"prefill, {long[0].prompt_tokens} tokens", "tok/s", rate, more_is_better=True)]


async def _decode_alone(client: Client, seed: str) -> list[Figure]:
    short = [await client.chat(user(SHORT_WORDS, seed, "short", each), TOKENS) for each in range(ALONE_ROUNDS)]
    rate = statistics.median([reply.decode_rate for reply in short])
    first_s = statistics.median([reply.first_s for reply in short])
    return [
        Figure("decode, 1 stream", "tok/s", rate, more_is_better=True),
        Figure("first token, short prompt", "s", first_s, more_is_better=False),
    ]


async def _decode_together(client: Client, name: str, chats: Sequence[Messages]) -> list[Figure]:
    return [Figure(name, "tok/s", _steady_rate(await at_once(client, chats, TOKENS)), more_is_better=True)]


async def _burst(client: Client, name: str, chats: Sequence[Messages]) -> list[Figure]:
    burst = await at_once(client, chats, BURST_TOKENS)
    return [
        Figure(f"{name}: output", "tok/s", burst.tokens_per_s, more_is_better=True),
        Figure(f"{name}: first token", "s", statistics.median(burst.first_s), more_is_better=False),
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

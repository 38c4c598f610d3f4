"""What a decode step costs beside llama.cpp's own time, and what a schema adds to it. Ours alone."""

from __future__ import annotations

import json
import statistics
from typing import Any

import trio

from benchmarks.engine.rows import Row, absolute, compare
from benchmarks.engine.scale import Experiment, Scale
from benchmarks.engine.servers import REPORT_S, Setup, metrics, ours
from saiserve.bench.client import Client
from saiserve.bench.load import at_once
from saiserve.bench.prompts import Messages, user

SHARES = {"smol": 0.03, "gemma": 0.08}
"""Bounds on the share by vocabulary: 49k, 262k."""
USUAL = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "seed": 7}
SCHEMA = {
    "type": "object",
    "properties": {
        "items": {
            "type": "array",
            "minItems": 60,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "minLength": 4, "maxLength": 24},
                    "count": {"type": "integer", "minimum": 0, "maximum": 9999},
                    "kind": {"enum": ["river", "bridge", "market", "garden"]},
                },
                "required": ["name", "count", "kind"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["items"],
    "additionalProperties": False,
}
"""Long enough that no answer ends early."""


async def share(model: str, scale: Scale) -> list[Row]:
    """The share of decode steps that Python and sampling compute in, at 1, 4 and 16 streams.

    Shown beside it: the share of their time that is not llama_decode. What a message wakes may take the core meanwhile.
    """
    rows = []
    async with ours(Setup(model)) as server:
        for streams in (1, 4, 16):
            found = [await _shares(server, streams, scale.pick(128, 32), number) for number in range(scale.turns(3))]
            name = f"Python and sampling share of a step, {streams} streams, {model}"
            rows.append(absolute(name, "share", [python for python, _ in found], SHARES[model]))
            outside = f"outside llama_decode, others' turns included, {streams} streams, {model}"
            rows.append(absolute(outside, "share", [rest for _, rest in found], None))
    return rows


async def _shares(server: Client, streams: int, tokens: int, number: int) -> tuple[float, float]:
    """Between a moment when all streams run and one before the first ends."""
    chats = [user(10, "share", streams, number, each) for each in range(streams)]
    readings: list[dict[str, float]] = []

    async def read() -> None:
        await trio.sleep(_lead_s(streams))
        readings.append(await metrics(server))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await at_once(server, chats, tokens, **USUAL)
    await trio.sleep(REPORT_S)
    readings.append(await metrics(server))
    first, last = readings
    step, decode, python = (
        last[f"saiserve_engine_{part}_seconds_total"] - first[f"saiserve_engine_{part}_seconds_total"]
        for part in ("step", "llama", "python")
    )
    return python / step, 1 - decode / step


def _lead_s(streams: int) -> float:
    """Long enough for so many short prompts to be read."""
    return 0.3 + 0.05 * streams


async def schema(model: str, scale: Scale) -> list[Row]:
    """Four streams under a JSON Schema, and four free ones, in turn."""
    form = {"type": "json_schema", "json_schema": {"name": "things", "schema": SCHEMA, "strict": True}}
    free: list[float] = []
    bound: list[float] = []
    async with ours(Setup(model)) as server:
        await _rate(server, 8, -1, {"response_format": form})
        for number in range(scale.turns(4)):
            sides: list[tuple[list[float], dict[str, Any]]] = [(free, {}), (bound, {"response_format": form})]
            for rates, extra in sides if number % 2 == 0 else sides[::-1]:
                rates.append(await _rate(server, scale.pick(160, 48), number, extra))
    return [compare(f"under a schema to free, 4 streams, {model}", "tok/s", bound, free, 0.9, at_least=True)]


async def _rate(server: Client, tokens: int, number: int, extra: dict[str, Any]) -> float:
    """Tokens per second of a stream once all have begun."""
    chats: list[Messages] = [
        [{"role": "user", "content": f"List things as JSON, please: {json.dumps(user(10, 'schema', number, each))}"}]
        for each in range(4)
    ]
    options: dict[str, Any] = {**USUAL, "ignore_eos": False, **extra} if extra else dict(USUAL)
    burst = await at_once(server, chats, tokens, **options)
    return statistics.median(reply.decode_rate for reply in burst.replies)


EXPERIMENTS = (
    Experiment("share", share),
    Experiment("schema", schema),
)

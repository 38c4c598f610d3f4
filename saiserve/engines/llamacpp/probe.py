"""Measures a freshly loaded model on this machine: speed of prefill, of one stream, of several; about a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from saiserve.engines.llamacpp.kv import DecodeOutcome, KvCache, Row
from saiserve.engines.llamacpp.lanes import MEASURE_AT, SPEED_FLOOR

PROBE_S = 1.5
"""Time after which no further stream count is tried."""
LONE_S = 0.3
"""The same for one thread count."""
PREFILL_TOKENS = 64
STEPS = 5
"""Steps per stream count; the fastest counts, because neighbours only ever slow a step down."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Measured at load."""

    prefill_rate: float
    """Prompt tokens per second."""
    stream_rates: dict[int, float]
    """Tokens per second of each stream, by number of streams."""


def measure(
    kv: KvCache,
    token: int,
    *,
    streams_max: int,
    speed_floor: float = SPEED_FLOOR,
    clock: Callable[[], float] = time.perf_counter,
) -> Speeds:
    """Time a short prefill, then decode steps of growing width. Leaves the cache empty.

    Args:
        token: any token id of the model.
        streams_max: widest step to try, ≤ `kv.sequences_max`.
        speed_floor: share of the lone speed below which wider steps are not tried.
    """
    started = clock()
    _step(kv, (Row(0, 0, token, True),), clock)  # the first step of a process pays for pages and threads
    prompt = tuple(Row(0, 1 + at, token, at == PREFILL_TOKENS - 1) for at in range(PREFILL_TOKENS))
    prefill_rate = PREFILL_TOKENS / max(_step(kv, prompt, clock), 1e-9)
    stream_rates: dict[int, float] = {}
    position = {0: PREFILL_TOKENS + 1}
    for count in MEASURE_AT:
        if count > streams_max or (stream_rates and clock() - started > PROBE_S):
            break
        fastest = float("inf")
        for _ in range(STEPS):
            rows = tuple(Row(stream, position.get(stream, 0), token, True) for stream in range(count))
            fastest = min(fastest, _step(kv, rows, clock))
            position.update({row.sequence: row.position + 1 for row in rows})
            if clock() - started > PROBE_S:
                break
        stream_rates[count] = 1 / max(fastest, 1e-9)
        if stream_rates[count] < stream_rates[1] * speed_floor:
            break
    for stream in position:
        kv.remove(stream, -1, -1)
    return Speeds(prefill_rate, stream_rates)


def lone_step_s(kv: KvCache, token: int, *, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one stream's step, the median of a few, because this one asks how it is and not how it could be."""
    started = clock()
    _step(kv, (Row(0, 0, token, True),), clock)
    times = [_step(kv, (Row(0, 1, token, True),), clock)]
    while len(times) < STEPS and clock() - started < LONE_S:
        times.append(_step(kv, (Row(0, 1 + len(times), token, True),), clock))
    kv.remove(0, -1, -1)
    return sorted(times)[len(times) // 2]


def _step(kv: KvCache, rows: tuple[Row, ...], clock: Callable[[], float]) -> float:
    started = clock()
    if kv.decode(rows) is not DecodeOutcome.DONE:
        raise RuntimeError("the model cannot compute a batch for measurement")
    return clock() - started

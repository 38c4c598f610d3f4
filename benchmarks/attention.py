"""What one token for each of 16 streams costs by llama.cpp's ways to compute attention, in process (decision 0152).

    python -m benchmarks attention [--model smol|gemma] [--steps 6]

Each way has a context of its own on the same weights; figures are medians over steps.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Final

import trio

from acceptance.nodes import default_model_dir
from benchmarks.engine.servers import MODELS
from saiserve.engines.llamacpp.binding import ContextSettings, LlamaContext
from saiserve.engines.llamacpp.kv import DecodeOutcome, Row
from saiserve.engines.llamacpp.weights import LlamaModel
from saiserve.models.catalog import builtin_catalog
from saiserve.models.store import ModelStore

STREAMS: Final = 16
OWN: Final = 60
"""Tokens each stream has read of its own behind a shared beginning."""
DISTINCT: Final = 200
SHARED: Final = (480, 1_650)
PIECE: Final = 256
TOKEN: Final = 100
"""Which one is computed does not matter to the time."""
WAYS: Final = (
    ("matrices, f16", "f16", False),
    ("flash, f16", "f16", True),
    ("flash, f32", "f32", True),
    ("flash, q8_0", "q8_0", True),
)


class Bench:
    """One context, and what its sequences hold."""

    def __init__(self, model: LlamaModel, kv_type: str, *, is_flash: bool) -> None:
        sizes = ContextSettings(
            cells=8_192, sequences_max=STREAMS + 1, outputs_max=STREAMS + 1, threads=2, kv_type=kv_type,
            flash_attention=is_flash,
        )  # fmt: skip
        self.context = LlamaContext(model, sizes)
        self._ends = [0] * STREAMS

    def read(self, stream: int, tokens: int) -> float:
        """Let a stream read so many tokens; the seconds it took."""
        spent = 0.0
        while tokens > 0:
            count, start = min(PIECE, tokens), self._ends[stream]
            spent += self._decode(tuple(Row(stream, start + offset, TOKEN, False) for offset in range(count)))
            self._ends[stream] += count
            tokens -= count
        return spent

    def share(self) -> None:
        """Let all streams go on from what the first one has read."""
        for stream in range(1, STREAMS):
            self.context.copy(0, stream, 0, self._ends[0])
            self._ends[stream] = self._ends[0]

    def step_s(self, steps: int, streams: int = STREAMS) -> float:
        """Median time of a token for each of the first `streams`."""
        times = []
        for _ in range(steps):
            rows = tuple(Row(stream, end, TOKEN, True) for stream, end in enumerate(self._ends[:streams]))
            times.append(self._decode(rows))
            self._ends = [end + (stream < streams) for stream, end in enumerate(self._ends)]
        return statistics.median(times)

    def clear(self) -> None:
        """Forget everything."""
        for stream in range(STREAMS):
            self.context.remove(stream, 0, -1)
        self._ends = [0] * STREAMS

    def _decode(self, rows: tuple[Row, ...]) -> float:
        started = time.perf_counter()
        outcome = self.context.decode(rows)
        assert outcome is DecodeOutcome.DONE, outcome
        return time.perf_counter() - started


def measure(model: LlamaModel, kv_type: str, steps: int, *, is_flash: bool) -> list[float]:
    """Seconds of a step behind each of `SHARED`, and with distinct prompts."""
    bench = Bench(model, kv_type, is_flash=is_flash)
    found = []
    for shared in SHARED:
        bench.clear()
        bench.read(0, shared)
        bench.share()
        for stream in range(STREAMS):
            bench.read(stream, OWN)
        found.append(bench.step_s(steps))
    bench.clear()
    for stream in range(STREAMS):
        bench.read(stream, DISTINCT)
    found.append(bench.step_s(steps))
    bench.context.close()
    return found


async def path_of(model: str) -> Path:
    """Where the file of smol or gemma lies."""
    entry = builtin_catalog().entry(MODELS[model])
    assert entry is not None
    return await ModelStore(default_model_dir()).locate(entry)


def main() -> int:
    """Print the table; 0 always, because nothing is bounded here."""
    parser = argparse.ArgumentParser(prog="benchmarks attention", description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), default="smol")
    parser.add_argument("--steps", type=int, default=6)
    parsed = parser.parse_args()
    model = LlamaModel(trio.run(path_of, parsed.model))
    heads = [*(f"behind {shared}" for shared in SHARED), f"{DISTINCT} distinct"]
    print(f"{f'{parsed.model}, {STREAMS} streams, ms':28}" + "".join(f"{head:>14}" for head in heads))
    for name, kv_type, is_flash in WAYS:
        times = measure(model, kv_type, parsed.steps, is_flash=is_flash)
        print(f"{name:28}" + "".join(f"{1e3 * value:14.0f}" for value in times), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

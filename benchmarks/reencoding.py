"""What turning SmolLM2's Q4_1 weights into Q8_0 gains in speed and changes in what the model says (decision 0164).

    python -m benchmarks reencoding [--rounds 6] [--threads 2]

Speeds are medians over rounds in turn. What the model says is held against the file's weights as 32-bit floats, which are
exactly what Q4_1 stands for: the mean divergence of the next token's distribution (nats) and how often the likeliest is the same.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import trio
from numpy.typing import NDArray

from benchmarks.attention import path_of
from saiserve.bench.prompts import text
from saiserve.engines.llamacpp.binding import ContextSettings, LlamaContext
from saiserve.engines.llamacpp.cores import waiting_environment
from saiserve.engines.llamacpp.kv import Row
from saiserve.engines.llamacpp.reencoding import converted
from saiserve.engines.llamacpp.settings import EngineSettings
from saiserve.engines.llamacpp.vocabulary import Vocabulary
from saiserve.engines.llamacpp.weights import LlamaModel

STREAMS: Final = 16
OWN: Final = 64
"""Tokens each stream has read."""
STEPS: Final = 10
PIECE: Final = 48
"""Tokens of one text whose distributions are looked at, each in a batch of its own text."""
TEXTS: Final = 24
F32_FILE: Final = 0

Experiment = Callable[[LlamaContext], float]


def reading(rows: int) -> Experiment:
    """Tokens per second of a batch."""

    def run(context: LlamaContext) -> float:
        started = time.perf_counter()
        context.decode(tuple(Row(0, place, 100 + place % 100, place == rows - 1) for place in range(rows)))
        rate = rows / (time.perf_counter() - started)
        context.remove(0, 0, -1)
        return rate

    return run


def decoding(streams: int) -> Experiment:
    """Tokens per second of each of so many streams."""

    def run(context: LlamaContext) -> float:
        for stream in range(streams):
            context.decode(tuple(Row(stream, place, 100 + place, place == OWN - 1) for place in range(OWN)))
        times = []
        for step in range(STEPS):
            started = time.perf_counter()
            context.decode(tuple(Row(stream, OWN + step, 100 + step, True) for stream in range(streams)))
            times.append(time.perf_counter() - started)
        for stream in range(streams):
            context.remove(stream, 0, -1)
        return 1 / statistics.median(times)

    return run


EXPERIMENTS: Final = {
    "64 prompt tokens": reading(64),
    "256 prompt tokens": reading(256),
    "1 stream": decoding(1),
    "4 streams": decoding(4),
    "16 streams": decoding(STREAMS),
}


def said(model: LlamaModel, threads: int) -> NDArray[np.float64]:
    """Logarithms of the next token's probabilities after each token of some texts."""
    sizes = ContextSettings(cells=256, sequences_max=2, batch_max=PIECE, outputs_max=PIECE, threads=threads)
    context, vocabulary, found = LlamaContext(model, sizes), Vocabulary(model.vocab), []
    for number in range(TEXTS):
        ids = vocabulary.tokenise(text(PIECE, "reencoding", number), special=False, add_ends=True)[:PIECE]
        context.decode(tuple(Row(0, place, token, True) for place, token in enumerate(ids)))
        logits = np.array([context.logits(row) for row in range(len(ids))], dtype=np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        found.append(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))
        context.remove(0, 0, -1)
    context.close()
    return np.concatenate(found)


def divergence(of: NDArray[np.float64], exact: NDArray[np.float64]) -> tuple[float, float]:
    """Mean Kullback-Leibler divergence from the exact distributions; share of places with the same likeliest token."""
    per_place = (np.exp(exact) * (exact - of)).sum(axis=1)
    return float(per_place.mean()), float((of.argmax(axis=1) == exact.argmax(axis=1)).mean())


def main() -> int:
    """Print two tables; 0 always, because nothing is bounded here."""
    parser = argparse.ArgumentParser(prog="benchmarks reencoding", description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parsed = parser.parse_args()
    os.environ.update(waiting_environment(parsed.threads, os.environ))
    path = str(trio.run(path_of, "smol"))
    settings = EngineSettings(model_path=path, model_id="smol", threads=parsed.threads)
    models = {"as in the file": LlamaModel(Path(path), settings), "Q8_0": converted(Path(path), settings)}
    sizes = ContextSettings(cells=4_096, sequences_max=STREAMS + 2, outputs_max=STREAMS + 2, threads=parsed.threads)
    contexts = {name: LlamaContext(model, sizes) for name, model in models.items()}
    rates: dict[tuple[str, str], list[float]] = {}
    for _ in range(parsed.rounds):
        for name, context in contexts.items():
            for what, run in EXPERIMENTS.items():
                rates.setdefault((name, what), []).append(run(context))
    print(f"{'tokens/s':16}" + "".join(f"{what:>18}" for what in EXPERIMENTS))
    for name in models:
        print(f"{name:16}" + "".join(f"{statistics.median(rates[name, what]):18.0f}" for what in EXPERIMENTS))
    exact_model = converted(Path(path), settings, F32_FILE)
    exact = said(exact_model, parsed.threads)
    print(f"\n{'':16}{'divergence':>18}{'same likeliest':>18}    of {len(exact)} places")
    for name, model in models.items():
        mean, same = divergence(said(model, parsed.threads), exact)
        print(f"{name:16}{mean:18.5f}{same:18.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

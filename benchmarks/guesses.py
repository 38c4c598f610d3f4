"""What guessing ahead (`SPECULATE=1`) gives one stream, by what it writes, beside the same node without (decision 0151).

    python -m benchmarks guesses [--model smol|gemma] [--rounds 4]

Ratios are of tokens per second after the first token, greedy, medians of rounds in turn; `same` says whether the texts were.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from acceptance.nodes import default_model_dir
from benchmarks.engine.servers import MODELS
from saiserve.bench.client import Client, Reply
from saiserve.bench.processes import our_node
from saiserve.bench.prompts import text

TOKENS: Final = 80
TASKS: Final = ("repeats a given text", "goes on with a list", "free text")


def prompt(task: str, number: int) -> str:
    """What is asked for in a round."""
    words = text(40, task, number)
    return {
        TASKS[0]: f"Repeat this text word for word, twice:\n{words}",
        TASKS[1]: "Go on with this list:\n" + "\n".join(f"{line}. item number {line}" for line in range(1, 12)),
        TASKS[2]: f"Write a short story with these words: {' '.join(words.split()[:8])}.",
    }[task]


@asynccontextmanager
async def _node(model: str, speculate: str) -> AsyncIterator[Client]:
    settings = {"MODELS": MODELS[model], "MODEL_DIR": str(default_model_dir()), "LANES": "4", "SPECULATE": speculate}
    async with our_node(MODELS[model], settings) as client:
        yield client


async def measure(model: str, rounds: int) -> list[tuple[str, list[tuple[Reply, Reply]]]]:
    """Replies with and without guesses, by task and round."""
    found = []
    async with _node(model, "1") as guessing, _node(model, "0") as plain:
        for task in TASKS:
            pairs = []
            for number in range(rounds):
                chat = [{"role": "user", "content": prompt(task, number)}]
                pairs.append((await guessing.chat(chat, TOKENS), await plain.chat(chat, TOKENS)))
            found.append((task, pairs))
    return found


def main() -> int:
    """Print the table; 0 always, because nothing is bounded here."""
    parser = argparse.ArgumentParser(prog="benchmarks guesses", description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), default="smol")
    parser.add_argument("--rounds", type=int, default=4)
    parsed = parser.parse_args()
    print(f"{parsed.model:24} {'with':>8} {'without':>8} {'ratio':>7}  same")
    for task, pairs in trio.run(measure, parsed.model, parsed.rounds):
        rates = [(fast.decode_rate, slow.decode_rate) for fast, slow in pairs]
        ours, theirs, ratio = (
            statistics.median(values) for values in (*zip(*rates, strict=True), [fast / slow for fast, slow in rates])
        )
        same = sum(fast.text == slow.text for fast, slow in pairs)
        print(f"{task:24} {ours:8.1f} {theirs:8.1f} {ratio:7.2f}  {same} of {len(pairs)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

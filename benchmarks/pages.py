"""What huge pages are worth: steps on weights and cache in them and in small ones, in turn, in process (decision 0166).

    python -m benchmarks pages [--model smol|gemma] [--rounds 40]

Small pages are the file mapped, as llama-server has it. Prints medians and the ratio of each figure.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import sys
from pathlib import Path
from typing import Final

import trio

from benchmarks.attention import STREAMS, Bench, path_of
from benchmarks.engine.servers import MODELS
from saiserve.engines.llamacpp.estimate import may_reencode
from saiserve.engines.llamacpp.gguf_file import read_model_file
from saiserve.engines.llamacpp.heap import HUGE_PAGES
from saiserve.engines.llamacpp.reencoding import converted
from saiserve.engines.llamacpp.settings import EngineSettings
from saiserve.engines.llamacpp.weights import LlamaModel

SET_THP_DISABLE: Final = 41
"""prctl(2)."""
PROMPT: Final = 200
LONE_STEPS: Final = 6
"""In a row, of which the first, which finds the other's weights in the processor's caches, does not count."""
FIGURES: Final = ("a prompt of 200", f"{STREAMS} streams", "1 stream")


def bench_of(path: Path, *, is_huge: bool) -> Bench:
    """The model loaded once more, with memory of one kind.

    Raises:
        OSError: this is no Linux that can withhold huge pages.
    """
    if ctypes.CDLL(None).prctl(SET_THP_DISABLE, 0 if is_huge else 1, 0, 0, 0) != 0:
        raise OSError("this kernel does not let a process go without huge pages")
    settings = EngineSettings(model_path=str(path), model_id="pages", mmap=not is_huge)
    is_slow = may_reencode(read_model_file(path), settings)
    model = converted(path, settings) if is_slow else LlamaModel(path, settings)
    return Bench(model, "f16", is_flash=True)


def huge_mib() -> int:
    """Memory of this process in huge pages, MiB."""
    lines = Path("/proc/self/smaps_rollup").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages")) >> 10


def measure(small: Bench, huge: Bench, rounds: int) -> list[tuple[float, float]]:
    """Seconds of each of `FIGURES` with small pages and with huge ones."""
    sides: list[tuple[Bench, list[list[float]]]] = [(small, [[], [], []]), (huge, [[], [], []])]
    turns = [sides, sides[::-1]]
    for stream in range(STREAMS):
        for bench, times in turns[stream % 2]:
            times[0].append(bench.read(stream, PROMPT))
    for number in range(rounds):
        for bench, times in turns[number % 2]:
            times[1].append(bench.step_s(1))
    for bench, _ in sides:
        bench.clear()
        bench.read(0, PROMPT)
    for number in range(rounds):
        for bench, times in turns[number % 2]:
            times[2] += [bench.step_s(1, streams=1) for _ in range(LONE_STEPS)][1:]
    before, after = ([statistics.median(values) for values in times] for _, times in sides)
    return list(zip(before, after, strict=True))


def main() -> int:
    """Print the table; 0 always, because nothing is bounded here."""
    parser = argparse.ArgumentParser(prog="benchmarks pages", description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), default="smol")
    parser.add_argument("--rounds", type=int, default=40)
    parsed = parser.parse_args()
    name, tunable = HUGE_PAGES
    if os.environ.get(name) != tunable:  # read when a process starts
        os.execve(sys.executable, sys.orig_argv, {**os.environ, name: tunable})
    path = trio.run(path_of, parsed.model)
    small = bench_of(path, is_huge=False)
    mib = huge_mib()
    huge = bench_of(path, is_huge=True)
    print(f"{parsed.model}: {mib} MiB in huge pages, then {huge_mib()}")
    print(f"{'ms':18}{'small':>10}{'huge':>10}{'small/huge':>12}")
    for figure, (before, after) in zip(FIGURES, measure(small, huge, parsed.rounds), strict=True):
        print(f"{figure:18}{1e3 * before:10.1f}{1e3 * after:10.1f}{before / after:12.3f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

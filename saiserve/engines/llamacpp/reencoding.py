"""Weights in types that llama.cpp multiplies one row after the other become Q8_0, which it multiplies in blocks.

What a file holds is Q4_1 or Q5_1 where a better type does not fit a small model's width. Eight bits of their own scale hold
what four and five with scale and offset say to within a two-hundredth of a block's largest weight, less than llama.cpp loses by
rounding the other side of each product. The new file is a memory of this process; nothing is written to a disk.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import llama_cpp

from saiserve.engines.llamacpp import native
from saiserve.engines.llamacpp.binding import ContextSettings, LlamaContext
from saiserve.engines.llamacpp.cores import threads_for
from saiserve.engines.llamacpp.native import failure_reason
from saiserve.engines.llamacpp.probe import PREFILL_TOKENS, Speeds, measure
from saiserve.engines.llamacpp.settings import EngineSettings
from saiserve.engines.llamacpp.weights import LlamaModel, LoadError

THREADS_FEW: Final = {"x86_64": 4, "AMD64": 4}
"""So many threads are busy with computing, whatever the weights' size, on machines of these kinds; more of them are tried, for
they may wait for memory, and so is every other kind. No trial where it is known: nodes that are alike decide alike, and load
sooner."""
READING_GAIN: Final = 1.2
"""Prompts must be read this many times as fast."""
STREAM_LOSS: Final = 0.75
"""And a lone stream must keep this share of its speed: where memory is slow, larger weights cost it."""
ROUNDS: Final = 2
"""Each is measured so often, in turn; the best counts, because neighbours only ever slow a step down."""
PROBE_CELLS: Final = 256


class Chosen(NamedTuple):
    """A model whose weights are to be computed with."""

    model: LlamaModel
    told: str
    """What its weights are now, and why, for operators."""


def faster_of(
    model: LlamaModel, settings: EngineSettings, *, on_progress: Callable[[float], None] = lambda _fraction: None
) -> Chosen:
    """The model, or the same with its weights in Q8_0 where that is faster; the other one is closed.

    Whatever goes wrong on the way leaves the model as it is. `on_progress` is told that all of the file is read.
    """
    other, threads = None, threads_for(settings.threads)
    try:
        other = converted(Path(settings.model_path), settings)
        on_progress(1.0)
        if threads <= THREADS_FEW.get(platform.machine(), 0):
            is_faster, why = True, f"untried with {threads} threads"
        else:
            before, after = _speeds_of(model, other, threads, lambda: on_progress(1.0))
            is_faster, why = gains(before, after), compared(before, after)
    except Exception as error:  # noqa: BLE001  # the model can be served without
        is_faster, why = False, f"not converted: {str(error) or type(error).__name__}"
    kept, left = (other, model) if other is not None and is_faster else (model, other)
    if left is not None:
        left.close()
    return Chosen(kept, f"{'Q8_0 instead of' if is_faster else 'as in'} the file ({why})")


def converted(path: Path, settings: EngineSettings, kind: int = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0) -> LlamaModel:
    """A file's model with all its matrices in another type, by llama.cpp's number of file types.

    Its weights are read out of the new file, not mapped: where llama.cpp lays some out anew (AMX, ARM), a mapping of the
    others would keep all of the file in memory beside them.

    Raises:
        LoadError: llama.cpp could not read, convert or load it.
        OSError: there is no memory for a file.
    """
    native.start()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = kind, True, threads_for(settings.threads)
    file = os.memfd_create("weights", os.MFD_CLOEXEC)
    name = f"/proc/self/fd/{file}"
    try:
        if llama_cpp.llama_model_quantize(str(path).encode(), name.encode(), params) != 0:
            raise LoadError(f"llama.cpp did not convert the weights: {failure_reason()}")
        return LlamaModel(Path(name), replace(settings, mmap=False))
    finally:
        os.close(file)


def gains(before: Speeds, after: Speeds) -> bool:
    """Whether reading becomes so much faster, and a lone stream no slower than may be."""
    reads = after.prefill_rate >= READING_GAIN * before.prefill_rate
    return reads and after.stream_rates[1] >= STREAM_LOSS * before.stream_rates[1]


def compared(before: Speeds, after: Speeds) -> str:
    """What a trial has shown, in half a sentence."""
    return (
        f"in Q8_0 {after.prefill_rate:.0f} prompt tokens per second instead of {before.prefill_rate:.0f}, "
        f"{after.stream_rates[1]:.0f} of one stream instead of {before.stream_rates[1]:.0f}"
    )


def _speeds_of(model: LlamaModel, other: LlamaModel, threads: int, told: Callable[[], None]) -> tuple[Speeds, Speeds]:
    found: tuple[list[Speeds], list[Speeds]] = ([], [])
    for _ in range(ROUNDS):
        for one, speeds in zip((model, other), found, strict=True):
            told()
            speeds.append(_speeds(one, threads))
    return _best(found[0]), _best(found[1])


def _speeds(model: LlamaModel, threads: int) -> Speeds:
    settings = ContextSettings(
        cells=PROBE_CELLS, sequences_max=2, batch_max=PREFILL_TOKENS, outputs_max=2, threads=threads
    )
    context = LlamaContext(model, settings)
    try:
        return measure(context, 0, streams_max=1)
    finally:
        context.close()


def _best(speeds: list[Speeds]) -> Speeds:
    alone = max(one.stream_rates[1] for one in speeds)
    return Speeds(max(one.prefill_rate for one in speeds), {1: alone})

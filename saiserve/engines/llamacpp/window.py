"""The low-memory cache of models with a sliding window: how many sequences it has, and what that saves. Pure.

llama.cpp then gives layers with a window as many cells as all sequences' windows and one batch take together, so few
sequences must share them: with the usual number nothing would be saved.
"""

from __future__ import annotations

from typing import Final

from saiserve.engines.llamacpp.gguf_file import ModelFile
from saiserve.engines.llamacpp.settings import BATCH_MAX, SEQUENCES_MAX, EngineSettings

SEQUENCES_USUAL: Final = 12
"""Unless lanes are set."""
SEQUENCES_BESIDE_LANES: Final = 4
"""Idle ones, from which prefixes are taken, and the spare one."""
PERIODS: Final = {"gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "cohere2": 4}
"""By architecture: every so manieth layer has no window; only for the estimate, and only where the file is silent."""


def has_small_windows(file: ModelFile, settings: EngineSettings) -> bool:
    """Whether the model has a window and the operator wants the cache small."""
    return not settings.window_full and file.number("attention.sliding_window") > 0


def sequences_for(file: ModelFile, settings: EngineSettings) -> int:
    """Sequence ids of the cache, running, idle and spare."""
    if not has_small_windows(file, settings):
        return SEQUENCES_MAX
    return min(SEQUENCES_MAX, settings.lanes + SEQUENCES_BESIDE_LANES if settings.lanes else SEQUENCES_USUAL)


def kept_share(file: ModelFile, settings: EngineSettings, cells: int) -> float:
    """Share of a whole cache's bytes, in (0, 1]; 1 where the file does not tell which layers have a window."""
    if not has_small_windows(file, settings) or cells <= 0:
        return 1.0
    windows = file.number("attention.sliding_window") * sequences_for(file, settings) + BATCH_MAX
    return 1 - _windowed_layers(file) * (1 - min(1.0, windows / cells))


def _windowed_layers(file: ModelFile) -> float:
    """Share of layers with a window."""
    pattern = file.value("attention.sliding_window_pattern")
    if isinstance(pattern, list) and pattern:
        return sum(map(bool, pattern)) / len(pattern)
    period = file.number("attention.sliding_window_pattern") or PERIODS.get(file.architecture, 1)
    layers = file.number("block_count")
    return sum(layer % period < period - 1 for layer in range(layers)) / layers if layers else 0.0

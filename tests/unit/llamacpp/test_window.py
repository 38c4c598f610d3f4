"""The small cache of models with a sliding window: how many sequences, how many bytes, and that it serves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from saiserve.engines.llamacpp.estimate import estimate_memory
from saiserve.engines.llamacpp.gguf_file import ModelFile
from saiserve.engines.llamacpp.loading import load_worker
from saiserve.engines.llamacpp.settings import BATCH_MAX, SEQUENCES_MAX, EngineSettings
from saiserve.engines.llamacpp.window import SEQUENCES_USUAL, kept_share, sequences_for
from saiserve.engines.llamacpp.worker import Worker
from tests.unit.llamacpp.desk import Desk

CELLS = 16_384
SHAPE = {"block_count": 12, "embedding_length": 640, "attention.head_count": 4, "attention.sliding_window": 512}


def header(architecture: str = "gemma3", **more: Any) -> ModelFile:
    keys = {f"{architecture}.{key}": value for key, value in {**SHAPE, **more}.items()}
    return ModelFile(Path("made.gguf"), 1_000_000, 10, {"general.architecture": architecture, **keys})


def engine(**values: Any) -> EngineSettings:
    return EngineSettings(model_path="made.gguf", model_id="made", cells=CELLS, **values)


@pytest.mark.parametrize(
    ("values", "sequences"),
    [
        ({}, SEQUENCES_MAX),
        ({"window_full": False}, SEQUENCES_USUAL),
        ({"window_full": False, "lanes": 2}, 6),
        ({"window_full": False, "lanes": 64}, SEQUENCES_MAX),
    ],
)
def test_few_sequences_share_a_small_cache(values: dict[str, Any], sequences: int) -> None:
    assert sequences_for(header(), engine(**values)) == sequences
    no_window = header(**{"attention.sliding_window": None})
    assert sequences_for(no_window, engine(**values)) == SEQUENCES_MAX


def test_only_layers_with_a_window_are_smaller() -> None:
    small = engine(window_full=False, lanes=2)
    windows = (6 * 512 + BATCH_MAX) / CELLS
    assert kept_share(header(), engine(), CELLS) == 1
    assert kept_share(header(), small, CELLS) == pytest.approx(2 / 12 + 10 / 12 * windows)
    listed = header("other", **{"attention.sliding_window_pattern": [True, False, False, False]})
    assert kept_share(listed, small, CELLS) == pytest.approx(3 / 4 + 1 / 4 * windows)
    assert kept_share(header("other"), small, CELLS) == 1, "the file does not say which layers"
    assert kept_share(header(), engine(window_full=False, lanes=60), CELLS) == 1, "windows of as many take all cells"


def test_the_estimate_counts_it() -> None:
    whole, small = (estimate_memory(header(), engine(window_full=full)) for full in (True, False))
    assert small.kv < 0.55 * whole.kv
    assert (small.weights, small.compute) == (whole.weights, whole.compute)


def test_a_small_cache_answers_as_a_whole_one(tiny: Callable[[str], Path]) -> None:
    def desk(*, window_full: bool) -> Desk:
        settings = EngineSettings(
            model_path=str(tiny("gemma3")), model_id="tiny", context_tokens=1024, cells=4096, threads=1, kv_type="f32",
            flash_attention=False, window_full=window_full,
        )  # fmt: skip
        worker, facts = load_worker(settings)
        assert isinstance(worker, Worker)
        assert facts.lanes < (SEQUENCES_MAX if window_full else SEQUENCES_USUAL)
        return Desk(worker)

    whole, small = desk(window_full=True), desk(window_full=False)
    for words in (5, 60, 130, 60):
        prompt = " ".join(f"word{number % 17}" for number in range(words))
        assert small.answer(prompt, max_tokens=20)[0] == whole.answer(prompt, max_tokens=20)[0]

"""Weights in types that llama.cpp computes with slowly: which become Q8_0, what that changes, and what if it fails."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from numpy.typing import NDArray

from saiserve.engines.llamacpp import native, reencoding
from saiserve.engines.llamacpp.binding import ContextSettings, LlamaContext
from saiserve.engines.llamacpp.estimate import REENCODED_BYTES_MAX, estimate_memory, may_reencode
from saiserve.engines.llamacpp.gguf_file import ModelFile, read_model_file
from saiserve.engines.llamacpp.kv import Row
from saiserve.engines.llamacpp.loading import load_worker
from saiserve.engines.llamacpp.probe import Speeds
from saiserve.engines.llamacpp.protocol import EngineLoadError
from saiserve.engines.llamacpp.reencoding import converted, faster_of, gains
from saiserve.engines.llamacpp.settings import EngineSettings
from saiserve.engines.llamacpp.weights import LlamaModel, LoadError

F32, Q4_0, Q4_1, Q5_1, Q8_0, UNKNOWN = 0, 2, 3, 7, 8, 999
"""ggml's numbers of types."""
Q4_1_FILE, Q8_0_FILE = 3, 7
"""llama.cpp's numbers of file types."""


@pytest.fixture(autouse=True)
def known_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")


@pytest.fixture
def slow_file(tiny: Callable[[str], Path], tmp_path: Path) -> Path:
    """The tiny llama with its matrices in Q4_1."""
    native.start()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.pure = Q4_1_FILE, True
    path = tmp_path / "slow.gguf"
    assert llama_cpp.llama_model_quantize(str(tiny("llama")).encode(), str(path).encode(), params) == 0
    return path


def engine(path: object = "made.gguf", **values: Any) -> EngineSettings:
    return EngineSettings(model_path=str(path), model_id="made", threads=1, **values)


def header(size: int = 1_000_000, *, weights: dict[int, int], **more: Any) -> ModelFile:
    return ModelFile(Path("made.gguf"), size, 10, {"general.architecture": "made", **more}, weights)


@pytest.mark.parametrize(
    ("file", "settings", "may"),
    [
        (header(weights={Q4_1: 60, Q8_0: 40}), engine(), True),
        (header(weights={Q5_1: 60, Q8_0: 40}), engine(), True),
        (header(weights={Q4_1: 30, Q5_1: 30, Q8_0: 40}), engine(), True),
        (header(weights={Q4_1: 40, Q8_0: 60}), engine(), False),
        (header(weights={Q4_0: 100}), engine(), False),
        (header(weights={F32: 100}), engine(), False),
        (header(weights={}), engine(), False),
        (header(weights={Q4_1: 60, Q8_0: 40}), engine(reencode=False), False),
        (header(weights={Q4_1: 60, Q8_0: 40}), engine(gpu_layers=1), False),
        (header(REENCODED_BYTES_MAX, weights={Q4_1: 60}), engine(), True),
        (header(REENCODED_BYTES_MAX + 1, weights={Q4_1: 60}), engine(), False),
        (header(weights={Q4_1: 60}, **{"made.pooling_type": 3}), engine(), False),
    ],
)
def test_small_models_mostly_in_slow_types_are_tried(file: ModelFile, settings: EngineSettings, may: bool) -> None:
    assert may_reencode(file, settings) == may


def test_what_it_takes_more_of_memory_is_in_the_estimate(slow_file: Path) -> None:
    file = read_model_file(slow_file)
    matrices = file.weights[Q4_1]
    assert matrices > 0.9 * sum(file.weights.values())
    as_it_is = estimate_memory(file, engine(reencode=False)).weights
    assert as_it_is == slow_file.stat().st_size
    assert estimate_memory(file, engine()).weights - as_it_is == matrices // 32 * (34 - 20)


def test_weights_in_other_types_become_q8_too_and_none_is_counted_for_less() -> None:
    file = header(weights={Q4_1: 6_400, Q4_0: 3_200, Q8_0: 320, F32: 320, UNKNOWN: 32})
    more = estimate_memory(file, engine()).weights - file.bytes_total
    assert more == 200 * (34 - 20) + 100 * (34 - 18)


def mapped() -> list[str]:
    """Files that this process has made in memory and still holds."""
    maps = Path("/proc/self/maps").read_text("utf-8").splitlines()
    links = [os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    return [one for one in maps + links if "memfd:weights" in one]


def test_nothing_is_left_of_the_file_in_memory_beside_the_weights(slow_file: Path) -> None:
    other = converted(slow_file, engine(slow_file))
    assert mapped() == []
    other.close()


def test_the_model_says_nearly_the_same(slow_file: Path) -> None:
    first, second = LlamaModel(slow_file), converted(slow_file, engine(slow_file))
    assert [llama_cpp.llama_model_ftype(one.handle) & 0xFF for one in (first, second)] == [Q4_1_FILE, Q8_0_FILE]
    before, after = logits(first), logits(second)
    spread = float(before.max() - before.min())
    assert 0 < float(abs(before - after).max()) < 0.05 * spread
    second.close()
    first.close()


def logits(model: LlamaModel) -> NDArray[np.float32]:
    """After some tokens."""
    context = LlamaContext(model, ContextSettings(cells=256, sequences_max=4, outputs_max=4))
    context.decode(tuple(Row(0, place, 40 + place, place == 19) for place in range(20)))
    found = np.array(context.logits(19), copy=True)
    context.close()
    return found


@pytest.mark.parametrize(
    ("before", "after", "gained"),
    [
        ((100, 50), (200, 50), True),
        ((100, 50), (200, 38), True),
        ((100, 50), (200, 37), False),
        ((100, 50), (119, 99), False),
    ],
)
def test_reading_must_gain_and_a_lone_stream_may_lose_a_little(
    before: tuple[float, float], after: tuple[float, float], gained: bool
) -> None:
    assert gains(*(Speeds(reading, {1: alone}) for reading, alone in (before, after))) == gained


@pytest.mark.parametrize("is_faster", [True, False])
def test_the_faster_one_stays_and_nothing_else(
    slow_file: Path, monkeypatch: pytest.MonkeyPatch, is_faster: bool
) -> None:
    monkeypatch.setattr(reencoding, "THREADS_FEW", {})
    monkeypatch.setattr(reencoding, "gains", lambda _before, _after: is_faster)
    model, told = LlamaModel(slow_file), []
    kept, why = faster_of(model, engine(slow_file), on_progress=told.append)
    assert llama_cpp.llama_model_ftype(kept.handle) & 0xFF == (Q8_0_FILE if is_faster else Q4_1_FILE)
    assert (model.handle is None) == is_faster
    assert set(told) == {1.0}
    assert mapped() == []
    assert why.startswith("Q8_0 instead of the file (in Q8_0 " if is_faster else "as in the file (in Q8_0 ")
    assert why.count("instead of") == 2 + is_faster
    logits(kept)
    kept.close()


@pytest.mark.parametrize(("kind", "is_known"), [("x86_64", True), ("aarch64", False)])
def test_few_threads_are_known_to_gain_where_it_was_measured(
    slow_file: Path, monkeypatch: pytest.MonkeyPatch, kind: str, is_known: bool
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: kind)
    monkeypatch.setattr(reencoding, "gains", lambda _before, _after: False)
    told: list[float] = []
    kept, why = faster_of(LlamaModel(slow_file), engine(slow_file), on_progress=told.append)
    assert llama_cpp.llama_model_ftype(kept.handle) & 0xFF == (Q8_0_FILE if is_known else Q4_1_FILE)
    assert ("untried with 1 threads" in why) == is_known
    assert told, "converting took its time"
    kept.close()


def gone(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5_000])


@pytest.mark.parametrize("damage", [gone, cut])
def test_a_file_that_cannot_be_converted_is_served_as_it_is(slow_file: Path, damage: Callable[[Path], None]) -> None:
    model = LlamaModel(slow_file, engine(slow_file, mmap=False))
    damage(slow_file)
    with pytest.raises(LoadError, match="did not convert"):
        converted(slow_file, engine(slow_file))
    kept, why = faster_of(model, engine(slow_file))
    assert kept is model
    assert why.startswith("as in the file (not converted: llama.cpp did not convert the weights: ")
    logits(model)
    model.close()


@pytest.mark.parametrize(
    ("error", "words"),
    [(OSError("no memory"), "no memory"), (MemoryError(), "MemoryError"), (ValueError("odd"), "odd")],
)
def test_whatever_goes_wrong_leaves_the_model_as_it_is(
    slow_file: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    def refuse(_name: str, _flags: int) -> int:
        raise error

    model = LlamaModel(slow_file)
    monkeypatch.setattr(os, "memfd_create", refuse)
    assert faster_of(model, engine(slow_file)) == (model, f"as in the file (not converted: {words})")
    model.close()


def test_what_was_decided_is_among_the_facts(slow_file: Path, tiny: Callable[[str], Path]) -> None:
    small = {"context_tokens": 256, "cells": 512}
    assert load_worker(engine(slow_file, **small))[1].reencoding == "Q8_0 instead of the file (untried with 1 threads)"
    assert load_worker(engine(slow_file, reencode=False, **small))[1].reencoding == ""
    assert load_worker(engine(tiny("llama"), **small))[1].reencoding == ""


def test_weights_that_are_no_numbers_are_not_made_some(slow_file: Path) -> None:
    whole, damage = slow_file.read_bytes(), b"\xff" * 8_000
    slow_file.write_bytes(whole[: -len(damage)] + damage)
    with pytest.raises(EngineLoadError, match=r"slow.gguf cannot be served: .* not numbers"):
        load_worker(engine(slow_file, context_tokens=256, cells=512))

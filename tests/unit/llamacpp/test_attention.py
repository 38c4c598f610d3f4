"""Which attention a model gets is told from its header and the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from saiserve.engines.llamacpp.attention import SCORES_BYTES_MAX, score_bytes, uses_flash_attention
from saiserve.engines.llamacpp.estimate import estimate_memory
from saiserve.engines.llamacpp.gguf_file import ModelFile
from saiserve.engines.llamacpp.settings import EngineSettings

CELLS = 32_768
SMALL_HEADS = {"attention.head_count": 9, "embedding_length": 576, "block_count": 30}


def header(**values: Any) -> ModelFile:
    """A model file of which only this is known."""
    metadata = {f"tiny.{key}": value for key, value in values.items()}
    return ModelFile(Path("tiny.gguf"), 1 << 20, 1, {"general.architecture": "tiny", **metadata})


def settings(**values: Any) -> EngineSettings:
    return EngineSettings(model_path="tiny.gguf", model_id="tiny", **values)


@pytest.mark.parametrize(
    ("values", "chosen", "is_flash"),
    [
        (SMALL_HEADS, {}, False),
        ({**SMALL_HEADS, "attention.key_length": 256}, {}, True),
        ({**SMALL_HEADS, "embedding_length": 1152}, {}, True),
        ({**SMALL_HEADS, "attention.head_count": 64, "attention.key_length": 64}, {}, True),
        (SMALL_HEADS, {"kv_type": "q8_0"}, True),
        (SMALL_HEADS, {"gpu_layers": 4}, True),
        (SMALL_HEADS, {"gpu_layers": -1}, True),
        (SMALL_HEADS, {"flash_attention": True}, True),
        ({**SMALL_HEADS, "attention.key_length": 256}, {"flash_attention": False}, False),
        ({}, {}, True),
    ],
)
def test_small_heads_on_a_cpu_go_without_flash_attention(
    values: dict[str, Any], chosen: dict[str, Any], is_flash: bool
) -> None:
    assert uses_flash_attention(header(**values), settings(**chosen), CELLS) is is_flash


def test_the_estimate_counts_the_scores() -> None:
    file = header(**SMALL_HEADS)
    with_flash = estimate_memory(file, settings(flash_attention=True, cells=CELLS))
    without = estimate_memory(file, settings(cells=CELLS))
    assert without.compute - with_flash.compute == score_bytes(file, CELLS) == 9 * CELLS * 512 * 4 < SCORES_BYTES_MAX

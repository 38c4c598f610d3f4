"""Every setting of a model that an operator has reaches the engine."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from saiserve.config import load_settings
from saiserve.engines.llamacpp.settings import EngineSettings
from saiserve.models.catalog import builtin_catalog, parse_models
from saiserve.residency.source import LoadError, engine_settings, look_at
from tests.fixtures.tiny_models import build

OURS = {"model_path", "model_id", "chat_template", "queue_max"}
"""Not an operator's to set."""


def told(**environment: str) -> EngineSettings:
    settings = load_settings({"HOST": "127.0.0.1", **environment}, {})
    (entry,) = parse_models("smollm2-135m", builtin_catalog())
    return engine_settings(entry, settings, Path("m.gguf"))


REACHED: dict[str, tuple[dict[str, str], Any]] = {
    "context_tokens": ({"CONTEXT_TOKENS": "4096"}, 4096),
    "cells": ({"KV_CELLS": "9000"}, 9000),
    "lanes": ({"LANES": "3"}, 3),
    "speed_floor": ({"SPEED_FLOOR": "0.8"}, 0.8),
    "threads": ({"THREADS": "2"}, 2),
    "kv_type": ({"KV_TYPE": "q4_0"}, "q4_0"),
    "gpu_layers": ({"GPU_LAYERS": "-1"}, -1),
    "gpu_devices": ({"GPU_DEVICES": "A0,A1", "GPU_LAYERS": "9"}, ("A0", "A1")),
    "gpu_split": ({"GPU_SPLIT": "row", "GPU_LAYERS": "9"}, "row"),
    "tensor_split": ({"TENSOR_SPLIT": "3,1", "GPU_LAYERS": "9"}, (3.0, 1.0)),
    "numa": ({"NUMA": "isolate"}, "isolate"),
    "mmap": ({"MMAP": "1"}, True),
    "mlock": ({"MLOCK": "1"}, True),
    "cache_bytes": ({"CACHE_MIB": "7"}, 7 << 20),
    "window_full": ({"WINDOW_FULL": "0"}, False),
    "speculate": ({"SPECULATE": "1"}, True),
    "flash_attention": ({"FLASH_ATTENTION": "0"}, False),
    "reencode": ({"REENCODE": "0"}, False),
    "mmproj_path": ({"MMPROJ": "see.gguf"}, "see.gguf"),
    "adapters": ({"LORA": "poet=poet.gguf@0.5"}, None),
}


def test_all_of_them_are_known_here() -> None:
    assert {field.name for field in fields(EngineSettings)} == OURS | REACHED.keys()


@pytest.mark.parametrize("name", REACHED)
def test_a_setting_reaches_the_engine(name: str) -> None:
    environment, value = REACHED[name]
    found = getattr(told(**environment), name)
    assert found != getattr(told(), name)
    assert value is None or found == value


def test_a_model_s_own_table_reaches_it(tmp_path: Path) -> None:
    file = tmp_path / "saiserve.toml"
    file.write_text('[model."smollm2-135m"]\nspeed_floor = 0.9\nwindow_full = false\n', "utf-8")
    settings = load_settings({"HOST": "127.0.0.1"}, {}, file)
    (entry,) = parse_models("smollm2-135m", builtin_catalog())
    own = engine_settings(entry, settings.for_model(entry.id), Path("m.gguf"))
    assert (own.speed_floor, own.window_full) == (0.9, False)
    assert engine_settings(entry, settings, Path("m.gguf")).speed_floor is None


@pytest.mark.parametrize("setting", [{"LORA": "poet=gone.gguf"}, {"MMPROJ": "gone.gguf"}])
def test_a_missing_companion_is_named_in_words(
    setting: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (entry,) = parse_models("smollm2-135m", builtin_catalog())
    model = build("llama", tmp_path)
    with pytest.raises(LoadError, match=r"cannot be served: \S*gone\.gguf cannot be read: No such file or directory$"):
        look_at(entry, load_settings({"HOST": "127.0.0.1", **setting}, {}), model)

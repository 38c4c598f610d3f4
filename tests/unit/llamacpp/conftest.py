"""Tiny models, built once per run, and what is loaded of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from saiserve.engines.llamacpp.binding import ContextSettings, LlamaContext
from saiserve.engines.llamacpp.loading import load_worker
from saiserve.engines.llamacpp.settings import AdapterSettings, EngineSettings
from saiserve.engines.llamacpp.weights import LlamaModel
from saiserve.engines.llamacpp.worker import Worker
from tests.fixtures import tiny_models
from tests.fixtures.tiny_adapters import lora
from tests.unit.llamacpp.desk import Desk

CELLS = 4096


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The path of a tiny model by name."""
    folder = tmp_path_factory.mktemp("models")
    return lambda name: tiny_models.build(name, folder)


@pytest.fixture
def open_context(tiny: Callable[[str], Path]) -> Iterator[Callable[..., LlamaContext]]:
    """Makes contexts of tiny models, freed at the end of the test, contexts before models."""
    models: list[LlamaModel] = []
    contexts: list[LlamaContext] = []

    def make(
        name: str, *, cells: int = CELLS, sequences_max: int = 16, flash: bool = False, window_full: bool = True
    ) -> LlamaContext:
        model = LlamaModel(tiny(name))
        models.append(model)
        settings = ContextSettings(
            cells=cells,
            sequences_max=sequences_max,
            kv_type="f16" if flash else "f32",
            flash_attention=flash,
            window_full=window_full,
        )
        contexts.append(LlamaContext(model, settings))
        return contexts[-1]

    yield make
    for context in contexts:
        context.close()
    for model in models:
        model.close()


@pytest.fixture
def desk(tiny: Callable[[str], Path]) -> Desk:
    """A worker on the tiny llama, four lanes and eight places in the queue, as exact as it can be."""
    settings = EngineSettings(
        model_path=str(tiny("llama")), model_id="tiny", context_tokens=1024, cells=4096, lanes=4, threads=1,
        kv_type="f32", flash_attention=False, queue_max=8,
    )  # fmt: skip
    worker, _ = load_worker(settings)
    assert isinstance(worker, Worker)
    return Desk(worker)


@pytest.fixture
def open_strong(tiny: Callable[[str], Path], tmp_path: Path) -> Callable[..., Desk]:
    """Makes desks, with flash attention or without, whose adapter overflows the cache's precision at a large scale."""

    def make(flash: bool, lanes: int = 4) -> Desk:
        adapter = lora(tmp_path / "strong.gguf", seed=1, strength=1e4)
        settings = EngineSettings(
            model_path=str(tiny("llama")), model_id="tiny", context_tokens=1024, cells=4096, lanes=lanes, threads=1,
            kv_type="f16", flash_attention=flash,
            adapters=(AdapterSettings(name="strong", path=str(adapter), scale=1e-6),),
        )  # fmt: skip
        worker, _ = load_worker(settings)
        assert isinstance(worker, Worker)
        return Desk(worker)

    return make

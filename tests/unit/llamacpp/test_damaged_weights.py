"""Weights that are read without a complaint and compute nothing: told at the load, not by every answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from saiserve.engines.llamacpp.loading import load_worker
from saiserve.engines.llamacpp.protocol import EngineLoadError
from saiserve.engines.llamacpp.settings import EngineSettings

NOT_NUMBERS = b"\xff" * 65_536
"""As floats of any width: NaN."""


@pytest.mark.parametrize("name", ["llama", "mamba"])
def test_a_model_that_computes_no_numbers_is_not_served(tiny: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    whole = tiny(name).read_bytes()
    path = tmp_path / "damaged.gguf"
    path.write_bytes(whole[: -len(NOT_NUMBERS)] + NOT_NUMBERS)
    with pytest.raises(EngineLoadError, match=r"damaged.gguf cannot be served: .* not numbers; .* fetch it again"):
        load_worker(EngineSettings(model_path=str(path), model_id="tiny", context_tokens=256, cells=512, threads=1))

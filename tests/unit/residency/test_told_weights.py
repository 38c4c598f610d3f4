"""What became of a model's weights when it was loaded is told to operators, where anything did."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jsonschema import validate

from saiserve.api.openapi_replies import RESIDENT
from saiserve.bench.command import _reencoding, show
from saiserve.bench.counted import counted
from saiserve.config import Settings
from saiserve.dispatch.suspects import Suspects
from saiserve.engines.llamacpp.protocol import ModelFacts
from saiserve.engines.messages import Load
from saiserve.models.catalog import builtin_catalog, parse_models
from saiserve.models.store import ModelStore
from saiserve.residency.loader import Loader
from saiserve.residency.resident import Life, Resident

TOLD = "Q8_0 instead of the file (untried with 2 threads)"


def loaded(reencoding: str) -> Resident:
    """A model whose engine has just told that it is ready."""
    (entry,) = parse_models("any=./any.gguf", builtin_catalog())
    resident = Resident(entry, Settings())
    facts = ModelFacts("llama", "full", 1, 260, 2048, 4096, 2048, 2, 1, 32, 0, 100.0, 10.0, {}, reencoding)
    source: Any = SimpleNamespace(facts=facts, load=Load(lanes=2), holdings=None)
    resident.source = source
    return resident


@pytest.mark.parametrize("reencoding", [TOLD, ""])
async def test_it_is_logged_and_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture, reencoding: str) -> None:
    resident = loaded(reencoding)
    loader = Loader(1, ModelStore(tmp_path), Suspects(), lambda: [resident], lambda: None)
    assert "reencoding" not in resident.status(0.0)
    with caplog.at_level(logging.INFO):
        loader._ready(resident, Life())
    assert (f"weights of any: {TOLD}" in caplog.messages) == bool(reencoding)
    assert resident.status(0.0).get("reencoding", "") == reencoding
    validate(resident.status(0.0), RESIDENT)


@pytest.mark.parametrize("reencoding", [TOLD, ""])
async def test_a_bench_tells_what_it_has_measured(reencoding: str) -> None:
    class Client:
        async def ask(self, method: str, path: str) -> bytes:
            assert (method, path) == ("GET", "/admin/models")
            resident = loaded(reencoding)
            resident.facts = getattr(resident.source, "facts", None)
            return json.dumps({"models": [resident.status(0.0)], "memory": {}}).encode()

    client: Any = Client()
    told = await _reencoding(client)
    assert told == reencoding
    result = {"model": "any", "file": "any.gguf", "cores": 2, "table": "", "engine": counted(""), "reencoding": told}
    assert (f"\nweights: {TOLD}\n" in show(result, as_json=False)) == bool(reencoding)
    assert json.loads(show(result, as_json=True))["reencoding"] == reencoding

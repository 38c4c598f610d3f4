"""`saiserve bench [MODEL] [--beside PATH] [--json]`: one node of ours, one model, this machine; see docs/bench.md."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from saiserve.bench.client import AnswerError, Client
from saiserve.bench.counted import counted
from saiserve.bench.figures import Figure, measure, table
from saiserve.bench.processes import llama_server, our_node
from saiserve.config import Settings
from saiserve.errors import SettingsError
from saiserve.models.catalog import CatalogEntry, builtin_catalog, parse_models
from saiserve.models.store import progress_line, store_from

OURS, BESIDE = "saiserve", "llama-server"
STREAMS_MAX = 16
ENGINE_SETTINGS = (
    "THREADS",
    "KV_TYPE",
    "CONTEXT_TOKENS",
    "FLASH_ATTENTION",
    "REENCODE",
    "GPU_LAYERS",
    "GPU_DEVICES",
    "GPU_SPLIT",
    "TENSOR_SPLIT",
    "NUMA",
    "MMAP",
    "MLOCK",
    "WINDOW_FULL",
    "SPECULATE",
    "CACHE_MIB",
    "MODEL_DIR",
)
"""What of a user's settings is measured with; the rest would only let the bench be found by others."""
CELLS_PER_STREAM = 2_048


async def bench(settings: Settings, model: str, beside: Path | None, write: Callable[[str], None]) -> dict[str, Any]:
    """Measure; the result as a JSON object. `write` gets lines about what is being done, each before it is done.

    Raises:
        SettingsError: the model is not known or its file cannot be had, or the binary is missing.
        AnswerError: a server did not do what it should.
    """
    entries = parse_models(model, builtin_catalog(), "the command")
    if len(entries) != 1:
        raise SettingsError(f"{model!r} is not one model")
    entry = entries[0]
    if entry.source.startswith("simulated:"):
        raise SettingsError(f"{entry.id} is simulated: its speed is whatever it was told")
    if beside is not None and not beside.is_file():
        raise SettingsError(f"{beside} is no file: --beside names a llama-server binary")
    path = await store_from(settings).locate(entry, progress=progress_line(entry.id, write, live=False))
    seed = secrets.token_hex(4)
    figures: dict[str, list[Figure]] = {}
    lanes = STREAMS_MAX
    cells = lanes * CELLS_PER_STREAM
    ours = {
        **{name: os.environ[name] for name in ENGINE_SETTINGS if name in os.environ},
        "MODELS": model,
        "LANES": str(lanes),
        "KV_CELLS": str(cells),
    }
    tell = partial(_tell, write, OURS)
    tell(f"starting with {entry.id}")
    async with our_node(entry.id, ours) as client:
        figures[OURS] = await measure(client, lanes, seed, tell)
        engine, reencoding = await _engine(client), await _reencoding(client)
    if beside is not None:
        tell = partial(_tell, write, BESIDE)
        tell(f"starting with {entry.id}")
        async with llama_server(
            beside,
            path,
            entry.id,
            slots=lanes,
            context=cells,
            threads=settings.threads or os.cpu_count() or 1,
            template=entry.template_text,
        ) as client:
            figures[BESIDE] = await measure(client, lanes, seed, tell)
    return _result(entry, path, figures, engine) | {"reencoding": reencoding}


def _tell(write: Callable[[str], None], server: str, what: str) -> None:
    write(f"{server}: {what}\n")


def _result(
    entry: CatalogEntry, path: Path, figures: Mapping[str, list[Figure]], engine: dict[str, float]
) -> dict[str, Any]:
    rows = []
    for row in zip(*figures.values(), strict=True):
        ratio = row[0].value / row[1].value if len(row) > 1 and row[1].value else None
        values = {name: figure.value for name, figure in zip(figures, row, strict=True)}
        rows.append({**asdict(replace(row[0], value=0.0)), "value": row[0].value, "by_server": values, "ratio": ratio})
    return {
        "model": entry.id,
        "file": path.name,
        "cores": os.cpu_count(),
        "rows": rows,
        "engine": engine,
        "table": table(figures),
    }


async def _engine(client: Client) -> dict[str, float]:
    """What the node itself counted meanwhile."""
    return counted((await client.ask("GET", "/metrics")).decode())


async def _reencoding(client: Client) -> str:
    """What types the model's weights were computed in where not simply the file's, and why."""
    (model,) = json.loads(await client.ask("GET", "/admin/models"))["models"]
    return str(model.get("reencoding", ""))


def show(result: dict[str, Any], *, as_json: bool) -> str:
    """The result as it is printed."""
    if as_json:
        return json.dumps({name: value for name, value in result.items() if name != "table"})
    engine = result["engine"]
    weights = f"weights: {result['reencoding']}\n" if result["reencoding"] else ""
    return (
        f"{result['model']} ({result['file']}) on {result['cores']} cores\n"
        f"{weights}{result['table']}\n"
        f"{engine['rows_per_step']:.1f} tokens in a step, {engine['python_share']:.1%} of a step in Python and sampling, "
        f"{engine['prefix_hit_tokens']:.0f} prompt tokens reused\n"
        f"queue: {engine['queue_s_mean'] * 1e3:.0f} ms on average, 90% within {engine['queue_s_p90'] * 1e3:.0f} ms; "
        f"KV cells: {engine['cells_used']:.0f} of {engine['cells_total']:.0f} in use, {engine['cells_idle']:.0f} for reuse; "
        f"event loop late by {engine['loop_lag_s_p99'] * 1e3:.1f} ms at p99, {engine['loop_lag_s_max'] * 1e3:.1f} ms at most"
    )


__all__ = ["AnswerError", "bench", "show"]

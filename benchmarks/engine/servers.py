"""Both servers as processes of their own, set alike: one `saiserve node` and one llama-server on the same weights."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from acceptance.nodes import default_model_dir
from saiserve.bench.client import Client
from saiserve.bench.processes import llama_server, our_node
from saiserve.models.catalog import builtin_catalog
from saiserve.models.store import ModelStore

MODELS = {"smol": "smollm2-135m", "gemma": "gemma-3-270m"}
"""Short names in rows to catalog ids."""
PEER = Path(__file__).parents[2] / ".peers" / "bin" / "llama-server"
"""Built by `make peers`."""
TRIED = ("FLASH_ATTENTION", "REENCODE", "SPECULATE", "KV_TYPE", "LANES")
"""Settings of ours that may be tried in the environment: `FLASH_ATTENTION=1 python -m benchmarks engine distinct`."""
REPORT_S = 0.3
"""Longer than a busy engine takes to report its counters, which `metrics` shows."""
CONTEXT = 32_768
"""Cells in all, on both sides; llama-server divides them among its slots."""


class PeerMissingError(Exception):
    """There is no llama-server to measure beside."""


@dataclass(frozen=True)
class Setup:
    """How both are started."""

    model: str
    """smol or gemma."""
    slots: int = 16
    threads: int = 2
    lanes: int | None = None
    """Our lanes where they are not to be llama-server's slots; 0: measured by the node."""
    cache_mib: int = 1_024
    """Our host memory for parked prefixes; the node's default."""


@asynccontextmanager
async def ours(setup: Setup) -> AsyncIterator[Client]:
    """A node of ours, ready and warm."""
    lanes = setup.slots if setup.lanes is None else setup.lanes
    settings = {
        "MODELS": MODELS[setup.model],
        "MODEL_DIR": str(default_model_dir()),
        "THREADS": str(setup.threads),
        "LANES": str(lanes),
        "KV_CELLS": str(CONTEXT),
        "CACHE_MIB": str(setup.cache_mib),
        **{name: os.environ[name] for name in TRIED if name in os.environ},
    }
    async with our_node(MODELS[setup.model], settings) as client:
        yield client


async def metrics(client: Client) -> dict[str, float]:
    """Our node's metrics, summed over labels."""
    sums: dict[str, float] = {}
    for line in (await client.ask("GET", "/metrics")).decode().splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            name = name.partition("{")[0]
            sums[name] = sums.get(name, 0.0) + float(value)
    return sums


@asynccontextmanager
async def theirs(setup: Setup) -> AsyncIterator[Client]:
    """A llama-server, ready and warm.

    Raises:
        PeerMissingError: the binary is not there.
    """
    if not PEER.exists():
        raise PeerMissingError(f"{PEER} is missing: run `make peers` (some minutes, once)")
    entry = builtin_catalog().entry(MODELS[setup.model])
    assert entry is not None
    path = await ModelStore(default_model_dir()).locate(entry)
    async with llama_server(
        PEER,
        path,
        MODELS[setup.model],
        slots=setup.slots,
        context=CONTEXT,
        threads=setup.threads,
        template=entry.template_text,
    ) as client:
        yield client

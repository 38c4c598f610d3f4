"""How many threads compute on this machine's cores, and how long one waits awake for the others."""

from __future__ import annotations

import os
from collections.abc import Mapping

import psutil

SPINS = 1_000
"""Turns of libgomp's waiting loop, some ten microseconds, until a thread at a barrier sleeps."""
EARLY_THREADS_MAX = 8
"""More threads wait as the library has it: of many cores the node takes little, and no more than two were measured."""
WAITING_NAMES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""With either the operator says how threads wait."""


def threads_for(asked: int | None) -> int:
    """Compute threads: as asked, else one per core this process may use."""
    allowed = _allowed()
    if asked is not None:
        return max(1, min(asked, allowed))
    cores = psutil.cpu_count(logical=False) or allowed
    return max(1, min(cores, allowed))


def waiting_environment(threads: int, environment: Mapping[str, str]) -> dict[str, str]:
    """What to add to `environment` before llama.cpp is loaded, for libgomp reads it then and never again.

    Where every core has a compute thread, a core on which one waits awake is kept from the node's own process, and from
    the thread that was set aside for it and is waited for. With cores to spare, libgomp's milliseconds awake cost nothing.
    """
    if not _allowed() <= threads <= EARLY_THREADS_MAX or any(name in environment for name in WAITING_NAMES):
        return {}
    return {"GOMP_SPINCOUNT": str(SPINS)}


def _allowed() -> int:
    return len(os.sched_getaffinity(0))

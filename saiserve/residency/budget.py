"""One memory budget for all models of a node: how large it is, and what must go so that another model fits.

Pure but for `machine_bytes`, which reads the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from saiserve.engines.llamacpp.estimate import gigabytes

SHARE: Final = 0.8
"""Part of the machine's memory, or of its cgroup's limit, that models may take unless the operator says otherwise."""
CGROUP_LEVELS_MAX: Final = 32
_SIZE_UNLIMITED: Final = 1 << 60
"""cgroup v1 writes "no limit" as a number near 2**63."""


@dataclass(frozen=True, slots=True)
class Held:
    """A model that takes memory, or is about to."""

    model: str
    size: int
    """Bytes."""
    may_go: bool = False
    """Idle and not pinned: it may be unloaded for another."""
    is_pinned: bool = False
    used_at: float = 0.0
    """When it was last used; the longest unused goes first."""


@dataclass(frozen=True, slots=True)
class Room:
    """What to do for a model: unload `evict`, then load. When it does not fit, `refusal` says why, with numbers."""

    evict: tuple[str, ...] = ()
    refusal: str = ""
    is_final: bool = False
    """It would not fit even if everything that is not pinned were gone: waiting is of no use."""


def plan_room(budget: int, needed: int, held: Sequence[Held], what: str) -> Room:
    """Whether `needed` bytes fit into the budget, and what has to go for it: as few as possible, longest unused first.

    Args:
        budget: bytes for all models together.
        held: the models that count against it, without the one to be loaded.
        what: the model with its numbers, for the sentence.
    """
    missing = needed - (budget - sum(one.size for one in held))
    if missing <= 0:
        return Room()
    evict: list[Held] = []
    for one in sorted((one for one in held if one.may_go), key=lambda one: one.used_at):
        if missing <= sum(gone.size for gone in evict):
            break
        evict.append(one)
    if missing <= sum(gone.size for gone in evict):
        return Room(tuple(_without_needless(evict, missing)))
    pinned = sum(one.size for one in held if one.is_pinned)
    return Room(refusal=_sentence(budget, held, what), is_final=needed > budget - pinned)


def machine_bytes(root: Path = Path("/")) -> int:
    """The memory this process may use: the machine's, or the lowest limit of the cgroups it is in."""
    total: int = psutil.virtual_memory().total
    return min([total, *_cgroup_limits(root)])


def budget_bytes(setting_mib: int, root: Path = Path("/")) -> int:
    """The budget for all models: as set, or its share of what this process may use."""
    return setting_mib << 20 if setting_mib else int(machine_bytes(root) * SHARE)


def _without_needless(evict: Sequence[Held], missing: int) -> list[str]:
    """Leave out what need not go: a small one that was taken before a large one that suffices."""
    kept = list(evict)
    for one in evict:
        if sum(gone.size for gone in kept) - one.size >= missing:
            kept.remove(one)
    return [one.model for one in kept]


def _sentence(budget: int, held: Sequence[Held], what: str) -> str:
    used = sum(one.size for one in held)
    mends = "a smaller context, fewer KV_CELLS, KV_TYPE=q8_0, a smaller CACHE_MIB or a larger MEMORY_MIB"
    if not held:
        return f"{what}, more than the budget of {gigabytes(budget)} GB: choose {mends}"
    users = ", ".join(f"{one.model} {gigabytes(one.size)}{_why_it_stays(one)}" for one in held)
    left = gigabytes(max(0, budget - used))
    return f"{what}, and {left} of {gigabytes(budget)} GB are left (held: {users}): unload one or choose {mends}"


def _why_it_stays(one: Held) -> str:
    return " pinned" if one.is_pinned else "" if one.may_go else " in use"


def _cgroup_limits(root: Path) -> list[int]:
    """Limits of all cgroups from this process's up to the root, of either version; empty where there are none."""
    limits: list[int] = []
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        folder = Path(path.strip().lstrip("/"))
        # In a container the path is the host's, and the limit is at the root of what is mounted.
        for level in [folder, *folder.parents][:CGROUP_LEVELS_MAX]:
            limits += [
                int(text) for text in _lines(base / level / name) if text.isdigit() and int(text) < _SIZE_UNLIMITED
            ]
    return limits


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", "replace").split("\n")
    except OSError:
        return []

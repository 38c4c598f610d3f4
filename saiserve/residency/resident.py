"""One model of this node: what is known of it, how far it is, who uses it."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from saiserve.chat.template_ways import tags_of_template
from saiserve.config import Settings
from saiserve.engines.engine import Engine
from saiserve.engines.messages import Load
from saiserve.fleet.facts import ModelState
from saiserve.models.catalog import CatalogEntry

if TYPE_CHECKING:
    from saiserve.engines.llamacpp.estimate import MemoryEstimate
    from saiserve.engines.llamacpp.protocol import ModelFacts
    from saiserve.engines.llamacpp.supervisor import LlamaEngine
    from saiserve.engines.simulated import SimulatedEngine


class Stage(enum.StrEnum):
    """What a model that is being loaded is at."""

    FETCHING = "fetching"
    """Its file comes over the network."""
    CHECKING = "checking"
    """Its file is looked at."""
    MAKING_ROOM = "making room"
    """Others end first, or are waited for."""
    LOADING = "loading"
    """Weights are read, speed is measured."""


class Life:
    """One stay of a model in memory, from the order to load it until its process is gone."""

    def __init__(self) -> None:
        self.settled = trio.Event()
        """It can serve, or it failed."""
        self.loading = trio.CancelScope()
        """Around everything until it can serve."""
        self.stop = trio.Event()
        """It shall end."""
        self.ended = trio.Event()

    def end(self) -> None:
        """Order its end: at once while it loads, else when the requests in it are answered."""
        self.stop.set()
        if not self.settled.is_set():
            self.loading.cancel()


@dataclass(slots=True)
class Resident:
    """One model this node serves or can serve."""

    entry: CatalogEntry
    settings: Settings
    """Those of the node, with what is set for this model alone."""
    is_on_demand: bool = False
    """It may be loaded by whoever asks for it."""
    is_pinned: bool = False
    """It is neither evicted nor unloaded for being idle."""
    at_start: bool = False
    """The node is not ready without it."""
    state: ModelState = ModelState.LOADABLE
    engine: Engine | None = None
    source: LlamaEngine | SimulatedEngine | None = None
    life: Life | None = None
    digest: bytes = b""
    context_tokens: int = 0
    capabilities: frozenset[str] = frozenset()
    path: Path | None = None
    size_bytes: int = 0
    adapters: Mapping[str, bytes] = field(default_factory=dict)
    """Its LoRA adapters by name, each with the digest of what it computes."""
    chat_template: str = ""
    """The source of the template in use, the catalog's or the file's own; empty when there is none."""
    template_ways: int = 0
    """What other nodes are told of the template: `TemplateWays.number`; 0 when there is none."""
    facts: ModelFacts | None = None
    """What loading found out; None for simulated models and before the first load."""
    memory: MemoryEstimate | None = None
    """What it takes; known once its file was looked at."""
    held_bytes: int = 0
    """What counts against the node's budget now."""
    uses: int = 0
    """Requests that are in it or wait for it."""
    used_at: float = 0.0
    """When the last use ended or began."""
    stage: Stage = Stage.CHECKING
    fetched: tuple[int, int | None] = (0, None)
    """Bytes that have come, and of how many, while its file is fetched."""
    error: str = ""
    """Why the last load failed; empty after one that did not."""
    failures: int = 0
    """Loads that failed in a row."""
    retry_at: float = 0.0
    """When it may be tried again after a failure."""
    began_at: float = 0.0
    """When its load began."""
    load_s: float = 0.0
    """What the last load took."""
    loads: int = 0
    """Loads that succeeded, since the node started."""
    load_failures: int = 0
    """Loads that failed, since the node started."""
    unused: trio.Event = field(default_factory=trio.Event)
    """Set when a use ends and none is left; renewed by whoever waits."""

    @property
    def load(self) -> Load:
        """The engine's last own report; empty while there is none."""
        return self.engine.load if self.engine is not None else Load()

    def names(self) -> Iterator[tuple[str, bytes]]:
        """The ids it serves, each with its digest: its own, and one for each adapter."""
        yield self.entry.id, self.digest
        for name, digest in self.adapters.items():
            yield f"{self.entry.id}:{name}", digest

    def note_template_caps(self) -> None:
        """Take back tools that were read out of a template which, rendered, shows none; unless the catalog says so."""
        asked = self.facts.template_caps if self.facts is not None else {}
        if self.entry.is_described or not self.chat_template or not asked:
            return
        found = tags_of_template(self.chat_template, asked)
        self.capabilities -= {"tools"} - self.entry.capabilities - found

    @property
    def reencoding(self) -> str:
        """What types its weights are in now, and why; empty where those of the file were never in question."""
        return self.facts.reencoding if self.facts is not None else ""

    @property
    def is_coming(self) -> bool:
        """Whether it is being loaded and requests may wait for it."""
        return self.state is ModelState.LOADING and not self.at_start and self.engine is None

    @property
    def is_leaving(self) -> bool:
        """Whether its process is on its way out and nobody is in it: what comes now waits and has it loaded anew."""
        return self.life is not None and self.state is ModelState.LOADABLE

    @property
    def fraction(self) -> float:
        """How far the present stage is, 0–1; 1 once it serves."""
        if self.state is ModelState.READY:
            return 1.0
        if self.stage is Stage.FETCHING:
            done, total = self.fetched
            return done / total if total else 0.0
        return float(getattr(self.source, "loaded_fraction", 0.0)) if self.stage is Stage.LOADING else 0.0

    @contextmanager
    def use(self) -> Iterator[None]:
        """Count one use; a model in use is not unloaded for idleness or for another."""
        self.uses += 1
        self.used_at = trio.current_time()
        try:
            yield
        finally:
            self.uses -= 1
            self.used_at = trio.current_time()
            if not self.uses:
                self.unused.set()

    async def until_unused(self) -> None:
        """Wait until nobody uses it."""
        while self.uses:
            self.unused = trio.Event()
            await self.unused.wait()

    def remaining_s(self, now: float) -> float:
        """How much longer its load will probably take; 0 when nothing tells."""
        elapsed = now - self.began_at
        if self.load_s:
            return max(1.0, self.load_s - elapsed)
        if self.fraction >= MEASURABLE:
            return elapsed * (1 - self.fraction) / self.fraction
        return 0.0

    def status(self, now: float) -> dict[str, Any]:
        """What operators are shown of it."""
        shown: dict[str, Any] = {
            "id": self.entry.id,
            "state": self.state.name.lower(),
            "on_demand": self.is_on_demand,
            "pinned": self.is_pinned,
            "memory_bytes": self.memory.total if self.memory else None,
            "held_bytes": self.held_bytes,
            "uses": self.uses,
            "idle_s": round(now - self.used_at, 3) if self.state is ModelState.READY and not self.uses else None,
            "loads": self.loads,
            "load_s": round(self.load_s, 3) or None,
            "error": self.error or None,
        }
        if self.memory is not None:
            use = self.memory
            shown["memory"] = {"weights": use.weights, "kv": use.kv, "compute": use.compute, "cache": use.cache}
        if self.reencoding:
            shown["reencoding"] = self.reencoding
        holdings = getattr(self.source, "holdings", None)
        if holdings is not None and self.state is ModelState.READY:
            shown["prefixes"] = holdings.shown()
        if self.state is ModelState.LOADING:
            shown["progress"] = self.progress(now)
        return shown

    def progress(self, now: float) -> dict[str, Any]:
        """How far its load is."""
        done, total = self.fetched
        return {
            "stage": str(self.stage),
            "fraction": round(self.fraction, 4),
            "bytes_done": done if self.stage is Stage.FETCHING else round(self.fraction * self.size_bytes),
            "bytes_total": total if self.stage is Stage.FETCHING else self.size_bytes,
            "elapsed_s": round(now - self.began_at, 3),
            "remaining_s": round(self.remaining_s(now), 1) or None,
        }


MEASURABLE = 0.05
"""Part of a load from which its speed tells when it will end."""

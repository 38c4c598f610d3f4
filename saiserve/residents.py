"""The models of this node: located, loaded, kept running, and told of to the rest of the node.

One `Resident` per model. A model that cannot be loaded at start ends the node with one sentence: an operator who asked
for it must not find out from a client.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from saiserve.config import Settings
from saiserve.dispatch.choice import clock_ns
from saiserve.dispatch.suspects import GuardedEngine, Suspects
from saiserve.engines.engine import Engine
from saiserve.engines.llamacpp.gguf_file import ModelFileError, read_model_file
from saiserve.engines.messages import Load
from saiserve.engines.simulated import SimulatedEngine, parse_simulated
from saiserve.errors import SettingsError
from saiserve.fleet.facts import ModelFact, ModelState, capability_bits
from saiserve.models.catalog import CatalogEntry
from saiserve.models.store import ModelStore, file_digest, progress_line
from swimcluster.nursery import open_plain_nursery

if TYPE_CHECKING:
    from saiserve.engines.llamacpp.protocol import ModelFacts
    from saiserve.engines.llamacpp.supervisor import LlamaEngine

log = logging.getLogger(__name__)

CONTEXT_DEFAULT_MAX: Final = 8192
"""Context of one request when nobody set it; longer ones cost memory that most nodes want for lanes."""
WATCH_S: Final = 0.25
"""How often an engine's readiness is looked at."""


@dataclass(slots=True)
class Resident:
    """One model of this node and how far it is."""

    entry: CatalogEntry
    state: ModelState = ModelState.LOADING
    engine: Engine | None = None
    source: LlamaEngine | SimulatedEngine | None = None
    digest: bytes = b""
    context_tokens: int = 0
    path: Path | None = None
    size_bytes: int = 0
    chat_template: str = ""
    """The source of the template in use, the catalog's or the file's own; empty when there is none."""
    facts: ModelFacts | None = None
    """What loading found out; None for simulated models."""

    @property
    def load(self) -> Load:
        """The engine's last own report; empty while there is none."""
        return self.engine.load if self.engine is not None else Load()


@dataclass(slots=True)
class Residents:
    """All models of this node. `on_change` is called after every change of a state."""

    settings: Settings
    entries: Sequence[CatalogEntry]
    store: ModelStore
    suspects: Suspects
    on_change: Callable[[], None]
    models: dict[str, Resident] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.models = {
            entry.id: Resident(entry, context_tokens=context_of(self.settings, entry)) for entry in self.entries
        }

    def engine(self, model: str) -> Engine | None:
        """The engine that serves a model here, or None."""
        resident = self.models.get(model)
        return resident.engine if resident is not None and resident.state is ModelState.READY else None

    @property
    def all_ready(self) -> bool:
        """Whether every model of this node can serve."""
        return all(resident.state is ModelState.READY for resident in self.models.values())

    def facts(self) -> tuple[ModelFact, ...]:
        """What this node tells others of its models."""
        return tuple(
            ModelFact(
                id=resident.entry.id,
                digest=resident.digest,
                state=resident.state,
                context=resident.context_tokens,
                capability_bits=capability_bits(resident.entry.capabilities),
                lanes=resident.load.lanes,
            )
            for resident in self.models.values()
        )

    def loads(self) -> Mapping[str, Load]:
        """Each ready model's load."""
        return {model: r.load for model, r in self.models.items() if r.state is ModelState.READY}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load all models and keep their engines running; started once all can serve.

        Raises:
            SettingsError: a model cannot be had or loaded.
        """
        async with open_plain_nursery() as nursery:
            for resident in self.models.values():
                await nursery.start(self._run_one, resident)
            task_status.started()

    async def _run_one(self, resident: Resident, *, task_status: trio.TaskStatus[None]) -> None:
        entry = resident.entry
        if entry.source.startswith("simulated:"):
            await self._run_simulated(resident, task_status)
            return
        report = progress_line(entry.id, lambda text: log.info("fetching %s", text.strip()), live=False)
        resident.path = await self.store.locate(entry, progress=report)
        log.info("loading %s and measuring how fast it is", entry.id)
        template = entry.template_text
        resident.digest = await trio.to_thread.run_sync(file_digest, resident.path, template or "")
        try:
            file = await trio.to_thread.run_sync(read_model_file, resident.path)
        except ModelFileError as error:
            raise SettingsError(f"model {entry.id!r} cannot be served: {error}") from error
        resident.size_bytes, resident.chat_template = file.bytes_total, template or file.chat_template or ""
        await self._run_llama(resident, template, task_status)

    async def _run_simulated(self, resident: Resident, task_status: trio.TaskStatus[None]) -> None:
        settings = replace(parse_simulated(resident.entry.source), model=resident.entry.id)
        source = SimulatedEngine(settings)
        resident.digest = settings.model.encode()[:8].ljust(8, b"\0")
        resident.context_tokens = settings.context_tokens
        self._serve(resident, source)
        task_status.started()
        await trio.sleep_forever()

    async def _run_llama(self, resident: Resident, template: str | None, task_status: trio.TaskStatus[None]) -> None:
        from saiserve.engines.llamacpp.settings import EngineSettings
        from saiserve.engines.llamacpp.supervisor import EngineLoadError, EngineState, LlamaEngine

        settings = self.settings
        engine = LlamaEngine(
            EngineSettings(
                model_path=str(resident.path),
                model_id=resident.entry.id,
                context_tokens=resident.context_tokens or None,
                lanes=settings.lanes or None,
                threads=settings.threads or None,
                kv_type=settings.kv_type,
                chat_template=template,
                gpu_layers=settings.gpu_layers,
                cache_bytes=settings.cache_mib << 20,
            )
        )
        async with open_plain_nursery() as nursery:
            try:
                await nursery.start(engine.run)
            except EngineLoadError as error:
                raise SettingsError(f"model {resident.entry.id!r} cannot be served: {error}") from error
            resident.facts = engine.facts
            self._serve(resident, engine)
            log.info("%s is ready: %d lanes", resident.entry.id, resident.load.lanes)
            task_status.started()
            while True:
                # A crashed engine restarts by itself; others must not route here meanwhile.
                await trio.sleep(WATCH_S)
                state = ModelState.READY if engine.state is EngineState.READY else ModelState.LOADING
                if state is not resident.state:
                    resident.state = state
                    self.on_change()

    def _serve(self, resident: Resident, source: LlamaEngine | SimulatedEngine) -> None:
        resident.source = source
        resident.engine = GuardedEngine(source, self.suspects, clock_ns)
        resident.state = ModelState.READY
        self.on_change()


def context_of(settings: Settings, entry: CatalogEntry) -> int:
    """The longest conversation of a model on this node, in tokens.

    Raises:
        SettingsError: more is set than the model was made for.
    """
    wanted = settings.context_tokens
    if not wanted:
        return min(entry.context_tokens, CONTEXT_DEFAULT_MAX)
    if entry.title and wanted > entry.context_tokens:
        raise SettingsError(
            f"CONTEXT_TOKENS is {wanted}, but {entry.id} was made for {entry.context_tokens}: use at most that"
        )
    return wanted

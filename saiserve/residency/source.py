"""From a model's name to something that can be started: its file found and looked at, its memory estimated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from saiserve.chat.template_ways import tags_of_template, ways_of
from saiserve.config import Settings
from saiserve.engines.llamacpp.estimate import MemoryEstimate, estimate_memory
from saiserve.engines.llamacpp.gguf_file import ModelFileError, read_model_file
from saiserve.engines.llamacpp.purpose import capabilities_of
from saiserve.engines.llamacpp.settings import EngineSettings
from saiserve.engines.simulated import SimulatedEngine, SimulatedSettings, parse_simulated
from saiserve.errors import SettingsError
from saiserve.models.catalog import CatalogEntry
from saiserve.models.download import Progress
from saiserve.models.store import ModelStore, file_digest
from saiserve.residency.resident import Resident, Stage

if TYPE_CHECKING:
    from saiserve.engines.llamacpp.supervisor import LlamaEngine

CONTEXT_DEFAULT_MAX: Final = 8192
"""Context of one request when nobody set it; longer ones cost memory that most nodes want for lanes."""
SIMULATED: Final = "simulated:"
LOAD_STEPS: Final = 20
"""Steps in which a simulated load goes on."""


class LoadError(SettingsError):
    """A model cannot be served; one sentence that names it and the reason. Nothing of it is left behind."""


class Source(Protocol):
    """A model that can be started and looked after."""

    @property
    def engine(self) -> LlamaEngine | SimulatedEngine:
        """What answers."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether it can serve now; a crashed engine restarts by itself."""
        ...

    @property
    def failure(self) -> str:
        """Why its last restart could not load the model; empty when it could, or has not tried."""
        ...

    async def run(self, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; started once it can.

        Raises:
            LoadError: it cannot be loaded.
        """
        ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model whose file was looked at."""

    source: Source
    memory: MemoryEstimate
    context_tokens: int
    capabilities: frozenset[str]
    digest: bytes
    path: Path | None = None
    size_bytes: int = 0
    chat_template: str = ""
    adapters: Mapping[str, bytes] = field(default_factory=dict)
    """Digest of each LoRA adapter's weights together with the model's, by name."""

    def note_in(self, resident: Resident) -> None:
        """Write down what was found."""
        resident.memory, resident.digest, resident.capabilities = self.memory, self.digest, self.capabilities
        resident.context_tokens, resident.path = self.context_tokens, self.path
        resident.size_bytes, resident.chat_template = self.size_bytes, self.chat_template
        ways = ways_of(self.chat_template)
        resident.template_ways = ways.number if ways is not None else 0
        resident.adapters = self.adapters


class LlamaSource:
    """A GGUF file behind an engine process."""

    def __init__(self, settings: EngineSettings) -> None:
        # Imported late: a node of simulated models or none needs no engine.
        from saiserve.engines.llamacpp.supervisor import EngineLoadError, EngineState, LlamaEngine

        self.engine = LlamaEngine(settings)
        self._ready, self._error = EngineState.READY, EngineLoadError

    @property
    def is_ready(self) -> bool:
        """As `Source.is_ready`."""
        return self.engine.state is self._ready

    @property
    def failure(self) -> str:
        """As `Source.failure`."""
        return self.engine.load_failed

    async def run(self, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED) -> None:
        """As `Source.run`."""
        try:
            await self.engine.run(task_status=task_status)
        except self._error as error:
            raise LoadError(f"model {self.engine.model!r} cannot be served: {error}") from error


class SimulatedSource:
    """A simulated model: always ready once its loading time is over."""

    failure = ""
    is_ready = True

    def __init__(self, settings: SimulatedSettings) -> None:
        self.engine = SimulatedEngine(settings)

    async def run(self, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED) -> None:
        """As `Source.run`."""
        settings = self.engine.settings
        for step in range(LOAD_STEPS if settings.load_s else 0):
            self.engine.loaded_fraction = step / LOAD_STEPS
            await trio.sleep(settings.load_s / LOAD_STEPS)
        if settings.load_fails:
            raise LoadError(f"model {settings.model!r} cannot be served: it is simulated to fail")
        task_status.started()
        await trio.sleep_forever()


async def prepare(resident: Resident, store: ModelStore, report: Progress) -> Prepared:
    """Find, fetch if need be, and look at a model's file.

    Raises:
        SettingsError: there is no such file, or it cannot be served.
    """
    entry = resident.entry
    if entry.source.startswith(SIMULATED):
        return _simulated(entry)
    resident.stage = Stage.FETCHING
    path = await store.locate(entry, progress=report)
    resident.stage = Stage.CHECKING
    return await trio.to_thread.run_sync(look_at, entry, resident.settings, path)


def look_at(entry: CatalogEntry, settings: Settings, path: Path) -> Prepared:
    """Read a file's header; takes milliseconds, wants a thread.

    Raises:
        LoadError: it is damaged or no model.
    """
    template = entry.template_text
    try:
        file = read_model_file(path)
        projector = settings.mmproj if settings.mmproj.name else None
        seen = file_digest(projector).hex() if projector else ""
        digest = file_digest(path, (template or "") + seen)
        adapters = {one.name: file_digest(Path(one.path), f"{digest.hex()} {one.scale}") for one in settings.lora}
    except ModelFileError as error:
        raise LoadError(f"model {entry.id!r} cannot be served: {error}") from error
    except OSError as error:
        reason = f"{error.filename} cannot be read: {error.strerror}"
        raise LoadError(f"model {entry.id!r} cannot be served: {reason}") from error
    made = engine_settings(entry, settings, path)
    shown = template or file.chat_template or ""
    configured = entry.capabilities if entry.is_described else entry.capabilities | tags_of_template(shown)
    return Prepared(
        source=LlamaSource(made),
        memory=estimate_memory(file, made),
        context_tokens=made.context_tokens or 0,
        capabilities=capabilities_of(file, configured) | ({"vision"} if projector else set()),
        digest=digest,
        path=path,
        size_bytes=file.bytes_total,
        chat_template=shown,
        adapters=adapters,
    )


def engine_settings(entry: CatalogEntry, settings: Settings, path: Path) -> EngineSettings:
    """What an engine process is told, from the settings that hold for its model."""
    return EngineSettings(
        model_path=str(path),
        model_id=entry.id,
        context_tokens=context_of(settings, entry) or None,
        cells=settings.kv_cells or None,
        lanes=settings.lanes or None,
        speed_floor=settings.speed_floor or None,
        threads=settings.threads or None,
        kv_type=settings.kv_type,
        chat_template=entry.template_text,
        gpu_layers=settings.gpu_layers,
        mmap=settings.mmap,
        mlock=settings.mlock,
        speculate=settings.speculate,
        cache_bytes=settings.cache_mib << 20,
        window_full=settings.window_full,
        flash_attention=settings.flash_attention,
        reencode=settings.reencode,
        gpu_devices=settings.gpu_devices,
        gpu_split=settings.gpu_split,
        tensor_split=settings.tensor_split,
        numa=settings.numa,
        mmproj_path=str(settings.mmproj) if settings.mmproj.name else "",
        adapters=settings.lora,
    )


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


def _simulated(entry: CatalogEntry) -> Prepared:
    settings = replace(parse_simulated(entry.source), model=entry.id)
    return Prepared(
        source=SimulatedSource(settings),
        memory=MemoryEstimate(weights=settings.memory_mib << 20),
        context_tokens=settings.context_tokens,
        capabilities=entry.capabilities,
        digest=settings.model.encode()[:8].ljust(8, b"\0"),
    )


def fetch_report(resident: Resident, log: Progress) -> Progress:
    """A progress reporter that writes down how far a model's file is."""

    def report(done: int, total: int | None) -> None:
        resident.fetched = (done, total)
        log(done, total)

    return report

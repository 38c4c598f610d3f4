"""The models of this node: which it has, which it can load, and what it tells the rest of the node of them.

One `Resident` per model. Those of MODELS are loaded at start and stay; one that cannot be loaded then ends the node with
one sentence: an operator who asked for it must not find out from a client. Those of MODELS_ON_DEMAND are looked at then,
and loaded when somebody asks. docs/models.md tells the whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from saiserve.config import Settings
from saiserve.dispatch.suspects import Suspects
from saiserve.engines.messages import Load
from saiserve.errors import SettingsError
from saiserve.fleet.facts import ModelFact, ModelState, capability_bits
from saiserve.models.catalog import CatalogEntry
from saiserve.models.store import ModelStore
from saiserve.residency.budget import budget_bytes
from saiserve.residency.loader import Loader, NoRoomError
from saiserve.residency.local_model import LocalModel
from saiserve.residency.resident import Life, Resident
from saiserve.residency.source import SIMULATED, context_of, look_at
from swimcluster.nursery import open_plain_nursery

log = logging.getLogger(__name__)

_FIRST_TOLD: Final = (ModelState.READY, ModelState.LOADING, ModelState.DRAINING, ModelState.FAILED, ModelState.LOADABLE)
"""What is resident comes first: metadata and vitals leave out the last models when there is no room for all."""

FAILED_MAX: Final = 16
"""Models whose failure to load is remembered."""


@dataclass(slots=True)
class Residents:
    """All models of this node. `on_change` is called after every change of a state."""

    settings: Settings
    entries: Sequence[CatalogEntry]
    store: ModelStore
    suspects: Suspects
    on_change: Callable[[], None]
    on_demand: Sequence[CatalogEntry] = ()
    models: dict[str, Resident] = field(default_factory=dict)
    failed: dict[str, Resident] = field(default_factory=dict)
    """Models that were forgotten because they could not be loaded, the last ones: whoever asked wants to know why."""
    loader: Loader = field(init=False)
    _nursery: trio.Nursery | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        budget = budget_bytes(self.settings.memory_mib)
        self.loader = Loader(budget, self.store, self.suspects, self.models.values, self._changed)
        for entry in self.entries:
            self.models[entry.id] = self._resident(entry, at_start=True)
        for entry in self.on_demand:
            self.models[entry.id] = self._resident(entry, at_start=False)

    def engine(self, model: str) -> LocalModel | None:
        """The way to a model of this node, loaded or not; None when it is none of its."""
        resident = self.find(model)
        return LocalModel(resident, self.begin) if resident is not None else None

    def find(self, model: str) -> Resident | None:
        """The model of this id, or the one that `id:adapter` belongs to."""
        base, _, adapter = model.rpartition(":")
        owner = self.models.get(base)
        return owner if owner is not None and adapter in owner.adapters else self.models.get(model)

    @property
    def lanes(self) -> int:
        """Streams that all loaded models serve at once; a model's adapters share its lanes."""
        return sum(resident.load.lanes for resident in self.models.values())

    @property
    def held_bytes(self) -> int:
        """Memory that all models count for now."""
        return sum(resident.held_bytes for resident in self.models.values())

    def facts(self) -> tuple[ModelFact, ...]:
        """What this node tells others of its models."""
        told = sorted(self.models.values(), key=lambda resident: _FIRST_TOLD.index(resident.state))
        return tuple(
            ModelFact(
                id=model,
                digest=digest,
                state=resident.state,
                context=resident.context_tokens,
                capability_bits=capability_bits(resident.capabilities),
                lanes=resident.load.lanes,
                waits=resident.is_coming,
                template_ways=resident.template_ways,
            )
            for resident in told
            for model, digest in resident.names()
        )

    def loads(self) -> Mapping[str, Load]:
        """Each model's load; empty for those that are not resident."""
        return {
            model: r.load if r.state is ModelState.READY else Load()
            for r in self.models.values()
            for model, _ in r.names()
        }

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load the models of the start and keep all engines running; started once those can serve.

        Raises:
            SettingsError: a model cannot be had or loaded, or could never be.
        """
        async with open_plain_nursery() as nursery:
            self._nursery = nursery
            for resident in [resident for resident in self.models.values() if resident.at_start]:
                await self.begin(resident).settled.wait()
                if resident.error:
                    raise SettingsError(resident.error)
            for resident in [resident for resident in self.models.values() if resident.is_on_demand]:
                await self._look_at(resident)
            self.on_change()  # what their files told
            task_status.started()
            await trio.sleep_forever()

    def begin(self, resident: Resident) -> Life:
        """Order a model to be loaded; the life that is there already when it is."""
        assert self._nursery is not None, "residents run"
        if resident.life is None:
            resident.life = Life()
            resident.began_at, resident.error = trio.current_time(), ""
            resident.state = ModelState.LOADING
            self._nursery.start_soon(self.loader.live, resident, resident.life)
            self._changed()
        return resident.life

    def order(self, entry: CatalogEntry, *, pin: bool) -> Resident:
        """What an operator wants loaded, now; a pause after a failure does not hold for operators.

        Raises:
            SettingsError: settings that contradict the model.
        """
        resident = self.models.get(entry.id)
        self.failed.pop(entry.id, None)
        if resident is None:
            resident = self.models[entry.id] = self._resident(entry, at_start=False)
            resident.is_on_demand = False
        resident.is_pinned = resident.is_pinned or pin
        self.begin(resident)
        return resident

    async def unload(self, model: str) -> None:
        """End a model's life once the requests in it are answered, or DRAIN_S is over; it may come back on demand.

        A model that is not to be loaded on demand is forgotten, so that no client brings it back.
        """
        resident = self.models[model]
        life, resident.is_pinned = resident.life, False
        if life is not None:
            life.end()
            await life.ended.wait()
        self._changed()

    def _resident(self, entry: CatalogEntry, *, at_start: bool) -> Resident:
        settings = self.settings.for_model(entry.id, *entry.aliases)
        return Resident(
            entry,
            settings,
            is_on_demand=not at_start,
            is_pinned=at_start,
            at_start=at_start,
            state=ModelState.LOADING if at_start else ModelState.LOADABLE,
            context_tokens=context_of(settings, entry),
            capabilities=entry.capabilities,
        )

    async def _look_at(self, resident: Resident) -> None:
        """Find out before somebody asks that a model on demand is damaged or too large, if its file is here."""
        entry = resident.entry
        if entry.source.startswith(SIMULATED):
            return
        path = await self.store.present(entry)
        if path is None:
            return
        prepared = await trio.to_thread.run_sync(look_at, entry, resident.settings, path)
        prepared.note_in(resident)
        room = self.loader.room_for(resident)
        if room.is_final:
            raise NoRoomError(room.refusal, is_final=True)

    def _changed(self) -> None:
        """Forget what an operator unloaded or could not load, then tell."""
        for model, resident in list(self.models.items()):
            is_gone = resident.life is None and not (resident.is_on_demand or resident.at_start)
            was_at_start = resident.at_start and resident.life is None and resident.loads > 0
            if is_gone or was_at_start:
                del self.models[model]
                if resident.error:
                    self.failed[model] = resident
                    for oldest in list(self.failed)[:-FAILED_MAX]:
                        del self.failed[oldest]
        self.on_change()

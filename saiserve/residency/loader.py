"""Brings one model into memory and out of it again; a `Life` from order to end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import trio

from saiserve import limits
from saiserve.dispatch.clock import clock_ns
from saiserve.dispatch.suspects import GuardedEngine, Suspects
from saiserve.errors import SettingsError
from saiserve.fleet.facts import ModelState
from saiserve.models.store import ModelStore, progress_line
from saiserve.residency.budget import Held, Room, plan_room
from saiserve.residency.resident import Life, Resident, Stage
from saiserve.residency.source import LoadError, Prepared, Source, fetch_report, prepare
from swimcluster.nursery import open_plain_nursery

log = logging.getLogger(__name__)

WATCH_S: Final = 0.25
"""How often an engine's readiness and a model's idleness are looked at."""


class NoRoomError(LoadError):
    """A model does not fit into the memory budget. `is_final`: not even if all that may go had gone."""

    def __init__(self, message: str, *, is_final: bool) -> None:
        super().__init__(message)
        self.is_final = is_final


@dataclass(slots=True)
class Loader:
    """Loads models of one node, under its budget.

    Args:
        budget_bytes: for all models together.
        residents: all models of the node, as they are now.
        on_change: called after every change of a model's state.
    """

    budget_bytes: int
    store: ModelStore
    suspects: Suspects
    residents: Callable[[], Iterable[Resident]]
    on_change: Callable[[], None]
    evictions: int = 0
    _making_room: trio.Lock = field(default_factory=trio.Lock)

    async def live(self, resident: Resident, life: Life) -> None:
        """One life of a model. What goes wrong is written into the resident, never raised."""
        try:
            await self._live(resident, life)
        except NoRoomError as error:
            self._failed(resident, str(error), ModelState.FAILED if error.is_final else ModelState.LOADABLE)
        except SettingsError as error:
            self._failed(resident, str(error), ModelState.FAILED)
        except Exception:
            log.exception("loading %s broke", resident.entry.id)
            self._failed(
                resident, f"model {resident.entry.id!r} cannot be served: an internal error", ModelState.FAILED
            )
        finally:
            resident.engine = resident.source = resident.life = None
            resident.held_bytes = 0
            life.settled.set()
            life.ended.set()
        self.on_change()

    def room_for(self, resident: Resident) -> Room:
        """What it takes to load a model whose file was looked at."""
        assert resident.memory is not None
        held = [
            Held(
                other.entry.id,
                other.held_bytes,
                may_go=other.state is ModelState.READY and not other.is_pinned and not other.uses,
                is_pinned=other.is_pinned,
                used_at=other.used_at,
            )
            for other in self.residents()
            if other is not resident and other.held_bytes
        ]
        what = f"model {resident.entry.id!r} cannot be loaded: it needs {resident.memory.describe()}"
        return plan_room(self.budget_bytes, resident.memory.total, held, what)

    async def _live(self, resident: Resident, life: Life) -> None:
        async with open_plain_nursery() as nursery:
            with life.loading:
                prepared = await self._prepare(resident)
                await self._make_room(resident)
                resident.stage = Stage.LOADING
                resident.source = prepared.source.engine
                log.info("loading %s and measuring how fast it is", resident.entry.id)
                await nursery.start(prepared.source.run)
            if life.loading.cancelled_caught:
                raise LoadError(f"model {resident.entry.id!r} was unloaded before it could serve")
            self._ready(resident, life)
            await self._watch(resident, life, prepared.source)
            await self._drain(resident)
            nursery.cancel_scope.cancel()
        resident.state = ModelState.LOADABLE
        log.info("%s is unloaded", resident.entry.id)

    async def _prepare(self, resident: Resident) -> Prepared:
        line = progress_line(resident.entry.id, lambda text: log.info("fetching %s", text.strip()), live=False)
        prepared = await prepare(resident, self.store, fetch_report(resident, line))
        prepared.note_in(resident)
        return prepared

    async def _make_room(self, resident: Resident) -> None:
        """Unload what must go and reserve the memory; waits a while for busy models to end.

        Raises:
            NoRoomError: it does not fit, with the numbers.
        """
        assert resident.memory is not None
        resident.stage = Stage.MAKING_ROOM
        give_up_at = trio.current_time() + limits.LOAD_ROOM_S
        while True:
            async with self._making_room:
                room = self.room_for(resident)
                if not room.refusal:
                    await self._evict(room.evict, resident)
                    resident.held_bytes = resident.memory.total
                    return
            if room.is_final or trio.current_time() >= give_up_at:
                raise NoRoomError(room.refusal, is_final=room.is_final)
            await trio.sleep(WATCH_S)

    async def _evict(self, models: tuple[str, ...], resident: Resident) -> None:
        going = [other for other in self.residents() if other.entry.id in models]
        lives = [other.life for other in going if other.life is not None]
        for other in going:
            log.info("%s makes room for %s", other.entry.id, resident.entry.id)
            other.state = self._left_as(other)
            self.evictions += 1
        for life in lives:
            life.end()
        for life in lives:
            await life.ended.wait()

    def _ready(self, resident: Resident, life: Life) -> None:
        source, now = resident.source, trio.current_time()
        assert source is not None
        resident.engine = GuardedEngine(source, self.suspects, clock_ns)
        resident.facts = getattr(source, "facts", None)
        resident.note_template_caps()
        resident.load_s, resident.used_at = now - resident.began_at, now
        resident.error, resident.failures, resident.retry_at = "", 0, 0.0
        resident.loads += 1
        resident.state = ModelState.READY
        life.settled.set()
        log.info("%s is ready: %d lanes", resident.entry.id, resident.load.lanes)
        if resident.reencoding:
            log.info("weights of %s: %s", resident.entry.id, resident.reencoding)
        self.on_change()

    async def _watch(self, resident: Resident, life: Life, source: Source) -> None:
        """Until it shall end, or nobody has used it for its keep-alive time; tells of crashes meanwhile."""
        keep_s = resident.settings.keep_alive_s
        while True:
            with trio.move_on_after(WATCH_S):
                await life.stop.wait()
            if life.stop.is_set():
                return
            state = self._state_of(source)
            if state is not resident.state:
                resident.state, resident.error = state, source.failure
                self.on_change()
            idle_s = 0.0 if resident.uses else trio.current_time() - resident.used_at
            if keep_s and not resident.is_pinned and idle_s >= keep_s:
                log.info("%s was not used for %.0f s", resident.entry.id, idle_s)
                return

    @staticmethod
    def _state_of(source: Source) -> ModelState:
        if source.is_ready:
            return ModelState.READY
        return ModelState.FAILED if source.failure else ModelState.LOADING

    async def _drain(self, resident: Resident) -> None:
        """Take nothing new and let what runs end; once nobody is in it, who may have it loaded anew waits for that."""
        if not resident.is_leaving:
            resident.state = ModelState.DRAINING if resident.uses else self._left_as(resident)
        self.on_change()
        if resident.state is ModelState.DRAINING:
            with trio.move_on_after(resident.settings.drain_s):
                await resident.until_unused()
            resident.state = self._left_as(resident)

    @staticmethod
    def _left_as(resident: Resident) -> ModelState:
        """What a model that nobody is in counts as while its process ends."""
        return ModelState.LOADABLE if resident.is_on_demand else ModelState.DRAINING

    def _failed(self, resident: Resident, error: str, state: ModelState) -> None:
        resident.state, resident.error, resident.is_pinned = state, error, resident.at_start
        resident.failures += 1
        resident.load_failures += 1
        pause_s = limits.LOAD_BACKOFF_FIRST_S * 2 ** min(resident.failures - 1, 10)
        resident.retry_at = trio.current_time() + min(pause_s, limits.LOAD_BACKOFF_MAX_S)
        log.warning("%s", error)

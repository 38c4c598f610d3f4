"""Finding each other again: reconnecting to failed members, forgetting them in the end, knowing when alone (P21, P24)."""

from __future__ import annotations

from swimcluster.core import Core
from swimcluster.events import Isolated
from swimcluster.member import MemberState
from swimcluster.push_pull import StateExchange

ISOLATED_AFTER_INTERVALS = 5
"""Probe intervals of silence after which a node calls itself isolated."""


class Healer:
    """Redials the failed, buries the forgotten, notices silence."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.is_isolated = False

    def start(self, now: int) -> None:
        """Set the first rounds."""
        core = self._core
        reconnect = core.config.ns(core.config.reconnect_interval_s)
        if reconnect:
            core.timers.set(now + core.jittered(reconnect), self._reconnect)
        core.timers.set(now + core.config.ns(core.config.tombstone_s), self._bury)

    def _reconnect(self, now: int) -> None:
        core = self._core
        if not core.is_active:
            return
        core.timers.set(now + core.jittered(core.config.ns(core.config.reconnect_interval_s)), self._reconnect)
        dead = [entry for entry in core.table.gone.values() if entry.claim.state is MemberState.DEAD]
        # One attempt per interval in the whole cluster for one failed member; every interval by a lonely node.
        if dead and core.rng.random() * core.table.count < len(dead):
            entry = dead[core.below(len(dead))]
            core.synchronizer.exchange(entry.address, StateExchange(core))

    def _bury(self, now: int) -> None:
        core = self._core
        if not core.is_active:
            return
        tombstone = core.synchronizer.tombstone_ns()
        graveyard = max(tombstone, core.config.ns(core.config.reconnect_for_s))
        for entry in list(core.table.gone.values()):
            keep = graveyard if entry.claim.state is MemberState.DEAD else tombstone
            if now - entry.since >= keep:
                core.table.forget(entry, "long gone")
        core.timers.set(now + core.config.ns(core.config.tombstone_s), self._bury)

    def postpone(self, gap: int) -> None:
        """Leave out of the silence what this node's own clock jumped over."""
        self._core.heard_at += gap

    # Isolation --------------------------------------------------------------------------------------------------

    def heard_again(self) -> None:
        """Something authentic arrived from another process."""
        self._set(is_isolated=False)

    def judge_isolation(self, now: int) -> None:
        """Compare the silence with its limit; called once per probe period."""
        core = self._core
        knows_others = bool(core.table.live or core.table.gone) or core.joiner.has_others
        limit = ISOLATED_AFTER_INTERVALS * core.probe_interval_ns
        if knows_others and now - core.heard_at >= limit and not self.is_isolated:
            self._set(is_isolated=True)

    def _set(self, *, is_isolated: bool) -> None:
        self.is_isolated = is_isolated
        self._core.emit(Isolated(is_isolated))

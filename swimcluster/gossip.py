"""The gossip tick: never silent, so that vitals stay fresh (rules P18, P19; docs/protocol.md, age of vitals)."""

from __future__ import annotations

from swimcluster.core import Core
from swimcluster.member import MemberState
from swimcluster.membership import Entry


class Gossip:
    """Sends news and vitals to a few members per tick, each once per round in random order."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._round: list[str] = []
        self._next_dead = 0
        self._pending_vitals: bytes | None = None
        self._vitals_published_at: int | None = None

    def start(self, now: int) -> None:
        """Begin ticking somewhere within one interval."""
        core = self._core
        interval = core.config.ns(core.config.gossip_interval_s)
        if interval:
            core.timers.set(now + core.below(interval) + 1, self._tick)

    def _tick(self, now: int) -> None:
        core, config = self._core, self._core.config
        if not core.is_active:
            return
        core.timers.set(now + config.ns(config.gossip_interval_s), self._tick)
        self.publish_vitals(now)
        targets = self._targets(config.gossip_nodes)
        dead = self._one_dead(now)
        if dead is not None:
            targets.append(dead)
        if not targets:
            return
        # One signed packet for all targets: counters are judged by each receiver for itself.
        data = core.pack_datagram((), len(targets))
        for entry in targets:
            core.send_datagram(entry.address, data)

    def _targets(self, count: int) -> list[Entry]:
        live = self._core.table.live
        chosen: list[Entry] = []
        if len(live) <= count:
            return list(live.values())
        while len(chosen) < count:
            if not self._round:
                # Each member once per round: the age of vitals has a bound, and is half of it on average.
                taken = {entry.name for entry in chosen}
                self._round = [entry.name for entry in self._core.table.sorted_live() if entry.name not in taken]
                self._core.rng.shuffle(self._round)
            entry = live.get(self._round.pop())
            if entry is not None:
                chosen.append(entry)
        return chosen

    def _one_dead(self, now: int) -> Entry | None:
        core = self._core
        if not core.table.gone:
            return None
        since = now - core.config.ns(core.config.gossip_to_dead_s)
        recent = [e for e in core.table.gone.values() if e.claim.state is MemberState.DEAD and e.since > since]
        if not recent:
            return None
        self._next_dead += 1
        return recent[self._next_dead % len(recent)]

    def set_vitals(self, now: int, vitals: bytes) -> None:
        """Take new vitals; they go out at once if the last ones are a probe interval old, else when they are."""
        self._pending_vitals = vitals
        self.publish_vitals(now)

    def publish_vitals(self, now: int) -> None:
        """Put waiting vitals on the envelope when their time has come."""
        core, waiting = self._core, self._pending_vitals
        if waiting is None:
            return
        interval = core.config.ns(core.config.probe_interval_s)
        last = self._vitals_published_at
        if last is None or now - last >= interval:
            self._pending_vitals = None
            self._vitals_published_at = now
            core.identity.publish_vitals(waiting)
        elif not core.config.gossip_interval_s:
            core.timers.set(last + interval, self.publish_vitals)

"""The gossip tick: regular while there is something to say, at once for fresh news (rules P18, P19; docs/protocol.md)."""

from __future__ import annotations

from swimcluster.core import Core
from swimcluster.member import MemberState
from swimcluster.membership import Entry
from swimcluster.timers import Timer


class Gossip:
    """Sends news and vitals to a few members per tick, each once per round in random order.

    With vitals it never rests, so that they stay fresh. A member without vitals, news and newly dead members has
    nothing to say: its tick rests until `hasten`.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._interval = core.config.ns(core.config.gossip_interval_s)
        self._timer: Timer | None = None
        self._tick_at = 0
        self._news_sent_at = core.now - self._interval
        self._round: list[str] = []
        self._next_dead = 0
        self._pending_vitals: bytes | None = None
        self._vitals_published_at: int | None = None

    def start(self, now: int) -> None:
        """Begin ticking somewhere within one interval."""
        if self._interval:
            self._arm(now + self._core.below(self._interval) + 1)

    def hasten(self) -> None:
        """Hear of fresh news: tick now, or one interval after the last tick that carried news."""
        core = self._core
        if not self._interval or not core.is_active:
            return
        at = max(core.now, self._news_sent_at + self._interval)
        if self._timer is None or at < self._tick_at:
            self._arm(at)

    def _arm(self, at: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._tick_at = at
        self._timer = self._core.timers.set(at, self._tick)

    def _tick(self, now: int) -> None:
        core, config = self._core, self._core.config
        self._timer = None
        if not core.is_active:
            return
        self.publish_vitals(now)
        packer = core.packer
        has_news = bool(packer.updates or packer.broadcasts)
        # Vitals that wait are the vitals of a later tick: it must come.
        speaks = has_news or bool(core.identity.vitals_counter) or self._pending_vitals is not None
        targets = self._targets(config.gossip_nodes) if speaks else []
        dead = self._one_dead(now)
        if dead is not None:
            targets.append(dead)
        if speaks or dead is not None:
            self._arm(now + self._interval)
        if not targets:
            return
        if has_news:
            self._news_sent_at = now
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
        if self._interval and self._timer is None:
            self._arm(now)

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

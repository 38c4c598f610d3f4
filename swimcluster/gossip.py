"""The gossip tick: regular while there is something to say, at once for fresh news (rules P18, P19; docs/protocol.md)."""

from __future__ import annotations

from collections.abc import Container

from swimcluster.core import Core
from swimcluster.dissemination import MISSES_MAX, SMALLEST_BYTES
from swimcluster.member import MemberState
from swimcluster.membership import Entry
from swimcluster.timers import Timer

REPEAT_FRACTION = 4
"""The tick after one that sent fresh news comes after this part of an interval: few wait a whole one."""
TO_ALL = 4
"""While the others are at most this many times the fan-out, own fresh news goes to all of them at once (0140)."""
AGAIN = 10
"""Pings that tell a piece of news once more after it was sent as often as it should be."""
AGAIN_MAX = 256
"""Members whose news is told again; the oldest makes room."""


class Gossip:
    """Sends news and vitals to a few members per tick, each once per round in random order.

    With vitals it never rests, so that they stay fresh. A member without vitals, news and newly dead members has
    nothing to say: its tick rests until fresh news, and the ping of each probe period is its quiet tick.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._interval = core.config.ns(core.config.gossip_interval_s)
        self._timer: Timer | None = None
        self._tick_at = 0
        self._next_fresh_at = core.now
        self._is_repeat = False
        self._is_own_fresh = False
        self._round: list[str] = []
        self._informed: set[str] = set()
        self._again: dict[str, int] = {}
        self._next_dead = 0
        self._pending_vitals: bytes | None = None
        self._vitals_published_at: int | None = None

    def start(self, now: int) -> None:
        """Begin ticking somewhere within one interval."""
        if self._interval:
            self._arm(now + self._core.below(self._interval) + 1)

    # News -------------------------------------------------------------------------------------------------------

    def heard_news(self, name: str, heard_from: str) -> None:
        """Hear of fresh news about a member; the next tick prefers others than these two.

        Where an author tells everybody itself, its news is repeated a little later, for whom its packet missed.
        """
        core, live = self._core, self._core.table.live
        self._informed.update(knowing for knowing in (name, heard_from) if knowing in live)
        self._again.pop(name, None)
        if len(self._again) >= AGAIN_MAX:
            del self._again[next(iter(self._again))]
        self._again[name] = AGAIN
        is_own = name == core.identity.name
        self._is_own_fresh = self._is_own_fresh or is_own
        self.hasten(self._interval // REPEAT_FRACTION if heard_from == name and self._tells_all() else 0)

    def _tells_all(self) -> bool:
        return len(self._core.table.live) <= TO_ALL * self._core.config.gossip_nodes

    def hasten(self, after: int = 0) -> None:
        """Tick in `after` nanoseconds, or one interval after the last tick that was hastened."""
        core = self._core
        if not self._interval or not core.is_active:
            return
        at = max(core.now + after, self._next_fresh_at)
        if self._timer is None or at < self._tick_at:
            self._is_repeat = False
            self._arm(at)

    @property
    def was_lately(self) -> bool:
        """Whether there was news lately."""
        return bool(self._again)

    def again(self, room: int) -> list[bytes]:
        """Return what is held now about those who were news lately, at most `room` bytes; suspicions are not told again."""
        updates, waiting = self._core.packer.updates, self._again
        messages: list[bytes] = []
        misses = 0
        for name in tuple(waiting):
            if room < SMALLEST_BYTES or misses > MISSES_MAX:
                break
            if name in updates:
                continue
            data = self._held(name)
            if data is None:
                del waiting[name]
            elif len(data) <= room:
                messages.append(data)
                room -= len(data)
                left = waiting.pop(name) - 1
                if left:
                    waiting[name] = left  # At the end: what found no room goes first next time.
            else:
                misses += 1
        return messages

    def _held(self, name: str) -> bytes | None:
        core = self._core
        if name == core.identity.name:
            return core.identity.alive_bytes
        entry = core.table.get(name)
        if entry is None or entry.claim.state is MemberState.SUSPECT:
            return None
        return entry.alive_bytes if entry.is_live else entry.claim_bytes("")

    # The tick ---------------------------------------------------------------------------------------------------

    def _arm(self, at: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._tick_at = at
        self._timer = self._core.timers.set(at, self._tick)

    def _tick(self, now: int) -> None:
        core, packer = self._core, self._core.packer
        self._timer = None
        if not core.is_active:
            return
        self.publish_vitals(now)
        has_news = bool(packer.updates or packer.broadcasts)
        # Vitals that wait are the vitals of a later tick: it must come.
        speaks = has_news or bool(core.identity.vitals_counter) or self._pending_vitals is not None
        is_fresh = packer.updates.has_unsent or packer.broadcasts.has_unsent
        targets: list[Entry] = []
        if speaks:
            tells_all = self._is_own_fresh and self._tells_all()
            targets = list(core.table.live.values()) if tells_all else self._targets(core.config.gossip_nodes)
        self._is_own_fresh = False
        self._informed.clear()
        dead = self._one_dead(now)
        if dead is not None:
            targets.append(dead)
        if speaks or dead is not None:
            self._arm_next(now, is_fresh=is_fresh)
        else:
            # The next news begins a round of its own. This one's rest is what the last news left over, the same few
            # at every member: they would be last again.
            self._round.clear()
        if not targets:
            return
        # One signed packet for all targets: counters are judged by each receiver for itself.
        data = core.pack_datagram((), len(targets))
        for entry in targets:
            core.send_datagram(entry.address, data)

    def _arm_next(self, now: int, *, is_fresh: bool) -> None:
        if self._is_repeat:
            self._is_repeat = False
            self._arm(self._next_fresh_at)
        elif is_fresh:
            self._is_repeat = True
            self._next_fresh_at = now + self._interval
            self._arm(now + self._interval // REPEAT_FRACTION)
        else:
            self._arm(now + self._interval)

    def _targets(self, count: int) -> list[Entry]:
        live = self._core.table.live
        if len(live) <= count:
            return list(live.values())
        chosen: dict[str, Entry] = {}
        while len(chosen) < count:
            if not self._round:
                self._begin_round(chosen, count - len(chosen))
            name = self._next_of_round(self._informed)
            if name in live and name not in chosen:
                chosen[name] = live[name]
        return list(chosen.values())

    def _begin_round(self, taken: Container[str], needed: int) -> None:
        """Put every member into a new round once: the age of vitals has a bound, and is half of it on average.

        Those this tick has taken already, from the end of the last round, come after the `needed` ones it still takes.
        """
        core = self._core
        names = [entry.name for entry in core.table.sorted_live()]
        self._round = [name for name in names if name not in taken]
        core.rng.shuffle(self._round)
        for name in names:
            if name in taken:
                self._round.insert(core.below(len(self._round) - needed + 1), name)

    def _next_of_round(self, informed: set[str]) -> str:
        """Take the next name of the round; who knows the news already comes later, within the round."""
        order = self._round
        for place in range(len(order) - 1, -1, -1):
            if order[place] not in informed:
                return order.pop(place)
        return order.pop()

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

    # Vitals -----------------------------------------------------------------------------------------------------

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
        interval = core.probe_interval_ns
        last = self._vitals_published_at
        if last is None or now - last >= interval:
            self._pending_vitals = None
            self._vitals_published_at = now
            core.identity.publish_vitals(waiting)
        elif not core.config.gossip_interval_s:
            core.timers.set(last + interval, self.publish_vitals)

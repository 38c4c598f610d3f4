"""One probe after another: direct, then by relays and by exchange, then the verdict (SWIM §3.1, §4.3; Lifeguard).

Rules P10 to P15 of docs/protocol.md. Theory of operation: a period begins with a ping to the next target; if it is
not acknowledged within the time-out, relays are asked and an exchange is tried; the period's end gives the verdict
and begins the next period. Period and time-out are stretched by local health as it was when the period began.
"""

from __future__ import annotations

from swimcluster.address import Address
from swimcluster.codec import encode_message
from swimcluster.core import Core
from swimcluster.events import ReachabilityChanged
from swimcluster.member import Reachability
from swimcluster.membership import Entry
from swimcluster.messages import Packet, Ping
from swimcluster.suspicion import maximum_ns
from swimcluster.timers import Timer

BLACKOUT_PROBES = 3
"""Failed probes of distinct members in a row after which a node doubts itself."""
RTT_WEIGHT = 8
"""The smoothed round trip moves by an eighth of each new one (RFC 6298 §2.3)."""


def observe_rtt(entry: Entry, sample: int) -> None:
    """Take one round trip of a direct ping, in nanoseconds, into the smoothed one."""
    entry.rtt_ns = sample if entry.rtt_ns is None else entry.rtt_ns + (sample - entry.rtt_ns) // RTT_WEIGHT


class Probe:
    """One probe of one member; an answer after its end is not its own any more."""

    def __init__(self, core: Core, entry: Entry, now: int) -> None:
        self._core = core
        self.entry = entry
        self.instance = entry.claim.instance
        self.address = entry.address
        self.started_at = now
        self.is_over = False
        self.has_asked = False
        self.relays: list[str] = []
        self.nacked_by: list[str] = []
        self.sequence = core.expect(self)
        timeout = core.health.scale(core.probe_timeout_ns)
        self._timer: Timer = core.timers.set(now + timeout, self.ask_others)

    def start(self) -> None:
        """Send the direct ping; a suspect is told of the suspicion in the same packet, first (Lifeguard's buddy).

        It is the quiet tick too: what was news lately fills its room, for whom the news has missed.
        """
        core, entry = self._core, self.entry
        messages = [encode_message(Ping(self.sequence, entry.name, self.instance))]
        if core.config.buddy and entry.suspicion is not None:
            messages.insert(0, entry.claim_bytes(entry.accuser()))
        core.send_datagram(self.address, core.pack_datagram(messages, 1, again=True))

    def ask_others(self, now: int) -> None:
        """Ask relays and try an exchange, once."""
        core, entry, config = self._core, self.entry, self._core.config
        if self.is_over or self.has_asked or not core.is_active:
            return
        self.has_asked = True
        self.relays = core.relays.ask(self.sequence, entry.name, self.instance, self.address)
        if config.exchange_probe:
            ping = encode_message(Ping(self.sequence, entry.name, self.instance))
            timeout = max(config.ns(config.probe_interval_s - config.probe_timeout_s), 1)
            core.exchange(self.address, [ping], self, core.health.scale(timeout))

    def acked(self, now: int, packet: Packet) -> None:
        """Take an ack: the member's own is direct, any other must come from a relay that was asked."""
        core = self._core
        if packet.instance == self.instance:
            core.statistics.probes_acked_direct += 1
            observe_rtt(self.entry, now - self.started_at)
            self._succeed(now, Reachability.DIRECT)
        elif packet.name in self.relays:
            core.statistics.probes_acked_relayed += 1
            self._succeed(now, Reachability.RELAYED)

    def nacked(self, now: int, packet: Packet) -> None:
        """Count a relay that is there and has heard nothing."""
        if packet.name in self.relays and packet.name not in self.nacked_by:
            self.nacked_by.append(packet.name)
            self._core.statistics.nacks_received += 1

    def refused(self, now: int, packet: Packet) -> None:
        """Another process listens there: nobody else need be asked, and the fault is not here."""
        self.fail(now, doubt=0)

    def replied(self, now: int, packet: Packet) -> None:
        """Take the reply to the exchange: the path is direct, whatever datagrams do."""
        if self.is_over:
            return
        if packet.instance != self.instance:
            self.refused(now, packet)
            return
        self._core.statistics.probes_acked_exchange += 1
        self._succeed(now, Reachability.DIRECT)

    def failed(self, now: int) -> None:
        """The exchange brought nothing; the period's end decides."""

    def _succeed(self, now: int, reachability: Reachability) -> None:
        self._end()
        self._core.health.apply(-1)
        self._core.prober.succeeded(now, self.entry, reachability)

    def fail(self, now: int, *, doubt: int | None = None) -> None:
        """Give the verdict, at the end of the period or at once when the target is known to be gone.

        Args:
            doubt: what to add to local health; by default one for each relay that did not even say nack, or one when
                none was asked: a sign that the fault is here (Lifeguard, LHA-Probe).
        """
        if self.is_over:
            return
        self._end()
        core = self._core
        core.statistics.probes_failed += 1
        if doubt is None:
            doubt = len(self.relays) - len(self.nacked_by) if self.relays and core.config.nacks else 1
        core.health.apply(doubt)
        core.prober.failed(now, self.entry, self.instance)

    def abandon(self) -> None:
        """End without a verdict."""
        if not self.is_over:
            self._end()

    def _end(self) -> None:
        self.is_over = True
        self._timer.cancel()
        self._core.forget(self.sequence)


class Prober:
    """Chooses targets, keeps the period, and doubts itself when nobody answers."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._order: list[str] = []
        self._index = 0
        self._probe: Probe | None = None
        self.failed_in_a_row: list[str] = []
        self._holding_since: int | None = None
        self._has_given_up_holding = False

    def start(self, now: int) -> None:
        """Begin the first period somewhere within one interval, so that nodes started together do not march in step."""
        interval = self._core.probe_interval_ns
        self._core.timers.set(now + self._core.below(interval) + 1, self._period)

    def add(self, name: str) -> None:
        """Put a new member at a random place of the rest of this round."""
        if name in self._order[self._index :]:
            return
        place = self._index + self._core.below(len(self._order) - self._index + 1)
        self._order.insert(place, name)

    # The period -------------------------------------------------------------------------------------------------

    def _period(self, now: int) -> None:
        core = self._core
        if self._probe is not None:
            self._probe.fail(now)
        if not core.is_active:
            return
        interval = core.health.scale(core.probe_interval_ns)
        core.timers.set(now + interval, self._period)
        core.healer.judge_isolation(now)
        entry = self._next_target()
        self._probe = None
        if entry is None:
            return
        core.statistics.probes += 1
        self._probe = Probe(core, entry, now)
        self._probe.start()

    def _next_target(self) -> Entry | None:
        live = self._core.table.live
        if not live:
            return None
        if self._core.config.probe_order == "random":
            pool = self._core.table.sorted_live()
            return pool[self._core.below(len(pool))]
        while True:
            while self._index < len(self._order):
                name = self._order[self._index]
                self._index += 1
                if name in live:
                    return live[name]
            self._order = sorted(live)
            self._core.rng.shuffle(self._order)
            self._index = 0

    def send_failed(self, now: int, destination: Address) -> None:
        """A ping that could not be sent is a ping that failed: ask others at once (P14)."""
        probe = self._probe
        if probe is not None and not probe.is_over and probe.address == destination:
            probe.ask_others(now)

    def postpone(self, gap: int) -> None:
        """Drop the probe that runs, without a verdict: this node itself was away."""
        if self._probe is not None:
            self._probe.abandon()
        if self._holding_since is not None:
            self._holding_since += gap

    # Verdicts ---------------------------------------------------------------------------------------------------

    def succeeded(self, now: int, entry: Entry, reachability: Reachability) -> None:
        """Note the path; one answer ends every doubt about this node itself."""
        self.failed_in_a_row.clear()
        self._has_given_up_holding = False
        self._release(now)
        self.set_reachability(now, entry, reachability)

    def failed(self, now: int, entry: Entry, instance: bytes) -> None:
        """Accuse, unless this node rather doubts itself."""
        core = self._core
        if not entry.is_live or entry.claim.instance != instance:
            return
        self.set_reachability(now, entry, Reachability.NONE)
        if entry.name not in self.failed_in_a_row:
            self.failed_in_a_row.append(entry.name)
        is_blackout = len(self.failed_in_a_row) >= BLACKOUT_PROBES and not self._has_given_up_holding
        if core.config.hold_accusations and is_blackout and self._holding_since is None:
            self._holding_since = now
        if self.blackout_until(now) is not None:
            core.statistics.accusations_held += 1
            return
        core.news.accuse(now, entry)

    def set_reachability(self, now: int, entry: Entry, reachability: Reachability) -> None:
        """Note this node's own opinion of the path, and say so when it changes; not of a life that a later one replaced."""
        if entry.reachability is not reachability and self._core.table.get(entry.name) is entry:
            previous, entry.reachability = entry.reachability, reachability
            self._core.emit(ReachabilityChanged(entry.member(now), previous))

    def heard_anybody(self, now: int) -> None:
        """Something arrived: the network reaches this node, so accusations count again."""
        self.failed_in_a_row.clear()
        self._has_given_up_holding = False
        self._release(now)

    def blackout_until(self, now: int) -> int | None:
        """Return until when accusations are held, or None when they are not; at most one maximum suspicion."""
        if self._holding_since is None:
            return None
        until = self._holding_since + maximum_ns(self._core.config, self._core.table.count)
        if now >= until:
            self._holding_since = None
            self._has_given_up_holding = True
            return None
        return until

    def _release(self, now: int) -> None:
        if self._holding_since is not None:
            self._holding_since = None
            self._core.news.restart_own_suspicions(now)

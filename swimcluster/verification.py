"""Verify before list: an unknown member, or what is newer of a departed one, is a candidate until it answers (P16, P17)."""

from __future__ import annotations

from swimcluster.address import Address
from swimcluster.address_conflicts import AddressConflicts
from swimcluster.codec import encode_message
from swimcluster.core import Core
from swimcluster.events import MemberJoined
from swimcluster.member import Claim, MemberState, Reachability
from swimcluster.membership import Entry
from swimcluster.messages import Alive, Packet, Ping
from swimcluster.probe import observe_rtt
from swimcluster.transitions import Record, Transition

ATTEMPTS = 3
"""Rounds of a direct ping, then relays and an exchange, before a candidate is forgotten."""
CONCURRENT = 32
"""Candidates pinged at one time; the others wait in order of arrival."""


class Candidate:
    """Somebody who is said to be alive."""

    def __init__(self, core: Core, alive: Alive, address: Address) -> None:
        self._core = core
        self.alive = alive
        self.address = address
        self.attempts = 0
        self.sequence: int | None = None
        self.started_at = 0
        self.relays: list[str] = []

    @property
    def claim(self) -> Claim:
        """What is said."""
        return Claim(self.alive.epoch, self.alive.instance, self.alive.incarnation, MemberState.ALIVE)

    def record(self) -> Record:
        """Return the candidate as a value."""
        alive = self.alive
        return Record(
            name=alive.name,
            address=self.address,
            instance=alive.instance,
            epoch=alive.epoch,
            incarnation=alive.incarnation,
            state=MemberState.ALIVE,
            metadata=alive.metadata,
            metadata_at=(alive.epoch, alive.instance, alive.incarnation),
            is_verified=False,
            is_local=False,
        )

    def ping(self, now: int) -> None:
        """Begin a round with a direct ping."""
        core = self._core
        self.attempts += 1
        self.relays = []
        self.started_at = now
        self.sequence = core.expect(self)
        core.send(self.address, encode_message(Ping(self.sequence, self.alive.name, self.alive.instance)))
        core.timers.set(now + core.probe_timeout_ns, self._timed_out, self.sequence)

    def _timed_out(self, now: int, sequence: int) -> None:
        core, config = self._core, self._core.config
        if self.sequence != sequence or not core.is_active:
            return
        ping = encode_message(Ping(sequence, self.alive.name, self.alive.instance))
        self.relays = core.relays.ask(sequence, self.alive.name, self.alive.instance, self.address)
        rest = config.ns(config.probe_interval_s - config.probe_timeout_s)
        if config.exchange_probe:
            core.exchange(self.address, [ping], self, rest)
        core.timers.set(now + rest, self._round_over, sequence)

    def _round_over(self, now: int, sequence: int) -> None:
        if self.sequence == sequence:
            self.stop()
            self._core.verifier.unanswered(now, self)

    def stop(self) -> None:
        """Wait for nothing more."""
        if self.sequence is not None:
            self._core.forget(self.sequence)
            self.sequence = None

    def acked(self, now: int, packet: Packet) -> None:
        """List the member: it answered, or a relay that was asked says so."""
        if packet.instance == self.alive.instance:
            rtt = None if self.relays else now - self.started_at
            self._core.verifier.promote(now, self, Reachability.DIRECT, rtt)
        elif packet.name in self.relays:
            self._core.verifier.promote(now, self, Reachability.RELAYED, None)

    def nacked(self, now: int, packet: Packet) -> None:
        """The round goes on."""

    def refused(self, now: int, packet: Packet) -> None:
        """Another process listens there: forget the candidate."""
        holder = packet.name if packet.address == self.address else ""
        self._core.verifier.conflicts.tell(now, self.alive.name, self.address, holder)
        self._core.verifier.drop(now, self, "another process answered")

    def replied(self, now: int, packet: Packet) -> None:
        """Take the answer to the exchange."""
        if self.sequence is not None:
            if packet.instance == self.alive.instance:
                self._core.verifier.promote(now, self, Reachability.DIRECT, None)
            else:
                self.refused(now, packet)

    def failed(self, now: int) -> None:
        """The round's end decides."""


class Verifier:
    """All candidates, bounded, in order of arrival."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._candidates: dict[str, Candidate] = {}
        self.conflicts = AddressConflicts(core)
        self._in_flight = 0

    def __len__(self) -> int:
        return len(self._candidates)

    def __contains__(self, name: str) -> bool:
        return name in self._candidates

    def consider(self, now: int, alive: Alive, address: Address) -> None:
        """Take an Alive about a name nobody living is known to bear; the greater claim about a name is kept."""
        core = self._core
        candidate = self._candidates.get(alive.name)
        if candidate is not None:
            newer = Claim(alive.epoch, alive.instance, alive.incarnation, MemberState.ALIVE)
            if newer <= candidate.claim:
                return
            if newer.life == candidate.claim.life and address == candidate.address:
                candidate.alive = alive
                return
            self.drop(now, candidate, "newer claim")
        if len(self._candidates) >= core.config.unverified_max:
            core.statistics.dropped_full += 1
            return
        candidate = self._candidates[alive.name] = Candidate(core, alive, address)
        self._observe(None, candidate, "heard of")
        self._fill(now)

    def heard_failure(self, now: int, name: str, claim: Claim) -> None:
        """A farewell of a candidate ends its candidacy; other failure news cannot: it may answer (P17)."""
        candidate = self._candidates.get(name)
        if candidate is not None and claim.state is MemberState.LEFT and claim > candidate.claim:
            self.drop(now, candidate, "left")

    def proven(self, now: int, name: str, instance: bytes) -> None:
        """List a candidate that answered an exchange of this node with fresh proof of life."""
        candidate = self._candidates.get(name)
        if candidate is not None and candidate.alive.instance == instance:
            self.promote(now, candidate, Reachability.DIRECT, None)

    def promote(self, now: int, candidate: Candidate, reachability: Reachability, rtt: int | None) -> None:
        """Make a candidate a member and spread the news."""
        core = self._core
        self._remove(candidate)
        if not self._makes_way(now, candidate):
            self._fill(now)
            return
        entry = Entry(now, candidate.alive, candidate.address)
        if not core.table.add(entry, "verified"):
            core.statistics.dropped_full += 1
            return
        core.statistics.verified += 1
        if rtt is not None:
            observe_rtt(entry, rtt)
        entry.reachability = reachability
        core.prober.add(entry.name)
        core.publish(entry.name, entry.alive_bytes)
        core.emit(MemberJoined(entry.member(now)))
        core.joiner.found_member(now)
        self._fill(now)

    def _makes_way(self, now: int, candidate: Candidate) -> bool:
        """Forget the earlier life of a departed name; False where it is the same life or a later one: P1 decides."""
        core = self._core
        entry = core.table.get(candidate.alive.name)
        if entry is None:
            return True
        if entry.claim.life >= candidate.claim.life:
            core.news.take_words(now, entry, candidate.alive, candidate.address, heard_from=entry.name)
            return False
        core.table.forget(entry, "later life verified")
        return True

    def unanswered(self, now: int, candidate: Candidate) -> None:
        """Try again, or forget it: whoever still holds it will say so again."""
        if candidate.attempts < ATTEMPTS and self._core.is_active:
            candidate.ping(now)
            return
        self.drop(now, candidate, "no ack")

    def drop(self, now: int, candidate: Candidate, cause: str) -> None:
        """Forget a candidate; the next in line is pinged."""
        self._remove(candidate)
        self._core.statistics.unverified_dropped += 1
        self._observe(candidate, None, cause)
        self._fill(now)

    def _remove(self, candidate: Candidate) -> None:
        del self._candidates[candidate.alive.name]
        if candidate.attempts:
            self._in_flight -= 1
        candidate.stop()

    def _fill(self, now: int) -> None:
        if self._in_flight >= CONCURRENT or self._in_flight == len(self._candidates):
            return
        for candidate in [c for c in self._candidates.values() if not c.attempts]:
            if self._in_flight >= CONCURRENT:
                break
            self._in_flight += 1
            candidate.ping(now)

    def _observe(self, before: Candidate | None, after: Candidate | None, cause: str) -> None:
        observer = self._core.table.observer
        if observer is not None:
            some = before or after
            assert some is not None
            observer(
                Transition(
                    some.alive.name,
                    None if before is None else before.record(),
                    None if after is None else after.record(),
                    cause,
                )
            )

"""What is heard about members and what follows from it: the merge by precedence and its effects.

Rules P1 to P12 of docs/protocol.md. Everything that changes another member's state passes through here.
"""

from __future__ import annotations

from swimcluster.address import Address
from swimcluster.changes import told_by
from swimcluster.codec import encode_message
from swimcluster.core import Core
from swimcluster.events import MemberAlive, NameConflict
from swimcluster.member import Claim, MemberState, overrides
from swimcluster.membership import Entry
from swimcluster.messages import Alive, Dead, Left, Packet, Suspect
from swimcluster.suspicion import Suspicion

INCARNATION_JUMP_MAX = 2**20
"""No honest life moves further between two hearings; a greater jump is refused (P6)."""

ALIVE, SUSPECT, DEAD, LEFT = MemberState.ALIVE, MemberState.SUSPECT, MemberState.DEAD, MemberState.LEFT


class News:
    """Applies claims about other members."""

    def __init__(self, core: Core) -> None:
        self._core = core

    # Messages ---------------------------------------------------------------------------------------------------

    def on_alive(self, now: int, packet: Packet, message: Alive, *, synced: bool) -> None:
        """Take a member's own words, first-hand or carried."""
        core = self._core
        entry = core.table.get(message.name)
        if entry is not None and entry.alive is message:
            return  # The very words held; the decoder remembers news, so that most repetitions end here.
        claim = Claim(message.epoch, message.instance, message.incarnation, ALIVE)
        address = core.decoder.address(message.host, message.port)
        if message.name == core.identity.name:
            core.defence.heard_words(now, message, address)
            return
        if entry is None or (not entry.is_live and overrides(claim, entry.claim)):
            # What is newer than the departed claim held here may be old news all the same, that this node has missed.
            core.verifier.consider(now, message, address)
            return
        self.take_words(now, entry, message, address, heard_from=packet.name)

    def take_words(self, now: int, entry: Entry, message: Alive, address: Address, *, heard_from: str) -> None:
        """Merge words about a known name: P1 decides."""
        core = self._core
        claim = Claim(message.epoch, message.instance, message.incarnation, ALIVE)
        if not self._is_plausible(entry, claim):
            return
        is_same_life = claim.life == entry.payload_at[:2]
        if is_same_life and address != entry.address:
            core.statistics.dropped_implausible += 1
            core.emit(NameConflict(entry.name, kept=entry.address, refused=address))
            return
        if claim[:3] == entry.payload_at and message != entry.alive:
            self._tell_of_other_words(now, entry, message)
        is_newer_payload = claim[:3] > entry.payload_at
        is_newer_claim = overrides(claim, entry.claim)
        if is_newer_claim or (is_newer_payload and claim.life == entry.claim.life):
            payload = (message, address) if is_newer_payload else None
            self.adopt(now, entry, claim if is_newer_claim else entry.claim, payload, "alive")
            data = entry.alive_bytes if entry.claim.state is ALIVE else self._claim_bytes(entry)
            core.publish(entry.name, data, heard_from=heard_from)

    def _tell_of_other_words(self, now: int, entry: Entry, message: Alive) -> None:
        """Show a member a version of its words that says something else: they are a copy's, which only it can mend (P7)."""
        core = self._core
        if entry.told_at is None or now - entry.told_at >= core.probe_timeout_ns:
            entry.told_at = now
            core.send(entry.address, encode_message(message))

    def on_suspect(self, now: int, packet: Packet, message: Suspect, *, synced: bool) -> None:
        """Take an accusation."""
        claim = Claim(message.epoch, message.instance, message.incarnation, SUSPECT)
        self._on_failure(now, packet, message.name, claim, message.accuser, synced=synced)

    def on_dead(self, now: int, packet: Packet, message: Dead, *, synced: bool) -> None:
        """Take a verdict; by state exchange it is only a suspicion, so that the member can refute (P9)."""
        claim = Claim(message.epoch, message.instance, message.incarnation, DEAD)
        self._on_failure(now, packet, message.name, claim, message.accuser, synced=synced)

    def on_left(self, now: int, packet: Packet, message: Left, *, synced: bool) -> None:
        """Take a farewell, first-hand or carried."""
        claim = Claim(message.epoch, message.instance, message.incarnation, LEFT)
        self._on_failure(now, packet, message.name, claim, "", synced=synced)

    def _on_failure(self, now: int, packet: Packet, name: str, claim: Claim, accuser: str, *, synced: bool) -> None:
        core = self._core
        if name == core.identity.name:
            core.defence.heard_of_self(now, claim, None)
            return
        entry = core.table.get(name)
        if entry is None:
            core.verifier.heard_failure(now, name, claim)
            core.statistics.dropped_unknown += 1
            return
        if not self._is_plausible(entry, claim):
            return
        if synced and claim.state is DEAD and entry.is_live and claim.life == entry.claim.life:
            claim, accuser = claim._replace(state=SUSPECT), ""
        is_newer = overrides(claim, entry.claim)
        if is_newer and claim.state is SUSPECT and (claim.life > entry.claim.life or not entry.is_live):
            core.statistics.dropped_unknown += 1  # Whoever is to be listed by it is listed by its own words (P16, P17).
            return
        if claim == entry.claim and entry.suspicion is not None:
            self._confirm(now, entry, accuser)
        elif is_newer:
            self.adopt(now, entry, claim, None, "news", accuser=accuser)
            core.publish(name, entry.claim_bytes(accuser), heard_from=packet.name)

    def _is_plausible(self, entry: Entry, claim: Claim) -> bool:
        if claim.life == entry.claim.life and claim.incarnation > entry.claim.incarnation + INCARNATION_JUMP_MAX:
            self._core.statistics.dropped_implausible += 1
            return False
        return True

    def _claim_bytes(self, entry: Entry) -> bytes:
        return entry.claim_bytes(entry.accuser())

    # Own evidence -----------------------------------------------------------------------------------------------

    def accuse(self, now: int, entry: Entry) -> None:
        """Suspect a live member whose probe failed, or confirm the suspicion that runs."""
        core = self._core
        if entry.suspicion is not None:
            self._confirm(now, entry, core.identity.name)
            return
        core.statistics.accusations += 1
        claim = entry.claim._replace(state=SUSPECT)
        self.adopt(now, entry, claim, None, "probe failed", accuser=core.identity.name)
        core.publish(entry.name, entry.claim_bytes(core.identity.name))

    def heard_first_hand(self, now: int, entry: Entry, incarnation: int) -> None:
        """Take the greater incarnation on a member's own packet: it says ALIVE at that version, without the payload."""
        claim = entry.claim._replace(incarnation=incarnation, state=ALIVE)
        if self._is_plausible(entry, claim):
            self.adopt(now, entry, claim, None, "own packet")

    # Effects ----------------------------------------------------------------------------------------------------

    def adopt(
        self,
        now: int,
        entry: Entry,
        claim: Claim,
        payload: tuple[Alive, Address] | None,
        cause: str,
        *,
        accuser: str = "",
    ) -> None:
        """Replace what is held about a member and do what follows: suspicion, events, probe order."""
        core = self._core
        before, held = entry.member(now), entry.claim
        core.table.change(now, entry, claim, payload, cause)
        if claim.state is not SUSPECT:
            entry.suspicion = None
        elif entry.suspicion is None or claim[:3] != held[:3]:
            self._begin_suspicion(now, entry, accuser)
        if before.state.is_gone and entry.is_live:
            core.prober.add(entry.name)
        for event in told_by(before, entry.member(now), accuser):
            core.statistics.refuted += isinstance(event, MemberAlive)
            core.emit(event)
        if not core.table.live and not before.state.is_gone:
            core.joiner.lost_all(now)
        if entry.suspicion is not None and entry.suspicion.deadline <= now:
            self._suspicion_ran_out(now, entry, entry.suspicion)  # Suspicion is turned off: dead at once.

    def _begin_suspicion(self, now: int, entry: Entry, accuser: str) -> None:
        core = self._core
        core.statistics.suspicions += 1
        entry.suspicion = Suspicion(core.config, now=now, members=core.table.count, accuser=accuser)
        core.timers.set(entry.suspicion.deadline, self._suspicion_ran_out, entry, entry.suspicion)

    def _confirm(self, now: int, entry: Entry, accuser: str) -> None:
        suspicion = entry.suspicion
        if suspicion is not None and suspicion.confirm(accuser):
            self._core.statistics.confirmations += 1
            self._core.timers.set(suspicion.deadline, self._suspicion_ran_out, entry, suspicion)
            self._core.publish(entry.name, entry.claim_bytes(accuser))

    def _suspicion_ran_out(self, now: int, entry: Entry, suspicion: Suspicion) -> None:
        core = self._core
        if entry.suspicion is not suspicion or entry.claim.state is not SUSPECT:
            return
        if now < suspicion.deadline:
            core.timers.set(suspicion.deadline, self._suspicion_ran_out, entry, suspicion)
            return
        blackout_until = core.prober.blackout_until(now)
        if blackout_until is not None and suspicion.accusers == [core.identity.name]:
            core.timers.set(blackout_until, self._suspicion_ran_out, entry, suspicion)
            return
        core.statistics.deaths_declared += 1
        self.adopt(now, entry, entry.claim._replace(state=DEAD), None, "suspicion ran out")
        core.publish(entry.name, entry.claim_bytes(core.identity.name))

    def extend_suspicions(self, gap: int) -> None:
        """Give every suspect the time this node's own clock jumped over; timers re-arm themselves (P23)."""
        for entry in self._core.table.live.values():
            if entry.suspicion is not None:
                entry.suspicion.extend(gap)

    def restart_own_suspicions(self, now: int) -> None:
        """After an own blackout, give those accused only by this node their least time from now (P13)."""
        name = self._core.identity.name
        for entry in self._core.table.live.values():
            suspicion = entry.suspicion
            if suspicion is not None and suspicion.accusers == [name]:
                suspicion.deadline = max(suspicion.deadline, now + suspicion.minimum)

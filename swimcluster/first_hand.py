"""What a packet proves of its own sender, whatever its messages say: alive now, this life, this version (rules P2, P8, P19)."""

from __future__ import annotations

from swimcluster.address_conflicts import AddressConflicts
from swimcluster.codec import encode_message
from swimcluster.core import Core
from swimcluster.events import VitalsChanged
from swimcluster.member import MemberState
from swimcluster.membership import Entry
from swimcluster.messages import Introduce, Packet

STRANGERS_MAX = 1024
"""Unknown senders whose last Introduce is remembered."""


class FirstHand:
    """Takes senders' envelopes, and answers those whose sender is unknown or behind."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._conflicts = AddressConflicts(core)
        self._asked: dict[bytes, int] = {}

    def judge(self, now: int, packet: Packet) -> None:
        """Take what the sender of an authentic packet says of itself by sending it."""
        core = self._core
        if packet.instance == core.identity.instance:
            # An exchange with an address that somebody else advertises, and that is this node's own.
            core.statistics.dropped_own += 1
            return
        self._note_sign_of_life(now)
        if packet.name == core.identity.name:
            core.defence.heard_namesake(now, packet)
            return
        if packet.address == core.identity.address:
            self._conflicts.tell(now, core.identity.name, packet.address, packet.name)
        self._judge_member(now, packet)

    def _note_sign_of_life(self, now: int) -> None:
        core = self._core
        core.heard_at = now
        if core.healer.is_isolated:
            core.healer.heard_again()
        if core.prober.failed_in_a_row:
            core.prober.heard_anybody(now)

    def _judge_member(self, now: int, packet: Packet) -> None:
        core = self._core
        entry = core.table.get(packet.name)
        if entry is None:
            if packet.name not in core.verifier:
                self._introduce(now, packet)
            return
        epoch, instance, incarnation, state = entry.claim
        if packet.instance != instance or packet.epoch != epoch:
            self._judge_other_life(now, packet, entry)
            return
        entry.heard_at = now
        if packet.vitals_counter > entry.vitals_counter:
            self._take_vitals(now, packet, entry)
        elif packet.vitals_counter == entry.vitals_counter and entry.vitals_at is not None:
            entry.vitals_at = now
        if packet.incarnation > incarnation:
            if entry.is_live:  # A departed one is asked before it is listed (P16).
                core.news.heard_first_hand(now, entry, packet.incarnation)
            self._introduce(now, packet)
        elif state is not MemberState.ALIVE:
            self._tell(now, packet, entry)
        elif packet.incarnation == incarnation != entry.payload_at[2]:
            self._introduce(now, packet)

    def _judge_other_life(self, now: int, packet: Packet, entry: Entry) -> None:
        if (packet.epoch, packet.instance) > entry.claim.life:
            self._introduce(now, packet)
            return
        if packet.instance != entry.claim.instance:
            self._core.statistics.name_conflicts += 1
        self._tell(now, packet, entry)

    def _take_vitals(self, now: int, packet: Packet, entry: Entry) -> None:
        has_changed = packet.vitals != entry.vitals
        entry.vitals_counter, entry.vitals, entry.vitals_at = packet.vitals_counter, packet.vitals, now
        if has_changed and entry.is_live:
            self._core.emit(VitalsChanged(entry.member(now)))

    def _tell(self, now: int, packet: Packet, entry: Entry) -> None:
        """Answer a stale sender with what is held against it, at most once per probe time-out (P8)."""
        core = self._core
        if entry.claim.state is MemberState.LEFT and packet.instance == entry.claim.instance:
            return
        if entry.told_at is not None and now - entry.told_at < core.probe_timeout_ns:
            return
        entry.told_at = now
        core.statistics.stale_answered += 1
        messages = [] if packet.instance == entry.claim.instance else [entry.alive_bytes]
        if entry.claim.state is not MemberState.ALIVE:
            messages.append(entry.claim_bytes(entry.accuser()))
        if messages:
            core.send(packet.address, *messages)

    def _introduce(self, now: int, packet: Packet) -> None:
        """Ask a sender for its Alive, at most once per probe time-out."""
        core = self._core
        asked_at = self._asked.get(packet.instance)
        if asked_at is not None and now - asked_at < core.probe_timeout_ns:
            return
        if len(self._asked) >= STRANGERS_MAX:
            del self._asked[next(iter(self._asked))]
        self._asked[packet.instance] = now
        core.statistics.introductions += 1
        core.send(packet.address, encode_message(Introduce()))

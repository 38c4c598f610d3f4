"""The member table: who is live, who departed and is remembered, who waits for a first ack. It decides nothing."""

from __future__ import annotations

from collections.abc import Callable

from swimcluster.address import Address
from swimcluster.codec import encode_message
from swimcluster.member import Claim, Member, MemberState, Reachability
from swimcluster.messages import Alive, Dead, Left, Suspect
from swimcluster.suspicion import Suspicion
from swimcluster.transitions import Record, Transition


class Entry:
    """All this node knows of one other member."""

    __slots__ = (
        "address",
        "alive",
        "alive_bytes",
        "claim",
        "heard_at",
        "key_ids",
        "metadata",
        "name",
        "payload_at",
        "reachability",
        "rtt_ns",
        "since",
        "suspicion",
        "told_at",
        "vitals",
        "vitals_at",
        "vitals_counter",
    )

    def __init__(self, now: int, alive: Alive, address: Address) -> None:
        self.name = alive.name
        self.claim = Claim(alive.epoch, alive.instance, alive.incarnation, MemberState.ALIVE)
        self.since = now
        self.suspicion: Suspicion | None = None
        self.adopt_payload(alive, address)
        self.reset_opinions()
        self.heard_at: int | None = None
        self.told_at: int | None = None

    def adopt_payload(self, alive: Alive, address: Address) -> None:
        """Take what the member says of itself: address, metadata, key ids."""
        self.address = address
        self.metadata = alive.metadata
        self.key_ids = alive.key_ids
        self.payload_at = (alive.epoch, alive.instance, alive.incarnation)
        self.alive = alive
        self.alive_bytes = encode_message(alive)

    def reset_opinions(self) -> None:
        """Forget what was measured on an earlier life."""
        self.reachability = Reachability.UNKNOWN
        self.rtt_ns: int | None = None
        self.vitals = b""
        self.vitals_counter = 0
        self.vitals_at: int | None = None

    @property
    def is_live(self) -> bool:
        """Whether the member counts: alive or suspected."""
        return self.claim.state < MemberState.DEAD

    def claim_bytes(self, accuser: str) -> bytes:
        """Return the failure claim held, encoded; the state must not be ALIVE."""
        epoch, instance, incarnation, state = self.claim
        if state is MemberState.LEFT:
            return encode_message(Left(self.name, epoch, instance, incarnation))
        cls = Suspect if state is MemberState.SUSPECT else Dead
        return encode_message(cls(self.name, epoch, instance, incarnation, accuser))

    def accuser(self) -> str:
        """Return who accused first, or nothing."""
        return self.suspicion.accusers[0] if self.suspicion is not None and self.suspicion.accusers else ""

    def record(self) -> Record:
        """Return the entry as a value."""
        epoch, instance, incarnation, state = self.claim
        return Record(
            name=self.name,
            address=self.address,
            instance=instance,
            epoch=epoch,
            incarnation=incarnation,
            state=state,
            metadata=self.metadata,
            metadata_at=self.payload_at,
            is_verified=True,
            is_local=False,
        )

    def member(self, now: int) -> Member:
        """Return the public picture of the entry."""
        epoch, instance, incarnation, state = self.claim
        return Member(
            self.name,
            self.address,
            instance,
            epoch,
            incarnation,
            state,
            self.metadata,
            self.vitals,
            None if self.vitals_at is None else (now - self.vitals_at) / 1e9,
            None if self.rtt_ns is None else self.rtt_ns / 1e9,
            self.reachability,
            metadata_at=self.payload_at,
        )


class Membership:
    """Entries by name, this member not among them. Live and departed ones are kept apart."""

    def __init__(self, members_max: int) -> None:
        self._members_max = members_max
        self.live: dict[str, Entry] = {}
        self.gone: dict[str, Entry] = {}
        self.observer: Callable[[Transition], None] | None = None
        self._sorted: list[Entry] | None = None

    @property
    def count(self) -> int:
        """Live members, this one included: the n of all formulas."""
        return len(self.live) + 1

    def get(self, name: str) -> Entry | None:
        """Return the entry of a name, live or departed."""
        return self.live.get(name) or self.gone.get(name)

    def sorted_live(self) -> list[Entry]:
        """Return the live entries by name; the list is kept until the membership changes."""
        if self._sorted is None:
            self._sorted = [self.live[name] for name in sorted(self.live)]
        return self._sorted

    def add(self, entry: Entry, cause: str) -> bool:
        """Put in a new live entry; the longest departed one makes room. False when all are live and the table full."""
        if len(self.live) + len(self.gone) + 1 >= self._members_max:
            if not self.gone:
                return False
            self.forget(next(iter(self.gone.values())), "no room")
        self.live[entry.name] = entry
        self._sorted = None
        if self.observer is not None:
            self.observer(Transition(entry.name, None, entry.record(), cause))
        return True

    def change(self, now: int, entry: Entry, claim: Claim, payload: tuple[Alive, Address] | None, cause: str) -> None:
        """Give an entry another claim, and another payload if there is one, and file it where it belongs."""
        before = entry.record() if self.observer is not None else None
        held = entry.claim
        entry.claim = claim
        if payload is not None:
            entry.adopt_payload(*payload)
        if claim.life != held.life and claim.instance != held.instance:
            entry.reset_opinions()
        if claim.state is not held.state or claim.life != held.life:
            entry.since = now
            self._file(entry)
        if self.observer is not None and before is not None:
            self.observer(Transition(entry.name, before, entry.record(), cause))

    def forget(self, entry: Entry, cause: str) -> None:
        """Drop a departed entry."""
        del self.gone[entry.name]
        if self.observer is not None:
            self.observer(Transition(entry.name, entry.record(), None, cause))

    def _file(self, entry: Entry) -> None:
        target, other = (self.live, self.gone) if entry.is_live else (self.gone, self.live)
        other.pop(entry.name, None)
        if entry.name not in target:
            target[entry.name] = entry
            self._sorted = None

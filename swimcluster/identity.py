"""What this node says of itself: the only author of its epoch, incarnation, address, metadata and vitals."""

from __future__ import annotations

from collections.abc import Callable

from swimcluster.address import Address
from swimcluster.codec import INCARNATION_MAX, encode_envelope, encode_message, encode_sender
from swimcluster.member import Claim, Member, MemberState, Reachability
from swimcluster.messages import Alive, Left
from swimcluster.transitions import Record, Transition


class Identity:
    """This member's own claims. Encoded forms are kept until a claim changes."""

    def __init__(
        self, *, name: str, address: Address, epoch: int, instance: bytes, metadata: bytes, key_ids: bytes
    ) -> None:
        self.name = name
        self.address = address
        self.epoch = epoch
        self.instance = instance
        self.incarnation = 0
        self.metadata = metadata
        self.key_ids = key_ids
        self.vitals = b""
        self.vitals_counter = 0
        self.has_left = False
        self.observer: Callable[[Transition], None] | None = None
        self._encode()

    @property
    def claim(self) -> Claim:
        """This member's claim about itself."""
        state = MemberState.LEFT if self.has_left else MemberState.ALIVE
        return Claim(self.epoch, self.instance, self.incarnation, state)

    def change(
        self,
        cause: str,
        *,
        epoch: int | None = None,
        instance: bytes | None = None,
        incarnation: int | None = None,
        address: Address | None = None,
        metadata: bytes | None = None,
        key_ids: bytes | None = None,
        has_left: bool | None = None,
    ) -> None:
        """Author a new version: a new epoch starts at incarnation 0, otherwise the incarnation given."""
        before = self.record() if self.observer is not None else None
        if epoch is not None:
            self.epoch, self.incarnation = epoch, 0
        if instance is not None:
            self.instance = instance
        if incarnation is not None:
            self.incarnation = incarnation
        if address is not None:
            self.address = address
        if metadata is not None:
            self.metadata = metadata
        if key_ids is not None:
            self.key_ids = key_ids
        if has_left is not None:
            self.has_left = has_left
        self._encode()
        if self.observer is not None:
            self.observer(Transition(self.name, before, self.record(), cause))

    def say(self, cause: str, *, metadata: bytes | None = None, key_ids: bytes | None = None) -> None:
        """Author the next version of this life; where its incarnations are used up, the first of the next epoch (P7)."""
        is_used_up = self.incarnation >= INCARNATION_MAX
        epoch, incarnation = (self.epoch + 1, None) if is_used_up else (None, self.incarnation + 1)
        self.change(cause, epoch=epoch, incarnation=incarnation, metadata=metadata, key_ids=key_ids)

    def publish_vitals(self, vitals: bytes) -> None:
        """Put new vitals on every packet from now on."""
        self.vitals = vitals
        self.vitals_counter += 1
        self._encode_envelope()

    def record(self) -> Record:
        """Return what this node claims, as a value."""
        return Record(
            name=self.name,
            address=self.address,
            instance=self.instance,
            epoch=self.epoch,
            incarnation=self.incarnation,
            state=self.claim.state,
            metadata=self.metadata,
            metadata_at=(self.epoch, self.instance, self.incarnation),
            is_verified=True,
            is_local=True,
        )

    def member(self) -> Member:
        """Return the public picture of this member."""
        return Member(
            self.name,
            self.address,
            self.instance,
            self.epoch,
            self.incarnation,
            self.claim.state,
            self.metadata,
            self.vitals,
            0.0 if self.vitals_counter else None,
            0.0,
            Reachability.DIRECT,
            is_local=True,
            metadata_at=(self.epoch, self.instance, self.incarnation),
        )

    def left_bytes(self) -> bytes:
        """Return the Left message of this member."""
        return encode_message(Left(self.name, self.epoch, self.instance, self.incarnation))

    def _encode(self) -> None:
        alive = Alive(
            self.name,
            self.address.host,
            self.address.port,
            self.epoch,
            self.instance,
            self.incarnation,
            self.metadata,
            self.key_ids,
        )
        self.alive_bytes = encode_message(alive)
        self._sender = encode_sender(self.name, self.address, epoch=self.epoch, incarnation=self.incarnation)
        self._encode_envelope()

    def _encode_envelope(self) -> None:
        self.envelope = encode_envelope(self._sender, vitals_counter=self.vitals_counter, vitals=self.vitals)

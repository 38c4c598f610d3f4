"""What this node does about claims on its own name: refute, outlive, or stop (rules P3, P5, P7)."""

from __future__ import annotations

from swimcluster.address import Address
from swimcluster.codec import EPOCH_MAX, INCARNATION_MAX, INSTANCE_BYTES
from swimcluster.core import Core
from swimcluster.events import NameConflict, NameTaken, Outlived
from swimcluster.holder_check import HolderCheck
from swimcluster.member import Claim, MemberState
from swimcluster.messages import Alive, Packet
from swimcluster.namesake_check import Answerer, NamesakeCheck
from swimcluster.news import INCARNATION_JUMP_MAX
from swimcluster.transmits import JoinStatus

STOPPED = "this member stopped before a reply came, as a live process answers under its name"


class SelfDefence:
    """Judges news about this node."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._check: HolderCheck | None = None
        self._check_epoch = 0
        self._dialled: NamesakeCheck | None = None
        self._outlived: bytes | None = None
        self._conflict_told_at: int | None = None

    def heard_words(self, now: int, words: Alive, address: Address) -> None:
        """Take an Alive under this node's own name."""
        core, identity = self._core, self._core.identity
        claim = Claim(words.epoch, words.instance, words.incarnation, MemberState.ALIVE)
        if claim.life != identity.claim.life or not core.is_active:
            self.heard_of_self(now, claim, address)
            return
        ahead = claim.incarnation - identity.incarnation
        same = (words.metadata, words.key_ids, address) == (identity.metadata, identity.key_ids, identity.address)
        if ahead > INCARNATION_JUMP_MAX:
            core.statistics.dropped_implausible += 1
        elif ahead > 0 or (ahead == 0 and not same):
            # Nobody but this life utters its words, and these are not this process's: a copy of it runs.
            self._dial(now, identity.address, None)

    def heard_of_self(self, now: int, claim: Claim, address: Address | None) -> None:
        """Take a failure claim about this node's own name, or one of another life with its `address`."""
        core = self._core
        if not core.is_active:
            return
        own = core.identity.claim
        if claim.life == own.life:
            self._refute(now, claim, own)
        elif claim.life > own.life:
            self._judge_later_life(now, claim, address)

    def _refute(self, now: int, claim: Claim, own: Claim) -> None:
        core = self._core
        if claim <= own:
            return
        if claim.incarnation > own.incarnation + INCARNATION_JUMP_MAX:
            core.statistics.dropped_implausible += 1
            return
        core.statistics.refutations += 1
        core.health.apply(1)
        if claim.incarnation >= INCARNATION_MAX:
            self.outlive(now, own.epoch)
            return
        core.identity.change("refuted", incarnation=claim.incarnation + 1)
        core.announce()

    def _judge_later_life(self, now: int, claim: Claim, address: Address | None) -> None:
        core = self._core
        if claim.state.is_gone:
            self.outlive(now, claim.epoch)  # It departed: nobody holds it any more.
        elif address is None:
            return
        elif address == core.identity.address or claim.instance == core.identity.instance:
            # An earlier process in the same place; or a copy, or the original and this is the copy.
            self._dial(now, address, claim)
        elif self._check is not None:
            return
        elif claim.instance == self._outlived:
            # It is alive after all: outliving it twice would make the name alternate.
            self.stop(now, address)
        else:
            self._check_epoch = claim.epoch
            self._check = HolderCheck(
                core, name=core.identity.name, instance=claim.instance, address=address, decided=self._decided
            )
            self._check.start(now)

    # Copies -----------------------------------------------------------------------------------------------------

    def _dial(self, now: int, address: Address, claim: Claim | None) -> None:
        """Find out who answers there under this node's name, unless somebody is being asked already."""
        if self._dialled is None:
            self._dialled = NamesakeCheck(self._core, address=address, claim=claim, decided=self._answered)
            self._dialled.start(now)

    def met_itself(self, sequence: int) -> None:
        """A ping of this node's own instance came in by exchange."""
        if self._dialled is not None:
            self._dialled.met_itself(sequence)

    def _answered(self, now: int, check: NamesakeCheck, answerer: Answerer | None) -> None:
        self._dialled = None
        claim = check.claim
        if answerer is None:
            return
        if answerer is Answerer.NAMESAKE:
            self.stop(now, check.address)
        elif claim is None:
            self.heard_clone(now)
        elif answerer is Answerer.NOBODY and claim.instance == self._outlived:
            # Alive after all, as above; only a node that reaches itself there need not yield.
            self.stop(now, check.address)
        else:
            self._outlived = claim.instance
            self.outlive(now, claim.epoch)

    # Other lives ------------------------------------------------------------------------------------------------

    def _decided(self, now: int, is_alive: bool) -> None:
        check, self._check = self._check, None
        if check is None or not self._core.is_active:
            return
        if (self._check_epoch, check.instance) < self._core.identity.claim.life:
            return  # Outlived by another way while the holder was asked.
        if is_alive:
            self.stop(now, check.address)
        else:
            self._outlived = check.instance
            self.outlive(now, self._check_epoch)

    def outlive(self, now: int, held_epoch: int) -> None:
        """Take an epoch above one that nobody holds."""
        core = self._core
        previous = core.identity.epoch
        epoch = max(previous, held_epoch) + 1
        if epoch > EPOCH_MAX:
            self.stop(now, core.identity.address)
            return
        core.identity.change("outlived", epoch=epoch)
        core.announce()
        core.emit(Outlived(previous, epoch))

    def stop(self, now: int, holder: Address) -> None:
        """Take no part any more: a live process answers under this name. What a program waits for ends here."""
        core = self._core
        core.set_status(JoinStatus.NAME_IN_USE)
        core.timers.clear()
        core.waiters.clear()
        core.user.give_up(STOPPED)
        core.joiner.give_up()
        core.exchanges.clear()
        core.emit(NameTaken(core.identity.name, holder))

    def heard_namesake(self, now: int, packet: Packet) -> None:
        """Another live process under this node's name wrote: judge its life, or tell it of this one."""
        core = self._core
        theirs = Claim(packet.epoch, packet.instance, packet.incarnation, MemberState.ALIVE)
        own = core.identity.claim
        if theirs.life > own.life:
            self.heard_of_self(now, theirs, packet.address)
            return
        interval = core.probe_timeout_ns
        if self._conflict_told_at is None or now - self._conflict_told_at >= interval:
            self._conflict_told_at = now
            core.statistics.name_conflicts += 1
            core.emit(NameConflict(core.identity.name, kept=core.identity.address, refused=packet.address))
            core.send(packet.address, core.identity.alive_bytes)

    def heard_clone(self, now: int) -> None:
        """A frame of this instance that this process has not sent: a copy of it runs. Become another life."""
        core = self._core
        if not core.is_active:
            return
        core.statistics.name_conflicts += 1
        if core.identity.epoch >= EPOCH_MAX:
            self.stop(now, core.identity.address)
            return
        instance = core.rng.getrandbits(8 * INSTANCE_BYTES).to_bytes(INSTANCE_BYTES, "big")
        core.identity.change("clone seen", epoch=core.identity.epoch + 1, instance=instance)
        core.announce()
        core.emit(NameConflict(core.identity.name, kept=core.identity.address, refused=core.identity.address))

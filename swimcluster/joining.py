"""Getting in, and letting in: seeds tried for ever, names checked before they are taken (rules P5, P22)."""

from __future__ import annotations

from collections.abc import Sequence

from swimcluster.address import Address
from swimcluster.codec import encode_message
from swimcluster.core import Core
from swimcluster.events import JoinAttemptFailed, Joined
from swimcluster.holder_check import HolderCheck
from swimcluster.membership import Entry
from swimcluster.messages import Alive, Packet, Sync, SyncReply, Verdict
from swimcluster.timers import Timer
from swimcluster.transmits import JoinStatus

DIALS_MAX = 4
"""Seeds tried at one time."""
SEEDS_MAX = 1024
"""Seeds and remembered addresses kept; further ones are ignored."""
JOINS_MAX = 256
"""Explicit joins under way at one time; the oldest fails when there are more."""
CHECKS_MAX = 256
"""Name checks remembered; the oldest makes room."""
CHECK_HASTE = 5
"""While a seed checks the holder of its name, a joiner asks again after 1/32 of a probe time-out, then 1/16, 1/8, 1/4, …"""
VERDICT_S = 10.0
"""How long a verdict about a holder stands; then it is asked again."""


class Seed:
    """One address to join through, and who was met there."""

    def __init__(self, core: Core, address: Address, *, is_hint: bool) -> None:
        self._core = core
        self.address = address
        self.is_hint = is_hint
        self.is_pending = False
        self.is_self = False
        self.is_refusing = False
        """Whether the last dial was answered with a refusal."""
        self.met: str | None = None
        self._checks = 0

    def dial(self, now: int) -> None:
        """Ask to be let in, or to exchange state when this node is in already."""
        if self._core.is_active:
            self.is_pending, self.is_refusing = True, False
            self._core.synchronizer.exchange(self.address, self, joining=self._core.status is JoinStatus.JOINING)

    def replied(self, now: int, packet: Packet) -> None:
        """Do what the seed's verdict says."""
        core, first = self._core, packet.messages[0] if packet.messages else None
        self.is_self = False
        if not isinstance(first, SyncReply) or not core.is_active:
            self.failed(now)
            return
        if first.verdict == Verdict.SELF:
            self.is_self = True
            self._end(now)
        elif first.verdict == Verdict.CHECKING:
            # A holder that is gone is known as such within a round trip; one that hangs, after the whole check.
            wait = core.probe_timeout_ns >> max(2, CHECK_HASTE - self._checks)
            self._checks += 1
            core.timers.set(now + wait, self.dial)
        elif first.verdict == Verdict.HELD:
            holder = next((m for m in packet.messages if isinstance(m, Alive)), None)
            address = packet.address if holder is None else core.decoder.address(holder.host, holder.port)
            core.defence.stop(now, address)
        elif first.held_epoch >= core.identity.epoch and core.status is JoinStatus.JOINING:
            core.defence.outlive(now, first.held_epoch)
            self.dial(now)
        else:
            self.met = packet.name
            core.joiner.let_in(now, self)
            core.synchronizer.merge(now, packet)
            self._end(now)

    def failed(self, now: int) -> None:
        """Nobody answered, or with a refusal."""
        self.met = None
        self._end(now)

    def _end(self, now: int) -> None:
        self.is_pending = False
        self._checks = 0
        self._core.joiner.dial_ended(now, self)


class AskedJoin:
    """One explicit `join` that no seed has answered yet."""

    def __init__(self, addresses: tuple[Address, ...], seeds: list[Seed]) -> None:
        self.addresses = addresses
        self.seeds = seeds
        self.waiting = list(seeds)
        """Those whose dial has not ended."""


class Joiner:
    """Dials seeds, and answers those who dial."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._seeds: dict[Address, Seed] = {}
        self._next = 0
        self._failures = 0
        self._round_is_open = False
        self._timer: Timer = core.timers.set(core.now, self._round)
        self._has_told_joined = False
        self._asked: list[AskedJoin] = []
        """Explicit joins; each ends with the first of its seeds that lets this node in, or with the last that does not."""
        self._checks: dict[tuple[str, bytes], tuple[HolderCheck, int]] = {}

    # Getting in -------------------------------------------------------------------------------------------------

    def start(self, now: int) -> None:
        """Begin at the first `advance`."""
        self.add(self._core.config.seeds, is_hint=False)
        if not self._seeds:
            self._core.set_status(JoinStatus.JOINED)

    def lost_all(self, now: int) -> None:
        """The last live member is gone: dial soon, as at the start."""
        self._timer.cancel()
        self._failures = 0
        self._timer = self._core.timers.set(now + self._core.jittered(self._backoff_ns()), self._round)

    @property
    def has_others(self) -> bool:
        """Whether there is any seed that is not known to be this node itself."""
        return any(not seed.is_self for seed in self._seeds.values())

    def add(self, addresses: Sequence[Address], *, is_hint: bool) -> None:
        """Remember addresses to dial; hints are dropped once this node has company, and make room for seeds."""
        for address in addresses:
            if address.is_unspecified or (address not in self._seeds and not self._has_room(is_hint=is_hint)):
                continue
            seed = self._seeds.setdefault(address, Seed(self._core, address, is_hint=is_hint))
            seed.is_hint = seed.is_hint and is_hint

    def _has_room(self, *, is_hint: bool) -> bool:
        if len(self._seeds) < SEEDS_MAX:
            return True
        hint = None if is_hint else next((seed for seed in self._seeds.values() if seed.is_hint), None)
        if hint is not None:
            del self._seeds[hint.address]
        return hint is not None

    def join(self, now: int, seeds: Sequence[Address]) -> None:
        """Add seeds and dial these at once; Joined or JoinAttemptFailed says how it went."""
        self.add(seeds, is_hint=False)
        self._failures = 0
        addresses = tuple(dict.fromkeys(seeds))
        call = AskedJoin(addresses, [self._seeds[address] for address in addresses if address in self._seeds])
        if len(self._asked) >= JOINS_MAX:
            self._fail(self._asked[0])
        self._asked.append(call)
        if not call.seeds or not self._core.is_active:
            self._fail(call)
        self._dial_asked(now)

    def _fail(self, call: AskedJoin) -> None:
        self._asked.remove(call)
        self._tell_failed(call.addresses, is_explicit=True)

    def _tell_failed(self, seeds: tuple[Address, ...], *, is_explicit: bool = False) -> None:
        refused = tuple(s for s in seeds if s in self._seeds and self._seeds[s].is_refusing)
        self._core.emit(JoinAttemptFailed(seeds, self._backoff_ns() / 1e9, is_explicit, refused))

    def refused(self, address: Address) -> None:
        """An exchange with this address, that of a seed or not, was answered with a refusal."""
        if address in self._seeds:
            self._seeds[address].is_refusing = True

    def give_up(self) -> None:
        """This node leaves or has stopped: nobody will be dialled any more."""
        for call in tuple(self._asked):
            self._fail(call)

    def _dial_asked(self, now: int) -> None:
        asked = dict.fromkeys(seed for call in self._asked for seed in call.waiting)
        free = [seed for seed in asked if not seed.is_pending]
        self._dial(now, free[: max(0, DIALS_MAX - (len(asked) - len(free)))])

    def _round(self, now: int) -> None:
        core, config = self._core, self._core.config
        if not core.is_active:
            return
        if core.table.live:
            self._seeds = {address: seed for address, seed in self._seeds.items() if not seed.is_hint}
            uncovered = [s for s in self._seeds.values() if not s.is_pending and s.met not in core.table.live]
            self._dial(now, self._rotated(uncovered))
            self._timer = core.timers.set(now + core.jittered(config.ns(config.seed_interval_s)), self._round)
            return
        free = [seed for seed in self._seeds.values() if not seed.is_pending]
        self._round_is_open = bool(free)
        self._dial(now, self._rotated(free))
        self._timer = core.timers.set(now + core.jittered(self._backoff_ns()), self._round)

    def _backoff_ns(self) -> int:
        config = self._core.config
        doubled = config.ns(config.seed_retry_min_s) << min(self._failures, 20)
        return min(doubled, config.ns(config.seed_retry_max_s))

    def _rotated(self, seeds: list[Seed]) -> list[Seed]:
        if len(seeds) <= DIALS_MAX:
            return seeds
        self._next = (self._next + DIALS_MAX) % len(seeds)
        return (seeds[self._next :] + seeds[: self._next])[:DIALS_MAX]

    def _dial(self, now: int, seeds: list[Seed]) -> None:
        for seed in seeds:
            seed.dial(now)

    def dial_ended(self, now: int, seed: Seed) -> None:
        """See whether an explicit join or the round is over without company."""
        core = self._core
        for call in [call for call in self._asked if seed in call.waiting]:
            call.waiting.remove(seed)
            if not call.waiting:
                self._fail(call)
        self._dial_asked(now)
        if not self._round_is_open or any(seed.is_pending for seed in self._seeds.values()):
            return
        self._round_is_open = False
        if core.status is JoinStatus.JOINING and not self.has_others:
            core.set_status(JoinStatus.JOINED)
        if not core.table.live and self.has_others:
            self._failures += 1
            self._tell_failed(tuple(seed.address for seed in self._seeds.values() if not seed.is_self))

    def let_in(self, now: int, seed: Seed) -> None:
        """A seed accepted this node: spread its Alive."""
        core = self._core
        self._failures = 0
        if core.status is JoinStatus.JOINING:
            core.set_status(JoinStatus.JOINED)
            core.synchronizer.joined(now)
        core.announce()
        others = [call for call in self._asked if seed not in call.seeds]
        if not self._has_told_joined or len(others) < len(self._asked):
            self._has_told_joined = True
            core.emit(Joined(seed.address))
        self._asked = others

    def found_member(self, now: int) -> None:
        """A member was verified, by whatever way: this node is in."""
        if self._core.status is JoinStatus.JOINING:
            self._core.set_status(JoinStatus.JOINED)

    # Letting in -------------------------------------------------------------------------------------------------

    def answer(self, now: int, packet: Packet, sync: Sync) -> list[bytes]:
        """Return the reply's messages to a state exchange, merging it unless its sender must wait."""
        core = self._core
        if packet.instance == core.identity.instance:
            return [encode_message(SyncReply(Verdict.SELF, 0))]
        if not sync.joining:
            core.synchronizer.merge_request(now, packet)
            return core.synchronizer.answer(now, 0)
        if packet.name == core.identity.name:
            return self._answer_namesake(packet)
        entry = core.table.get(packet.name)
        if entry is None or entry.claim.instance == packet.instance:
            core.synchronizer.merge_request(now, packet)
            return core.synchronizer.answer(now, 0)
        if entry.is_live:
            verdict = self._holder_verdict(now, entry)
            if verdict is not Verdict.ACCEPTED:
                return [encode_message(SyncReply(verdict, entry.claim.epoch)), entry.alive_bytes]
        held_epoch = entry.claim.epoch
        core.synchronizer.merge_request(now, packet)
        return core.synchronizer.answer(now, held_epoch if held_epoch >= packet.epoch else 0)

    def _answer_namesake(self, packet: Packet) -> list[bytes]:
        identity = self._core.identity
        is_first = self._core.status is not JoinStatus.JOINING or identity.claim.life > (packet.epoch, packet.instance)
        verdict = Verdict.HELD if is_first else Verdict.CHECKING
        return [encode_message(SyncReply(verdict, identity.epoch)), identity.alive_bytes]

    def _holder_verdict(self, now: int, entry: Entry) -> Verdict:
        """Return what is known of a name's holder, asking it when that is nothing or old."""
        core, key = self._core, (entry.name, entry.claim.instance)
        known = self._checks.get(key)
        if known is None or now - known[1] > core.config.ns(VERDICT_S):
            if len(self._checks) >= CHECKS_MAX:
                del self._checks[next(iter(self._checks))]
            check = HolderCheck(core, name=entry.name, instance=key[1], address=entry.address, decided=self._checked)
            self._checks[key] = known = (check, now)
            check.start(now)
        verdict = known[0].verdict
        if verdict is None:
            return Verdict.CHECKING
        return Verdict.HELD if verdict else Verdict.ACCEPTED

    def _checked(self, now: int, is_alive: bool) -> None:
        """Nothing to do: the joiner asks again and reads the verdict."""

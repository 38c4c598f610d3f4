"""Anti-entropy: all that one node holds against all that another holds, in one request and one reply (rules P20, P21)."""

from __future__ import annotations

import math
from itertools import accumulate

from swimcluster.address import Address
from swimcluster.codec import encode_message
from swimcluster.core import Core, ExchangeOwner
from swimcluster.member import MemberState
from swimcluster.messages import Packet, Sync, SyncReply, Verdict
from swimcluster.timers import Timer

OPENING_BYTES = 40_000
"""Kept free in an exchange for hello, frame, envelope, opening message and own Alive, whatever their limits."""
SCALE_FROM = 32
"""Members up to which the interval is not stretched."""


def push_pull_scale(members: int) -> int:
    """Return how many times the configured interval is stretched: 1 up to 32 members, then +1 per doubling."""
    return 1 if members <= SCALE_FROM else math.ceil(math.log2(members) - math.log2(SCALE_FROM)) + 1


class StateExchange:
    """One state exchange with one member."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def replied(self, now: int, packet: Packet) -> None:
        """Merge what came back."""
        self._core.synchronizer.merge(now, packet)

    def failed(self, now: int) -> None:
        """Nothing follows: probes judge members, not state exchanges."""


class Synchronizer:
    """Starts state exchanges on time, answers and merges them."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._timer: Timer | None = None

    def start(self, now: int) -> None:
        """Set the first one; the interval has jitter throughout."""
        interval = self.interval_ns()
        if interval:
            self._timer = self._core.timers.set(now + self._core.below(interval) + 1, self._tick)

    def joined(self, now: int) -> None:
        """Exchange soon: the seed that let this node in may have been as new as itself."""
        core = self._core
        if self._timer is not None:
            self._timer.cancel()
            wait = core.probe_interval_ns + core.below(core.probe_interval_ns * push_pull_scale(core.table.count))
            self._timer = core.timers.set(now + wait, self._tick)

    def interval_ns(self) -> int:
        """Return the stretched interval in nanoseconds; 0 when it is turned off."""
        config = self._core.config
        return config.ns(config.push_pull_interval_s) * push_pull_scale(self._core.table.count)

    def tombstone_ns(self) -> int:
        """Return for how long a departed member's state is told to others: three intervals, or the configured least."""
        return max(3 * self.interval_ns(), self._core.config.ns(self._core.config.tombstone_s))

    def _tick(self, now: int) -> None:
        core = self._core
        if not core.is_active:
            return
        self._timer = core.timers.set(now + core.jittered(self.interval_ns()), self._tick)
        for entry in core.some_live(1):
            self.exchange(entry.address, StateExchange(core))

    def exchange(self, address: Address, owner: ExchangeOwner, *, joining: bool = False) -> None:
        """Start a state exchange."""
        core = self._core
        messages = [encode_message(Sync(int(joining))), core.identity.alive_bytes, *self.state(core.now)]
        core.exchange(address, messages, owner, core.config.ns(core.config.exchange_timeout_s))

    def state(self, now: int) -> list[bytes]:
        """Return what is held, as news: an Alive for each live member, and failure claims where there are any."""
        messages: list[bytes] = []
        for entry in self._core.table.sorted_live():
            messages.append(entry.alive_bytes)
            if entry.claim.state is not MemberState.ALIVE:
                messages.append(entry.claim_bytes(entry.accuser()))
        horizon = now - self.tombstone_ns()
        messages += [entry.claim_bytes("") for entry in self._core.table.gone.values() if entry.since > horizon]
        return self._within_limit(messages)

    def _within_limit(self, messages: list[bytes]) -> list[bytes]:
        """Return a random run of messages that fits an exchange; all of them unless the limits were set out of step."""
        room = self._core.config.exchange_bytes_max - OPENING_BYTES
        if sum(map(len, messages)) <= room:
            return messages
        start = self._core.below(len(messages))
        turned = messages[start:] + messages[:start]
        ends = accumulate(map(len, turned))
        return [message for message, end in zip(turned, ends, strict=True) if end <= room]

    def answer(self, now: int, held_epoch: int) -> list[bytes]:
        """Return the reply's messages to a merged request; `held_epoch` is 0 unless the joiner must go above it."""
        opening = encode_message(SyncReply(Verdict.ACCEPTED, held_epoch))
        return [opening, self._core.identity.alive_bytes, *self.state(now)]

    def merge(self, now: int, packet: Packet) -> None:
        """Take the state in a reply. It answers this node's own request, so its sender is alive now: list it."""
        self._core.inbox.take(now, packet, synced=True)
        self._core.verifier.proven(now, packet.name, packet.instance)

    def merge_request(self, now: int, packet: Packet) -> None:
        """Take the state in a request."""
        self._core.inbox.take(now, packet, synced=True)

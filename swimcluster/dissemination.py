"""What is to be spread, and the one place that fills packets (SWIM §4.1; docs/protocol.md, dissemination)."""

from __future__ import annotations

import math
from collections.abc import Hashable

MISSES_MAX = 16
"""Updates that did not fit after which a packet is called full."""
SMALLEST_BYTES = 16
"""No update is smaller, so a packet with less room is full."""


def transmit_limit(multiplier: int, members: int) -> int:
    """Return how often an update is sent: multiplier x ceil(log10(n + 1)).

    Args:
        members: live members including this one, at least 1.
    """
    return multiplier * math.ceil(math.log10(members + 1))


class UpdateQueue:
    """Encoded updates by subject, each sent a limited number of times; least sent first, then newest.

    A new update about a subject replaces the older one. Bounded by `subjects_max`: the most sent, oldest goes.
    """

    def __init__(self, subjects_max: int) -> None:
        self._subjects_max = subjects_max
        self._sent: dict[Hashable, int] = {}
        self._buckets: list[dict[Hashable, bytes]] = [{}]

    def __len__(self) -> int:
        return len(self._sent)

    def __contains__(self, subject: Hashable) -> bool:
        return subject in self._sent

    @property
    def has_unsent(self) -> bool:
        """Whether an update waits that was never sent."""
        return bool(self._buckets[0])

    def put(self, subject: Hashable, data: bytes) -> bool:
        """Queue an update to be sent from the start; False when another one had to make room."""
        self.discard(subject)
        has_room = len(self._sent) < self._subjects_max
        if not has_room:
            fullest = next(bucket for bucket in reversed(self._buckets) if bucket)
            self.discard(next(iter(fullest)))
        self._buckets[0][subject] = data
        self._sent[subject] = 0
        return has_room

    def discard(self, subject: Hashable) -> None:
        """Drop the update about a subject, if there is one."""
        sent = self._sent.pop(subject, None)
        if sent is not None:
            del self._buckets[sent][subject]

    def take(self, room: int, limit: int, copies: int) -> list[bytes]:
        """Return updates that fit into `room` bytes, counted as sent `copies` times each; at `limit` they are dropped."""
        taken: list[tuple[int, Hashable, bytes]] = []
        misses = 0
        for sent, bucket in enumerate(self._buckets):
            for subject in reversed(bucket):
                if room < SMALLEST_BYTES or misses > MISSES_MAX:
                    break
                data = bucket[subject]
                if len(data) <= room:
                    room -= len(data)
                    taken.append((sent, subject, data))
                else:
                    misses += 1
        for sent, subject, data in reversed(taken):
            del self._buckets[sent][subject]
            if sent + copies >= limit:
                del self._sent[subject]
                continue
            while len(self._buckets) <= sent + copies:
                self._buckets.append({})
            self._buckets[sent + copies][subject] = data
            self._sent[subject] = sent + copies
        return [data for _, _, data in taken]


class Packer:
    """Fills the room of a packet: membership updates, and at least a quarter for user broadcasts that wait."""

    USER_SHARE = 0.25

    def __init__(self, updates_max: int, broadcasts_max: int, broadcast_bytes_max: int) -> None:
        self.largest = broadcast_bytes_max
        self.updates = UpdateQueue(updates_max)
        self.broadcasts = UpdateQueue(broadcasts_max)

    def fill(self, room: int, limit: int, copies: int = 1) -> list[bytes]:
        """Return encoded messages of at most `room` bytes in all."""
        chosen: list[bytes] = []
        if self.broadcasts:
            # A quarter, but never less than one: a large broadcast must not wait for the churn to end.
            reserved = min(room, max(int(room * self.USER_SHARE), self.largest)) if self.updates else room
            user = self.broadcasts.take(reserved, limit, copies)
            room -= sum(map(len, user))
            chosen += user
        if self.updates:
            updates = self.updates.take(room, limit, copies)
            room -= sum(map(len, updates))
            chosen = updates + chosen
            if self.broadcasts and not self.updates:
                chosen += self.broadcasts.take(room, limit, copies)
        return chosen

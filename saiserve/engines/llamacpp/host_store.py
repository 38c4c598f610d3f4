"""Saved states in host memory under a byte budget; knows nothing of tokens but their number.

Eviction by cost and age: GreedyDual-Size (Cao, Irani 1997). A blob's rank is `floor + cost / bytes`, set anew at each
use; the lowest rank goes first and becomes the floor, so what is dear per byte stays longer, and nothing stays for ever.
A blob that others continue (a chain of segments) goes only after them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from saiserve.engines.llamacpp.prefix_tree import Node
from saiserve.engines.llamacpp.saved_state import SavedState


@dataclass(eq=False, slots=True)
class Blob:
    """The state of tokens [start, end) of some prefix, or with `is_checkpoint` the state at exactly `end`."""

    id: int
    data: SavedState
    start: int
    end: int
    isolation: str
    parent: Blob | None
    """The blob that this one continues from `start`."""
    is_checkpoint: bool
    cost: float
    """Tokens to compute again if it is lost."""
    used_at: int
    node: Node | None = None
    """Where it ends in the prefix tree; kept by the owner of the tree."""
    continued: int = 0
    """Blobs whose parent this is."""
    rank: float = 0.0
    is_held: bool = False


class HostStore:
    """Blobs under a byte budget. `on_evict` is told of each blob dropped to make room."""

    def __init__(self, bytes_max: int, on_evict: Callable[[Blob], None]) -> None:
        self.bytes_max = bytes_max
        self.bytes_used = 0
        self.evictions = 0
        self.blobs: dict[int, Blob] = {}
        self._on_evict = on_evict
        self._floor = 0.0
        self._heap: list[tuple[float, int, int]] = []
        self._next_id = 0

    def put(
        self,
        now: int,
        data: SavedState,
        *,
        start: int,
        end: int,
        isolation: str,
        cost: float,
        parent: Blob | None = None,
        is_checkpoint: bool = False,
    ) -> Blob | None:
        """Keep a state; None when it cannot fit beside its parents. Older ones may be evicted either way."""
        if len(data) > self.bytes_max:
            return None
        self._next_id += 1
        blob = Blob(self._next_id, data, start, end, isolation, parent, is_checkpoint, cost, now)
        if parent is not None:
            parent.continued += 1  # so that it is not evicted for its own child
        while self.bytes_used + len(data) > self.bytes_max:
            if not self._evict_one():
                if parent is not None:
                    self._release(parent)
                return None
        blob.is_held = True
        self.blobs[blob.id] = blob
        self.bytes_used += len(data)
        self.touch(now, blob)
        return blob

    def touch(self, now: int, blob: Blob) -> None:
        """A blob was of use: it and those it continues are young again."""
        current: Blob | None = blob
        while current is not None and current.is_held:
            current.used_at = now
            current.rank = self._floor + current.cost / max(len(current.data), 1)
            heapq.heappush(self._heap, (current.rank, now, current.id))
            current = current.parent
        if len(self._heap) > 64 + 4 * len(self.blobs):
            self._heap = [(kept.rank, kept.used_at, kept.id) for kept in self.blobs.values()]
            heapq.heapify(self._heap)

    def drop(self, blob: Blob) -> None:
        """Forget a blob that nothing continues; `on_evict` is not told."""
        assert blob.continued == 0
        if not blob.is_held:
            return
        blob.is_held = False
        del self.blobs[blob.id]
        self.bytes_used -= len(blob.data)
        if blob.parent is not None:
            self._release(blob.parent)

    def _release(self, parent: Blob) -> None:
        parent.continued -= 1
        if parent.continued == 0 and parent.is_held:
            heapq.heappush(self._heap, (parent.rank, parent.used_at, parent.id))

    def _evict_one(self) -> bool:
        while self._heap:
            rank, used_at, blob_id = heapq.heappop(self._heap)
            blob = self.blobs.get(blob_id)
            if blob is None or (blob.rank, blob.used_at) != (rank, used_at) or blob.continued:
                continue  # out of date; a continued one is pushed again when its children are gone
            self._floor = rank
            self.drop(blob)
            self.evictions += 1
            self._on_evict(blob)
            return True
        return False

"""Moves prefixes between the KV cache and host memory, and keeps checkpoints: which bytes, where in the trees.

Full attention is kept as a chain of segments, each saved once however many prefixes share it; other families as whole
states, since their windows and recurrent states mean something only at the place where they were taken.
"""

from __future__ import annotations

import enum
from collections import Counter

from saiserve.engines.llamacpp.host_store import Blob, HostStore
from saiserve.engines.llamacpp.kv import Family, KvCache
from saiserve.engines.llamacpp.prefix_tree import Forest, Node
from saiserve.engines.llamacpp.reuse import Choice, Held, Segment
from saiserve.engines.llamacpp.saved_state import SavedState

MOVE_BYTES = 64 * 1024 * 1024
"""Bytes of one unhurried move: some 7 ms on the machines measured, so that running streams hardly notice."""
MOVE_BYTES_ALONE = 2 * MOVE_BYTES
"""The most to move at once when no stream runs, before a lone one begins."""
MOVE_TOKENS_MIN, MOVE_TOKENS_MAX = 256, 4096
"""The same in tokens, whatever they weigh."""


class Saved(enum.Enum):
    """What came of saving a sequence."""

    WHOLE = "whole"
    """Host memory has all of it: the sequence may go."""
    PARTLY = "partly"
    """A piece was saved, the next call saves more."""
    NO_ROOM = "no_room"
    """Host memory does not take it."""


class HostTier:
    """Saved states of one KV cache. `spare` is a sequence id for passing segments through."""

    def __init__(self, kv: KvCache, forest: Forest, bytes_max: int, spare: int, counts: Counter[str]) -> None:
        self.store = HostStore(bytes_max, self._evicted)
        self.moved_tokens = 0
        """Tokens moved either way since it was last set to 0."""
        self._kv = kv
        self._forest = forest
        self._spare = spare
        self._counts = counts
        self._bytes_per_token = 0.0

    @property
    def tokens_per_move(self) -> int:
        """Tokens to move in one step when nothing presses."""
        if self._bytes_per_token == 0:
            return MOVE_TOKENS_MIN
        return max(MOVE_TOKENS_MIN, min(MOVE_TOKENS_MAX, int(MOVE_BYTES / self._bytes_per_token)))

    def has_spare(self, tokens: int) -> bool:
        """Whether so many tokens fit without evicting anything, by what the last ones took."""
        return self.store.bytes_used + tokens * self._bytes_per_token <= self.store.bytes_max

    def takes_at_once(self, tokens: int) -> bool:
        """Whether so many tokens may move while only a request about to start waits, without evicting anything."""
        return self.has_spare(tokens) and tokens * self._bytes_per_token <= MOVE_BYTES_ALONE

    def restore(self, now: int, sequence: int, choice: Choice) -> int:
        """Put host states in after what was copied; returns how many ids are in place in all."""
        cut = choice.source_cut
        for segment in choice.segments:
            if not self._restore_segment(sequence, segment):
                break
            self.store.touch(now, segment.blob)
            self.moved_tokens += segment.end - segment.start
            self._counts["moves_from_host"] += 1
            self._counts["host_hit_tokens"] += segment.end - segment.start
            cut = segment.end
        return cut

    def _restore_segment(self, sequence: int, segment: Segment) -> bool:
        if self._kv.family is not Family.FULL:
            return self._kv.restore(sequence, segment.blob.data, partial=False)
        if not self._kv.restore(self._spare, segment.blob.data, partial=False):
            return False
        self._kv.copy(self._spare, sequence, segment.start, segment.end)
        self._kv.remove(self._spare, 0, -1)
        return True

    def save(self, now: int, held: Held, tokens_max: int) -> Saved:
        """Save what host memory does not have of an idle sequence, at most so many tokens if it can be cut."""
        if self._kv.family is Family.FULL:
            return self._save_segment(now, held, tokens_max)
        if held.tip.blob_tip is not None:
            return Saved.WHOLE
        if not self.store.bytes_max:
            return Saved.NO_ROOM
        data = self._kv.save(held.sequence, partial=False)
        if not self._keep(now, held, data, start=0, end=held.ready):
            return Saved.NO_ROOM
        for place in held.marks:
            if max(held.floor, 1) <= place < held.ready:
                self._mark(now, held, place)
        return Saved.WHOLE

    def _save_segment(self, now: int, held: Held, tokens_max: int) -> Saved:
        node: Node | None = held.tip
        while node is not None and not node.blobs:
            node = node.parent
        start, parent = (node.end, self.store.blobs[next(iter(node.blobs))]) if node is not None else (0, None)
        if start >= held.ready:
            return Saved.WHOLE
        if not self.store.bytes_max:
            return Saved.NO_ROOM
        end = min(held.ready, start + tokens_max)
        self._kv.copy(held.sequence, self._spare, start, end)
        data = self._kv.save(self._spare, partial=False)
        self._kv.remove(self._spare, 0, -1)
        if not self._keep(now, held, data, start=start, end=end, parent=parent):
            return Saved.NO_ROOM
        return Saved.WHOLE if end == held.ready else Saved.PARTLY

    def _keep(
        self, now: int, held: Held, data: SavedState, *, start: int, end: int, parent: Blob | None = None
    ) -> bool:
        self.moved_tokens += end - start
        self._bytes_per_token = len(data) / (end - start)
        blob = self.store.put(
            now, data, start=start, end=end, isolation=held.isolation, cost=end - start, parent=parent
        )
        if blob is None:
            return False
        tree = self._forest.tree(held.isolation)
        blob.node = tree.place(held.tokens, end)
        tree.add_blob(blob.id, blob.node, start)
        self._counts["moves_to_host"] += 1
        return True

    def take_checkpoint(self, now: int, held: Held) -> None:
        """Keep the state of a running sequence at the place where it stands, for branches."""
        if not self._has_checkpoint(now, held, held.ready):
            self._keep_checkpoint(now, held, held.ready, self._kv.save(held.sequence, partial=True))

    def _mark(self, now: int, held: Held, place: int) -> None:
        """Keep the state at an earlier place of a sequence whose windowed cells are all pinned."""
        if not self._has_checkpoint(now, held, place):
            self._kv.copy(held.sequence, self._spare, 0, place)
            data = self._kv.save(self._spare, partial=True)
            self._kv.remove(self._spare, 0, -1)
            self._keep_checkpoint(now, held, place, data)

    def _has_checkpoint(self, now: int, held: Held, place: int) -> bool:
        node = self._forest.tree(held.isolation).place(held.tokens, place)
        if node.checkpoint is None:
            return False
        self.store.touch(now, self.store.blobs[node.checkpoint])
        return True

    def _keep_checkpoint(self, now: int, held: Held, place: int, data: SavedState) -> None:
        blob = self.store.put(
            now, data, start=place, end=place, isolation=held.isolation, cost=place, is_checkpoint=True
        )
        if blob is not None:
            tree = self._forest.tree(held.isolation)
            blob.node = tree.place(held.tokens, place)  # evictions may have joined the first one away
            tree.set_checkpoint(blob.id, blob.node)
            self._counts["checkpoints"] += 1

    def clear(self) -> None:
        """Drop all that is saved."""
        # What continues another is younger, though it may end earlier, and goes before it.
        for blob in sorted(self.store.blobs.values(), key=lambda blob: -blob.id):
            self.store.drop(blob)
            self._evicted(blob)

    def _evicted(self, blob: Blob) -> None:
        tree = self._forest.tree(blob.isolation)
        assert blob.node is not None
        if blob.is_checkpoint:
            tree.clear_checkpoint(blob.node)
        else:
            tree.remove_blob(blob.id, blob.node)
        self._forest.forget_if_empty(blob.isolation)

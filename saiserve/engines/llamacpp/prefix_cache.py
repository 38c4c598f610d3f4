"""Who holds which prefix where, and the KV operations that begin, keep and drop sequences.

The one owner of sequence ids, cells, prefix trees and the host store. Keeps these true: the ledger counts what the
cache holds; every reuse passed the span gate; pinned cells are held by a twin id; keys that isolate never share.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator

from saiserve.engines.llamacpp.cells import CellLedger
from saiserve.engines.llamacpp.host_tier import HostTier, Saved
from saiserve.engines.llamacpp.job import HeldPrefix
from saiserve.engines.llamacpp.kv import SEQUENCE_IDS_MAX, Family, KvCache
from saiserve.engines.llamacpp.prefix_tree import Forest, Node
from saiserve.engines.llamacpp.reuse import Choice, Held, ReuseKind, choose
from saiserve.engines.llamacpp.room import Room

KINDS = {
    Family.FULL: ReuseKind.CHAINED,
    Family.WINDOW: ReuseKind.STATES,
    Family.RECURRENT: ReuseKind.STATES,
}
"""Without pins."""
CACHE_COUNTERS = (
    "copies",
    "adoptions",
    "gate_refusals",
    "pins",
    "moves_to_host",
    "moves_from_host",
    "host_hit_tokens",
    "checkpoints",
    "idle_evictions",
)
"""Totals counted here."""
SYNC_TOKENS = 32
"""A running job's new tokens are told to the tree this many at a time."""


def passes_gate(span: tuple[int, int], cut: int, family: Family, window: int) -> bool:
    """Whether a sequence with this span of positions can go on at `cut`: nothing it will look at is missing."""
    low, high = span
    if family is Family.RECURRENT:
        return low == high == cut - 1
    return high == cut - 1 and low <= (max(0, cut - window + 1) if family is Family.WINDOW else 0)


class PrefixCache:
    """Sequences and saved prefixes over one KV cache."""

    def __init__(
        self, kv: KvCache, *, hot_cells_max: int, host_bytes_max: int, pins: bool, park_after_ns: int | None = None
    ) -> None:
        self.kv = kv
        self.family = kv.family
        self.pins = pins and kv.family is Family.WINDOW
        if self.pins and 2 * kv.sequences_max > SEQUENCE_IDS_MAX:
            raise ValueError(f"twin ids need sequences_max ≤ {SEQUENCE_IDS_MAX // 2}, not {kv.sequences_max}")
        self.kind = ReuseKind.PINNED if self.pins else KINDS[kv.family]
        self._parks = park_after_ns is not None and self.kind is ReuseKind.CHAINED and host_bytes_max > 0
        self.spare = kv.sequences_max - 1
        self.cells = CellLedger()
        self.held: dict[int, Held] = {}
        self.counts: Counter[str] = Counter()
        self._forest = Forest()
        self.host = HostTier(kv, self._forest, host_bytes_max, self.spare, self.counts)
        self._free = list(range(self.spare - 1, -1, -1))
        self.room = Room(
            self.held,
            self._free,
            self.cells,
            self.host,
            self.discard,
            cells_total=kv.cells_total,
            hot_cells_max=hot_cells_max,
            park_after_ns=park_after_ns if self._parks else None,
            counts=self.counts,
        )
        self._is_clear = False
        """Nothing is held, and the next token takes the first cell."""
        self._straight: Held | None = None
        """The only sequence, its cells in order from the first one on."""

    # Asking

    @property
    def makes_checkpoints(self) -> bool:
        """Whether states at chosen places are kept."""
        return self.kind is ReuseKind.STATES and self.host.store.bytes_max > 0

    def counters(self) -> dict[str, float]:
        """Totals and gauges by name."""
        return {
            **dict.fromkeys(CACHE_COUNTERS, 0.0),
            **self.counts,
            "host_evictions": self.host.store.evictions,
            "host_bytes": self.host.store.bytes_used,
            "host_blobs": len(self.host.store.blobs),
            "cells_used": self.cells.used,
            "cells_idle": self.cells.idle,
            "cells_total": self.kv.cells_total,
            "sequences_free": len(self._free),
        }

    def report(self) -> Iterator[HeldPrefix]:
        """The prefixes held in either tier."""
        for held in self.held.values():
            if held.ready:
                yield HeldPrefix(held.ready, held.isolation, "idle" if held.is_idle else "running", held.used_at)
        for blob in self.host.store.blobs.values():
            yield HeldPrefix(blob.end, blob.isolation, "host", blob.used_at, len(blob.data), blob.start)

    def look(self, tokens: array[int], isolation: str, *, whole: bool = False) -> Choice:
        """What to reuse for a prompt; unless all of it may be, at least its last id is left to compute, for logits."""
        path = self._forest.match(isolation, tokens, len(tokens) - (not whole))
        return choose(path, self.kind, self.held, self.host.store.blobs)

    def idle_cells_beside(self, source: Held | None) -> int:
        """Cells that could be freed without touching `source`, at least."""
        if source is None or not source.is_idle:
            return self.cells.idle
        return max(0, self.cells.idle - source.ready)

    # Beginning and ending sequences

    def begin_step(self) -> None:
        """A new step: it may move something between the tiers again."""
        self.host.moved_tokens = 0

    def clear_ground(self, now: int, choice: Choice) -> bool:
        """Nothing runs: let what starts now lie alone from the first cell on, so that it is computed alike each time.

        True when idle prefixes moved to host memory for it: look again. See decision 0150.
        """
        if not self._parks:
            return False
        idle = list(self.held.values())
        if idle == [self._straight] and choice.is_adoption and not choice.segments:
            return False
        if not self.host.takes_at_once(sum(held.ready for held in idle)):
            return False
        for held in idle:
            if self.host.save(now, held, held.ready) is not Saved.WHOLE:
                return held is not idle[0]
            self.discard(held)
        self.kv.rewind()
        self._is_clear = True
        return bool(idle)

    def open(self, now: int, tokens: array[int], isolation: str, choice: Choice) -> Held | None:
        """Begin a running sequence; `ready` of the result says how much was reused. None: no sequence id is free."""
        held = self._open(now, tokens, isolation, choice)
        if held is not None:
            self._straight = held if self._is_clear or held is self._straight else None
            self._is_clear = False
        return held

    def _open(self, now: int, tokens: array[int], isolation: str, choice: Choice) -> Held | None:
        if choice.is_adoption and not choice.segments:
            held = self._adopt(now, tokens, choice)
            if held is not None:
                return held
            choice = Choice()
        sequence = self.room.take_id(now, choice.source)
        if sequence is None:  # every other id runs, and the source is idle: its own id will do
            choice = Choice()
            sequence = self.room.take_id(now, None)
        if sequence is None:
            return None
        cut = self._fill(now, sequence, choice)
        tree = self._forest.tree(isolation)
        tip = tree.place(tokens, len(tokens))
        tree.add_sequence(sequence, tip)
        held = Held(sequence, tokens, isolation, tip, len(tokens), now, ready=cut, floor=self._floor_of(choice, cut))
        self.held[sequence] = held
        self._pin(held)
        return held

    def _floor_of(self, choice: Choice, cut: int) -> int:
        """The earliest cut that a sequence begun this way allows: a restored one has only its last window (WINDOW)."""
        if self.kind is not ReuseKind.PINNED or cut == 0:
            return 0
        if choice.source is not None and choice.checkpoint is None:
            return choice.source.floor
        return cut - 1 if cut > self.kv.window else 0

    def _adopt(self, now: int, tokens: array[int], choice: Choice) -> Held | None:
        """Take an idle sequence over, whole. None: the gate refused it, it is gone."""
        held = choice.source
        assert held is not None
        if not passes_gate(self.kv.span(held.sequence), held.ready, self.family, self.kv.window):
            self.counts["gate_refusals"] += 1
            self.discard(held)
            return None
        tree = self._forest.tree(held.isolation)
        held.tip = tree.extend_sequence(held.sequence, held.tip, tokens, len(tokens))
        held.tokens, held.planned, held.used_at = tokens, len(tokens), now
        held.is_idle, held.is_running = False, True
        self.cells.set_idle(held.sequence, False)
        self.counts["adoptions"] += 1
        return held

    def _fill(self, now: int, sequence: int, choice: Choice) -> int:
        """Copy and restore into an empty sequence; returns how many ids are in place (0 if the gate refused)."""
        source = choice.source
        if choice.cut == 0:
            return 0
        if source is not None:
            self.kv.copy(source.sequence, sequence, 0, choice.source_cut)
            self.cells.fork(source.sequence, sequence, choice.source_cut)
            source.used_at = now
            self.counts["copies"] += 1
        cut = self.host.restore(now, sequence, choice)
        if choice.segments:
            restored = (
                cut - choice.source_cut if self.family is Family.FULL else choice.segments[0].blob.end * bool(cut)
            )
            self.cells.extend(sequence, restored)
        if cut and choice.checkpoint is not None and choice.checkpoint.end == cut:
            self.kv.restore(sequence, choice.checkpoint.data, partial=True)
            self.host.store.touch(now, choice.checkpoint)
            if not source and not self.kv.remove(sequence, cut, -1):
                cut = 0
            self.cells.truncate(sequence, cut)
        if cut and passes_gate(self.kv.span(sequence), cut, self.family, self.kv.window):
            return cut
        self.kv.remove(sequence, 0, -1)
        self.cells.drop(sequence)
        if cut:
            self.counts["gate_refusals"] += 1
            if source is not None and source.is_idle:
                self.discard(source)
        return 0

    def grow(self, held: Held, count: int, guessed: int = 0) -> None:
        """`count` more ids of a running sequence were computed, and so many guesses after them."""
        self.cells.extend(held.sequence, count + guessed)
        self.confirm(held, count)

    def retract(self, held: Held) -> None:
        """The guesses not confirmed were wrong."""
        self.kv.remove(held.sequence, held.ready, -1)
        self.cells.truncate(held.sequence, held.ready)

    def confirm(self, held: Held, count: int) -> None:
        """So many ids whose cells are there belong to the sequence."""
        held.ready += count
        if held.ready - held.planned >= SYNC_TOKENS:
            self._tell_tree(held)
        if self.pins and (held.ready <= held.planned or held.ready - held.pinned >= self.kv.window // 2):
            self._pin(held)

    def _tell_tree(self, held: Held) -> None:
        tree = self._forest.tree(held.isolation)
        held.tip = tree.extend_sequence(held.sequence, held.tip, held.tokens, held.ready)
        held.planned = held.ready

    def _pin(self, held: Held) -> None:
        """Let the twin hold what the sequence holds: a cell with two owners is never taken (WINDOW)."""
        if self.pins and held.ready > held.pinned:
            self.kv.copy(held.sequence, held.sequence + self.kv.sequences_max, held.pinned, held.ready)
            held.pinned = held.ready
            self.counts["pins"] += 1

    def close(self, now: int, held: Held) -> None:
        """A running sequence has ended: keep it for reuse, unless another holds all it does."""
        if held.ready == 0:
            self.discard(held)
            return
        self._pin(held)
        tree = self._forest.tree(held.isolation)
        if held.ready > held.planned:
            self._tell_tree(held)
        elif held.ready < held.planned:
            held.tip = tree.shorten_sequence(held.sequence, held.tip, held.tokens, held.ready)
            held.planned = held.ready
        held.tokens = held.tokens[: held.ready]
        held.is_idle, held.is_running, held.used_at = True, False, now
        held.cuts.clear()
        self.cells.set_idle(held.sequence, True)
        self._drop_doubles(now, held)

    def _drop_doubles(self, now: int, held: Held) -> None:
        """Of idle sequences that are prefixes of one another, keep the longest (where any prefix can be cut)."""
        anywhere = self.kind is not ReuseKind.STATES
        for sequence in list(held.tip.sequences - {held.sequence}):
            other = self.held[sequence]
            as_good = other.ready >= held.ready and other.floor <= held.floor
            if as_good if anywhere else other.is_idle and other.ready == held.ready:
                other.used_at = now
                self.discard(held)
                return
        if not anywhere:
            return
        node: Node | None = held.tip
        covered: set[int] = set()
        while node is not None and node.parent is not None:
            ending = (self.held[each] for each in node.sequences if self.held[each].tip is node)
            covered |= {other.sequence for other in ending if other.is_idle and other.floor >= held.floor}
            node = node.parent
        for sequence in covered - {held.sequence}:
            self.discard(self.held[sequence])

    def clear(self) -> None:
        """Drop all that is held, when nothing runs; every cell is zero then."""
        for held in list(self.held.values()):
            self.discard(held)
        self.host.clear()
        self.kv.clear()
        self._is_clear, self._straight = True, None

    def discard(self, held: Held) -> None:
        """Drop a sequence, running or idle, and free its cells and its id."""
        held.is_running = False
        self.kv.remove(held.sequence, 0, -1)
        if self.pins:
            self.kv.remove(held.sequence + self.kv.sequences_max, 0, -1)
        self.cells.drop(held.sequence)
        self._forest.tree(held.isolation).remove_sequence(held.sequence, held.tip)
        self._forest.forget_if_empty(held.isolation)
        del self.held[held.sequence]
        self._free.append(held.sequence)

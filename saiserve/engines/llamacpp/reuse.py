"""Chooses what to reuse for a prompt: from which sequence, from which saved states, or whom to wait for. Pure.

What a holder is good for depends on the model (docs/engine.md, "What can be reused"): see `ReuseKind`.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice

from saiserve.engines.llamacpp.host_store import Blob
from saiserve.engines.llamacpp.prefix_tree import Node

HOST_GAIN_MIN = 16
"""Tokens that a host state must save beyond the KV cache to be worth a move."""
CARRIERS_TRIED = 16
"""Host states looked at per checkpoint when choosing the shortest that covers it."""


class ReuseKind(enum.Enum):
    """What can be made of a sequence or a saved state."""

    CHAINED = "chained"
    """FULL: any prefix of a sequence; host memory holds a chain of segments, cut anywhere."""
    PINNED = "pinned"
    """WINDOW with pins: any prefix of a sequence; a host state goes on at its end or at a checkpoint it covers."""
    STATES = "states"
    """RECURRENT, WINDOW without pins: sequence and host state go on at their end or at a checkpoint they cover."""


@dataclass(eq=False, slots=True)
class Held:
    """A sequence in the KV cache: a running job's, or idle and kept for reuse."""

    sequence: int
    tokens: array[int]
    """The ids it is about; a running job appends to it."""
    isolation: str
    tip: Node
    """Where it ends in the prefix tree."""
    planned: int
    """Ids known to the tree, ≥ what will surely be computed: the depth of `tip`."""
    used_at: int
    ready: int = 0
    """Ids whose cells are in the cache."""
    pinned: int = 0
    """WINDOW: ids whose cells the twin holds too."""
    floor: int = 0
    """WINDOW: earliest cut that its windowed cells allow; 0 unless it came from host memory."""
    is_idle: bool = False
    is_running: bool = True
    """False once it is idle or gone."""
    cuts: set[int] = field(default_factory=set)
    """STATES: places where a checkpoint is to be taken on the way."""
    marks: tuple[int, ...] = ()
    """PINNED: places where one is to be taken when it moves to host memory."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Ids [start, end) to be taken from a blob (which may hold more)."""

    blob: Blob
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Choice:
    """How to begin a prompt. With nothing to reuse, `cut` is 0."""

    cut: int = 0
    """Ids that need not be computed."""
    source: Held | None = None
    """The sequence to copy [0, source_cut) from."""
    source_cut: int = 0
    segments: tuple[Segment, ...] = ()
    """Host states to put in after it, in order."""
    checkpoint: Blob | None = None
    """The state to set at `cut` after all that."""
    leader: Held | None = None
    """A running sequence that will have more of this prompt than `cut` soon."""
    leader_depth: int = 0
    """How much of the prompt it will have."""

    @property
    def is_adoption(self) -> bool:
        """Whether the source is idle and used whole, so that it can be taken over instead of copied."""
        source = self.source
        return source is not None and source.is_idle and self.source_cut == source.ready

    @property
    def cells(self) -> int:
        """Free cells needed at most while this is carried out, the copied ones aside."""
        done = peak = 0
        for segment in self.segments:
            peak = max(peak, done + segment.blob.end - segment.blob.start)
            done += segment.end - segment.start
        return peak


def choose(
    path: list[tuple[Node, int]], kind: ReuseKind, held: Mapping[int, Held], blobs: Mapping[int, Blob]
) -> Choice:
    """The best choice for a prompt whose way down the tree is `path` (see `PrefixTree.match`)."""
    checkpoints = [
        (node.end, blobs[node.checkpoint]) for node, depth in path if node.checkpoint is not None and depth == node.end
    ]
    best, leader, leader_depth = _from_sequences(path, kind, held, checkpoints)
    is_chain = kind is ReuseKind.CHAINED
    host = _from_segments(path, best, blobs) if is_chain else _from_states(path, checkpoints, blobs)
    if host is not None and host.cut >= best.cut + HOST_GAIN_MIN:
        best = host
    return Choice(best.cut, best.source, best.source_cut, best.segments, best.checkpoint, leader, leader_depth)


def _from_sequences(
    path: list[tuple[Node, int]], kind: ReuseKind, held: Mapping[int, Held], checkpoints: list[tuple[int, Blob]]
) -> tuple[Choice, Held | None, int]:
    """The best sequence to copy, and the running one that will have most."""
    best = Choice()
    best_rank = (0, False, False)
    leader: Held | None = None
    leader_depth = 0
    seen: set[int] = set()
    for node, depth in reversed(path):
        for sequence in node.sequences - seen:
            source = held[sequence]
            if not source.is_idle and depth > max(source.ready, leader_depth):
                leader, leader_depth = source, depth
            cut, checkpoint = _usable(source, depth, kind, checkpoints)
            choice = Choice(cut, source, cut, (), checkpoint)
            rank = (cut, choice.is_adoption, checkpoint is None)
            if cut and rank > best_rank:
                best, best_rank = choice, rank
        seen |= node.sequences
    return best, leader, leader_depth


def _usable(source: Held, depth: int, kind: ReuseKind, checkpoints: list[tuple[int, Blob]]) -> tuple[int, Blob | None]:
    """How many ids of a sequence can be reused, and the checkpoint needed for it."""
    cut = min(depth, source.ready)
    if cut == source.ready or (kind is not ReuseKind.STATES and cut >= source.floor):
        return cut, None
    for place, blob in reversed(checkpoints):
        if place <= cut:
            return place, blob
    return 0, None


def _from_segments(path: list[tuple[Node, int]], base: Choice, blobs: Mapping[int, Blob]) -> Choice | None:
    """Go on from `base` with the chain of host segments that reaches deepest."""
    for node, depth in reversed(path):
        if not node.blobs:
            continue
        segments: list[Segment] = []
        blob: Blob | None = blobs[next(iter(node.blobs))]
        end = depth
        while blob is not None and end > base.cut:
            segments.append(Segment(blob, max(blob.start, base.cut), end))
            end, blob = blob.start, blob.parent
        return Choice(depth, base.source, base.cut, tuple(reversed(segments)))
    return None


def _from_states(
    path: list[tuple[Node, int]], checkpoints: list[tuple[int, Blob]], blobs: Mapping[int, Blob]
) -> Choice | None:
    """The whole host state, or host state with checkpoint, that reaches deepest."""
    saved_at = dict(checkpoints)
    for node, depth in reversed(path):
        if depth < node.end or not node.blobs:
            continue
        if node.blob_tip is not None:
            blob = blobs[node.blob_tip]
            return Choice(blob.end, None, 0, (Segment(blob, 0, blob.end),))
        if node.end in saved_at:
            blob = min((blobs[each] for each in islice(node.blobs, CARRIERS_TRIED)), key=lambda each: each.end)
            return Choice(node.end, None, 0, (Segment(blob, 0, node.end),), saved_at[node.end])
    return None

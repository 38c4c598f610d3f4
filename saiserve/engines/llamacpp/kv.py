"""The few operations on a KV cache that scheduling needs, so that it can be proven against a fake.

`binding.py` gives the real thing, tests a fake that knows which tokens are in which cell and fails loudly on misuse.
Facts behind each rule are llama.cpp's: see docs/engine.md.
"""

from __future__ import annotations

import enum
from typing import NamedTuple, Protocol

from saiserve.engines.llamacpp.saved_state import SavedState


class Family(enum.Enum):
    """How a model's memory may be reused; found by probing at load, not by name."""

    FULL = "full"
    """Every position attends to all before it: any prefix can be shared and cut."""
    WINDOW = "window"
    """Sliding-window layers: reuse needs the window's cells (gate), idle holders need a twin id (pin)."""
    RECURRENT = "recurrent"
    """Recurrent or hybrid state: only whole states continue; branches need a checkpoint taken at that point."""


class DecodeOutcome(enum.Enum):
    """What a batch came to; nothing changed unless DONE."""

    DONE = "done"
    NO_ROOM = "no_room"
    REJECTED = "rejected"


SEQUENCE_IDS_MAX = 256
"""llama.cpp's compiled limit on sequence ids, twins included."""
IMAGE_IDS_FIRST = 1 << 30
"""Ids from here on stand for rows of images: beyond any vocabulary, and never drawn."""


class Row(NamedTuple):
    """One token to compute: at `position` of sequence `sequence`, with its logits if `wants_logits`.

    A tuple, because a batch may have thousands and a frozen dataclass costs five times as much to make.
    """

    sequence: int
    position: int
    token: int
    wants_logits: bool


class KvCache(Protocol):
    """A unified KV cache of many sequences. Sequence ids are 0 ≤ id < `sequences_max`; twins lie above.

    Positions are consecutive from 0 in each sequence. Ranges are [start, end), end −1 = to the end.
    """

    @property
    def family(self) -> Family: ...

    @property
    def cells_total(self) -> int: ...

    @property
    def sequences_max(self) -> int: ...

    @property
    def window(self) -> int:
        """Sliding window in tokens, 0 for none."""
        ...

    def rewind(self) -> None:
        """Nothing is held: let the next token take the first cell."""
        ...

    def clear(self) -> None:
        """Drop every sequence and let every cell be zero, whatever was in it."""
        ...

    def copy(self, source: int, destination: int, start: int, end: int) -> None:
        """Let `destination` share the cells of `source` in [start, end)."""
        ...

    def remove(self, sequence: int, start: int, end: int) -> bool:
        """Drop [start, end) from a sequence. False: refused by the memory (recurrent), nothing changed."""
        ...

    def span(self, sequence: int) -> tuple[int, int]:
        """Smallest and largest position present, (−1, −1) when empty; for recurrent memories min may exceed max."""
        ...

    def save(self, sequence: int, *, partial: bool) -> SavedState:
        """The sequence's state as bytes; `partial` leaves out what a full-attention cache holds (checkpoints)."""
        ...

    def restore(self, sequence: int, blob: SavedState, *, partial: bool) -> bool:
        """Put a saved state into a sequence. False: it did not fit and the sequence is empty now."""
        ...

    def decode(self, rows: tuple[Row, ...]) -> DecodeOutcome:
        """Compute a batch, at most one physical batch (`batch_max`) long."""
        ...

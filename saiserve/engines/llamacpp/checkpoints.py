"""Where a job should leave checkpoints on its way (models whose state cannot be cut). Pure."""

from __future__ import annotations

from collections.abc import Sequence

CHECKPOINTS_MAX = 8
"""Checkpoints one job takes at message boundaries."""
CHECKPOINT_STEP_MIN = 64
"""Tokens between two of them at least."""


def checkpoint_places(boundaries: Sequence[int], ready: int, end: int) -> set[int]:
    """Which message boundaries in [ready, end) deserve a checkpoint: the first, and the last ones not too close."""
    open_to = [place for place in boundaries if max(ready, 1) <= place < end]
    if not open_to:
        return set()
    places = {open_to[-1]}
    previous = open_to[-1]
    for place in reversed(open_to[:-1]):
        if len(places) >= CHECKPOINTS_MAX - 1:
            break
        if previous - place >= CHECKPOINT_STEP_MIN:
            places.add(place)
            previous = place
    places.add(open_to[0])
    return places

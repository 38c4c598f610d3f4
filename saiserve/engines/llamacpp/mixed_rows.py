"""A batch that has image rows beside text rows, cut into batches llama.cpp can compute: each all text or all image. Pure.

A sequence's rows stay in order. What is to have logits comes last, because each computation forgets the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from saiserve.engines.llamacpp.kv import Row


def cut_rows(rows: Sequence[Row], is_image: Callable[[Row], bool]) -> list[tuple[bool, list[int]]]:
    """Runs of row indices, each with whether it is of an image; the last is text and holds all rows with logits.

    The last run may be empty when no text row comes after the images: then there are no logits.

    Raises:
        ValueError: a row is to have logits and an image of its sequence comes after it, or it is one of an image.
    """
    runs: list[tuple[bool, list[int]]] = []
    last: list[int] = []
    by_sequence: dict[int, list[int]] = {}
    for index, row in enumerate(rows):
        by_sequence.setdefault(row.sequence, []).append(index)
    for indices in by_sequence.values():
        own = [(kind, list(run)) for kind, run in groupby(indices, key=lambda index: is_image(rows[index]))]
        if own and not own[-1][0]:
            last += own.pop()[1]
        runs += own
    if any(row.wants_logits for _, run in runs for row in map(rows.__getitem__, run)):
        raise ValueError("a row that wants logits is not behind the last image of its sequence")
    return [*runs, (False, sorted(last))]

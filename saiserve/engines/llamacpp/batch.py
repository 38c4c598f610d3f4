"""Composes one batch: a row for each stream that decodes, and pieces of prompts for what time and cells allow. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from saiserve.engines.llamacpp.job import Part, Sample, Step
from saiserve.engines.llamacpp.kv import Row
from saiserve.engines.llamacpp.stream import Stream


def allot_prefill(streams: Sequence[Stream], rows_max: int) -> list[tuple[Stream, int]]:
    """Share out up to `rows_max` prefill rows: all the first can use, then the next. Stops at checkpoint places."""
    allotted: list[tuple[Stream, int]] = []
    left = rows_max
    for stream in streams:
        if left <= 0:
            break
        held = stream.held
        assert held is not None
        count = min(stream.prefill_left, left, stream.chunk_max or left)
        if held.cuts:
            count = min([count, *(cut - held.ready for cut in held.cuts if cut > held.ready)])
        allotted.append((stream, count))
        left -= count
    return allotted


def compose(decoding: Sequence[Stream], prefilling: Sequence[tuple[Stream, int]]) -> Step:
    """The batch of these streams, and where its logits are to be drawn from."""
    rows: list[Row] = []
    samples: list[Sample] = []
    parts: list[Part] = []
    for stream, count, is_prefill in [
        *((stream, 1, False) for stream in decoding),
        *((stream, count, True) for stream, count in prefilling),
    ]:
        held = stream.held
        assert held is not None
        begin, first, last = held.ready, len(rows), held.ready + count - 1
        draws = last + 1 == len(stream.tokens)
        sequence = held.sequence
        rows += [
            Row(sequence, begin + offset, token, draws and begin + offset == last)
            for offset, token in enumerate(stream.tokens[begin : last + 1])
        ]
        if draws:
            samples.append(Sample(len(rows) - 1, stream.job.id, last + 1))
        parts.append(Part(stream.job.id, first, len(rows), is_prefill))
    return Step(tuple(rows), tuple(samples), tuple(parts))

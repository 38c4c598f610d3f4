"""Composes one batch: a row for each stream that decodes, and pieces of prompts for what time and cells allow. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

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
    for stream in decoding:
        held = stream.held
        assert held is not None
        row, position, job_id = len(rows), held.ready, stream.job.id
        rows.append(Row(held.sequence, position, stream.tokens[position], True))
        samples.append(Sample(row, job_id, position + 1))
        parts.append(Part(job_id, row, row + 1, False))
    for stream, count in prefilling:
        held = stream.held
        assert held is not None
        first, begin, end = len(rows), held.ready, held.ready + count
        rows += map(Row, repeat(held.sequence), range(begin, end), stream.tokens[begin:end], repeat(False))
        if end == len(stream.tokens):
            rows[-1] = rows[-1]._replace(wants_logits=True)
            samples.append(Sample(len(rows) - 1, stream.job.id, end))
        parts.append(Part(stream.job.id, first, len(rows), True))
    first_of_all = decoding[0] if decoding else prefilling[0][0]
    return Step(tuple(rows), tuple(samples), tuple(parts), first_of_all.job.adapter)

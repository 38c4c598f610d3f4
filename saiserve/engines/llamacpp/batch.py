"""Composes one batch: a row for each stream that decodes, and pieces of prompts for what time and cells allow. Pure.

Prompts wait for each other in the order of when each would be done had it been alone since its turn: short ones go first,
no long one starves. Alone they fill whole batches; beside running streams as much as a time budget allows (decision 0045),
in the streams' steps or in steps of their own (decision 0157).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat

from saiserve.engines.llamacpp.job import Part, Sample, Step
from saiserve.engines.llamacpp.kv import Row
from saiserve.engines.llamacpp.rates import Rates
from saiserve.engines.llamacpp.scheduler_config import SchedulerConfig
from saiserve.engines.llamacpp.stream import Stream
from saiserve.engines.waits import NS

CHUNK_MIN = 16
"""Prefill rows a step has at least, however slow the machine."""
CHUNK_UNKNOWN = 64
"""Prefill rows beside running streams before any rate is known."""
CROWD_STEP, CROWD_MAX = 1.0, 4.0
"""The time budget grows by this share with each further prompt, up to so many times: more people wait for a first token."""
BLOCK_ROWS = 64
"""From so many rows on flash attention takes rows and cells in blocks and skips those that no row may see."""


class Pace:
    """How many prompt rows a step may have, and whose."""

    def __init__(self, config: SchedulerConfig, rates: Rates) -> None:
        self._config = config
        self._rates = rates

    def order(self, prefilling: Iterable[Stream]) -> list[Stream]:
        """Prompts in the order in which they get rows."""
        return sorted(prefilling, key=self._place)

    def _place(self, stream: Stream) -> float:
        rate = self._rates.prefill
        return stream.prefill_turn + (stream.prefill_left * NS / rate if rate else 0.0)

    def rows(self, decoding: int, prefilling: int) -> int:
        """Prompt rows for a step beside so many running streams, when so many prompts want some."""
        rows_max = self._config.batch_max - decoding
        if decoding == 0:
            return rows_max
        crowd = min(1 + CROWD_STEP * max(prefilling - 1, 0), CROWD_MAX)
        by_time = self._rates.prefill_tokens_in(self._config.prefill_budget_s * crowd)
        if by_time == 0 and self._rates.prefill == 0.0:
            by_time = CHUNK_UNKNOWN
        if self._config.apart and BLOCK_ROWS // 2 <= by_time < BLOCK_ROWS:
            by_time = BLOCK_ROWS
        return min(rows_max, max(by_time, CHUNK_MIN))


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


def compose(decoding: Sequence[Stream], prefilling: Sequence[tuple[Stream, int]], draft: Sequence[int] = ()) -> Step:
    """The batch of these streams, and where its logits are to be drawn from; a `draft` follows the first one's token."""
    rows: list[Row] = []
    samples: list[Sample] = []
    parts: list[Part] = []
    for stream in decoding:
        held = stream.held
        assert held is not None
        row, position, job_id = len(rows), held.ready, stream.job.id
        rows.append(Row(held.sequence, position, stream.tokens[position], True))
        samples.append(Sample(row, job_id, position + 1))
        for token in draft if stream is decoding[0] else ():
            samples.append(Sample(len(rows), job_id, held.ready + 1 + len(rows) - row))
            rows.append(Row(held.sequence, held.ready + len(rows) - row, token, True))
        parts.append(Part(job_id, row, len(rows), False))
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

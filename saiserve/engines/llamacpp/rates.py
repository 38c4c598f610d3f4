"""Learns how fast this model computes here, from the time each step took."""

from __future__ import annotations

from bisect import bisect_left

from saiserve.engines.waits import NS

WEIGHT = 0.2
"""Share of the newest measurement in a running estimate."""
TAIL_ROWS = 32
"""Fewer prompt rows in a step of their own are the end of a prompt: what they cost is mostly the step."""
STREAM_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Decode time is learned per class of stream count; a step belongs to the first that is not smaller."""


def _blend(old: float, new: float) -> float:
    return new if old == 0.0 else old + WEIGHT * (new - old)


class Rates:
    """Running estimates of prefill and decode speed."""

    def __init__(self, prefill_rate: float, decode_rate: float) -> None:
        self.prefill = prefill_rate
        """Prompt tokens per second in steps of whole batches; 0: unknown."""
        self.prefill_beside = 0.0
        """The same in the short pieces computed while streams run."""
        self._decode_s: dict[int, float] = {}
        if decode_rate > 0:
            self._decode_s[1] = 1 / decode_rate

    @property
    def decode_alone(self) -> float:
        """Tokens per second of one stream alone, 0: unknown."""
        return 1 / self._decode_s[1] if 1 in self._decode_s else 0.0

    def decode_step_s(self, streams: int) -> float:
        """Seconds that one token for each of `streams` takes; 0: unknown."""
        if streams == 0 or not self._decode_s:
            return 0.0
        nearest = min(self._decode_s, key=lambda known: abs(known - _class_of(streams)))
        return self._decode_s[nearest]

    def prefill_tokens_in(self, budget_s: float) -> int:
        """How many prompt tokens are read in `budget_s` while streams run; 0: unknown."""
        return int(budget_s * (self.prefill_beside or self.prefill * 0.7))

    def learn(
        self, decode_rows: int, prefill_rows: int, batch_max: int, elapsed_ns: int, *, is_beside: bool = False
    ) -> None:
        """Take in one step. Short prefill tails say little about the rate and are left out.

        `is_beside`: streams run that had no row in this step.
        """
        elapsed_s = elapsed_ns / NS
        if elapsed_s <= 0:
            return
        if prefill_rows == 0:
            bucket = _class_of(decode_rows)
            self._decode_s[bucket] = _blend(self._decode_s.get(bucket, 0.0), elapsed_s)
        elif decode_rows:
            for_prefill_s = max(elapsed_s - self.decode_step_s(decode_rows), elapsed_s * 0.2)
            self.prefill_beside = _blend(self.prefill_beside, prefill_rows / for_prefill_s)
        elif is_beside:
            if prefill_rows >= TAIL_ROWS or self.prefill_beside == 0.0:
                self.prefill_beside = _blend(self.prefill_beside, prefill_rows / elapsed_s)
        elif prefill_rows >= min(64, batch_max) or self.prefill == 0.0:
            self.prefill = _blend(self.prefill, prefill_rows / elapsed_s)


def _class_of(streams: int) -> int:
    return STREAM_COUNTS[min(bisect_left(STREAM_COUNTS, streams), len(STREAM_COUNTS) - 1)]

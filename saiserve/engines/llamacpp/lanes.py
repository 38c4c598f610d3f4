"""How many streams one engine serves at once: as many as leave each a fair share of the speed it would have alone."""

from __future__ import annotations

from collections.abc import Mapping

SPEED_FLOOR = 0.5
"""A stream among many should keep at least this share of the speed of one alone, unless the operator says another."""
CELLS_PER_LANE_MIN = 512
"""A lane with less room than this in the cache is not worth having."""
MEASURE_AT = (1, 2, 4, 8, 16, 32)
"""Stream counts worth measuring at load; stop at the first below the floor."""


def lanes_for(
    stream_rates: Mapping[int, float], *, cells_total: int, lanes_max: int, speed_floor: float = SPEED_FLOOR
) -> int:
    """Lanes from measured speeds.

    Args:
        stream_rates: tokens per second of each stream when so many run at once; must hold 1. Between two measured
            counts the time of a step is taken as linear.
        cells_total: cells of the KV cache.
        lanes_max: sequence ids for running jobs, ≥ 1.
        speed_floor: share of the lone speed each stream should keep, in (0, 1].
    Returns:
        lanes in [1, lanes_max].
    Raises:
        ValueError: the lone speed is missing or not positive.
    """
    alone = stream_rates.get(1, 0.0)
    if alone <= 0:
        raise ValueError("stream_rates must hold the speed of one stream alone")
    slowest_step_s = 1 / (alone * speed_floor)
    most = max(1, min(lanes_max, cells_total // CELLS_PER_LANE_MIN))
    fits = 1
    step_s = 1 / alone
    for count in sorted(count for count in stream_rates if count > 1):
        next_step_s = 1 / stream_rates[count] if stream_rates[count] > 0 else float("inf")
        if next_step_s > slowest_step_s:
            share = (slowest_step_s - step_s) / (next_step_s - step_s)
            return min(most, fits + int(share * (count - fits)))
        fits, step_s = count, next_step_s
    return min(most, fits)

"""Percentiles by nearest rank, the same for every benchmark."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` (0 to 1) of them do not exceed; in their unit, and they are not empty."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def p99(values: Sequence[float]) -> float:
    """The 99th percentile."""
    return percentile(values, 0.99)

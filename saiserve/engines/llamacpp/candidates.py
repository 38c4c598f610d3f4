"""What the stages of sampling choose from: arrays of logits in, ids and values out, best first.

Almost every token of a vocabulary is far below the best one, so a threshold first leaves a few hundred candidates;
wherever the rest could change the outcome, the threshold widens or the rest is counted in full. A top-k needs no guess:
see `best`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

REACHES = (10.0, 20.0, 40.0, math.inf)
"""Distances below the best logit tried in turn for the threshold; e^-10 is 1/22,000 of the best one's share."""
NEAR_REACHES = (5.0, 2.5)
"""Smaller distances, tried to sort less for top-p."""
COLUMNS, COLUMNS_EACH = 512, 4
"""Columns the vocabulary is laid out in to find its best, and how many per candidate wanted at least. With fewer, more
is left to sort; with more, finding the best columns costs more."""
LEAST = float(np.finfo(np.float32).min)
"""Not below any finite logit."""
FEW_MAX = 64
"""Candidates up to which plain Python is quicker: each call into numpy costs more than it computes."""
PACKED_SORT_MIN = 1_000
MIROSTAT_ESTIMATE = 100
"""Candidates from which mirostat 1 estimates the distribution's shape."""
SHARE_MIN = 1e-300
"""Smaller shares count as this one, whose logarithm is finite."""

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


def above(values: Floats, floor: float) -> Ids:
    """Indices of values above a floor, ascending; −inf is never above."""
    return (values > np.float32(floor)).nonzero()[0]


def within(logits: Floats, peak: float, reach: float) -> tuple[Ids, Floats]:
    """Candidates no further than `reach` below the best, best first; equals by id. The best at least."""
    ids = above(logits, peak - reach)
    if len(ids) == 0:  # a reach too small to tell from so great a peak
        ids = (logits >= np.float32(peak)).nonzero()[0]
    ids = _by_rank(ids, logits[ids])
    return ids, logits[ids]


def _by_rank(ids: Ids, values: Floats) -> Ids:
    """Ids by falling value, equals by id. Long lists as packed integers, whose sort numpy vectorises."""
    if len(ids) < PACKED_SORT_MIN:
        return ids[(-values).argsort(kind="stable")]
    bits = values.view(np.int32)
    falling = ~(bits ^ ((bits >> 31) & 0x7FFFFFFF))
    packed = (falling.astype(np.int64) << 32) | ids
    packed.sort()
    return packed & 0xFFFFFFFF


def column_tops(logits: Floats, count: int) -> Floats:
    """The greatest of each column when the logits are laid out in rows, to find the `count` best; NaN where there is one."""
    size = len(logits)
    width = min(size, max(COLUMNS, COLUMNS_EACH * count))
    whole = size - size % width
    tops: Floats = np.maximum.reduce(logits[:whole].reshape(-1, width))
    if whole < size:
        np.maximum(tops[: size - whole], logits[whole:], out=tops[: size - whole])
    return tops


def best(logits: Floats, tops: Floats, count: int) -> tuple[Ids, Floats]:
    """The `count` best, best first, equals by id; fewer when fewer are finite.

    The `count` best columns hold so many logits not below the last one's top: nothing below that is among the best.

    Args:
        tops: `column_tops`, which have shown whether there are any.
    """
    width, floor = len(tops), LEAST
    if count < width:
        ascending = tops.copy()
        ascending.partition(width - count)
        floor = max(LEAST, float(ascending[width - count]))
    ids = (logits >= np.float32(floor)).nonzero()[0]
    ids = _by_rank(ids, logits[ids])[:count]
    return ids, logits[ids]


def nucleus(logits: Floats, peak: float, mass: float) -> tuple[Ids, Floats]:
    """The fewest best tokens that hold `mass` of the whole vocabulary's probability, best first.

    Only tokens near enough to matter are sorted: the threshold moves out or in until they just hold the mass.
    """
    weights = np.exp(logits - peak)
    goal = mass * float(weights.sum())
    for reach in REACHES:
        ids = above(logits, peak - reach)
        near = weights[ids]
        if float(near.sum()) >= goal:
            break
    for reach in NEAR_REACHES:
        nearer = near > math.exp(-reach)
        if float(near[nearer].sum()) < goal:
            break
        ids, near = ids[nearer], near[nearer]
    ids = _by_rank(ids, logits[ids])
    count = int(weights[ids].astype(np.float64).cumsum().searchsorted(goal)) + 1
    return ids[:count], logits[ids[:count]]


def draw_from_all(logits: Floats, peak: float, temperature: float, chance: float) -> int:
    """From the whole vocabulary by id: the near candidates first, then all others.

    `temperature` must be one that single precision can divide by.
    """
    weights = np.exp((logits - peak) / np.float32(temperature))
    ids = above(weights, math.exp(-REACHES[0]))
    near = weights[ids].astype(np.float64).cumsum()
    goal = chance * max(float(near[-1]), float(weights.sum()))
    if goal < near[-1]:
        return int(ids[int(near.searchsorted(goal, side="right"))])
    weights[ids] = 0.0
    far = weights.astype(np.float64).cumsum()
    return int(min(far.searchsorted(goal - near[-1], side="right"), len(far) - 1))


def softmax(values: Floats) -> NDArray[np.float64]:
    weights = np.exp((values - values[0]).astype(np.float64))
    shares: NDArray[np.float64] = weights / weights.sum()
    return shares


def pick(weights: NDArray[np.float64], chance: float) -> int:
    cumulative = weights.cumsum()
    return min(int(cumulative.searchsorted(chance * cumulative[-1], side="right")), len(weights) - 1)


def weights_of_few(values: list[float], top_p: float, min_p: float, temperature: float) -> list[float]:
    """Weights to draw by, of those that top-p and then min-p leave of a short list that falls from its best one."""
    peak = values[0]
    if top_p < 1:
        shares = [math.exp(value - peak) for value in values]
        goal, held, count = top_p * sum(shares), 0.0, 0
        for share in shares:
            held += share
            count += 1
            if held >= goal:
                break
        values = values[:count]
    if min_p > 0:
        floor = peak + math.log(min_p)
        values = [value for value in values if value >= floor]
    return [math.exp((value - peak) / temperature) for value in values]


def pick_of_few(weights: list[float], chance: float) -> int:
    """The place that `chance` in [0, 1) falls on."""
    left = chance * sum(weights)
    for at, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return at
    return len(weights) - 1


def count_at_least(descending: Floats, floor: float) -> int:
    return max(1, int((descending >= floor).sum()))


def typical(values: Floats, mass: float) -> Ids:
    """Indices kept by locally typical sampling (Meister et al. 2023), ascending."""
    shares = softmax(values)
    surprise = -np.log(np.maximum(shares, SHARE_MIN))
    distance = np.abs(surprise - float((shares * surprise).sum()))
    order = np.argsort(distance, kind="stable")
    count = int(shares[order].cumsum().searchsorted(mass)) + 1
    return np.sort(order[:count])


def xtc_dropped(values: Floats, threshold: float) -> int:
    """How many of the best to leave out: all above the threshold but the last one (p-e-w's XTC)."""
    return max(0, int((softmax(values) >= threshold).sum()) - 1)


def mirostat_count(shares: NDArray[np.float64], mu: float, vocabulary_size: int) -> int:
    """How many candidates mirostat 1 keeps, from a Zipf exponent fitted to the best ones."""
    fitted = np.maximum(shares[:MIROSTAT_ESTIMATE], SHARE_MIN)
    if len(fitted) < 2:
        return 1
    ranks = np.log(np.arange(2, len(fitted) + 1) / np.arange(1, len(fitted)))
    falls = np.log(fitted[:-1] / fitted[1:])
    exponent = float((ranks * falls).sum() / (ranks * ranks).sum())
    excess = exponent - 1.0
    if abs(excess) < 1e-6 or exponent <= 0:
        return len(shares)
    # In logarithms: the count itself is beyond any number where the shares are nearly alike or `mu` is large.
    bits = (math.log2(excess / (1.0 - float(vocabulary_size) ** -excess)) + mu) / exponent
    return len(shares) if bits >= math.log2(len(shares)) else max(1, int(2.0**bits))

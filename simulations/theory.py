"""The published formulas that simulations are held against, and the ones derived for this library.

SWIM is Das, Gupta and Motivala, DSN 2002; Lifeguard is Dadgar, Phillips and Currey, 2017.
"""

from __future__ import annotations

import math


def first_detection_random(n: int) -> float:
    """Expected periods from a crash to the first probe of it, targets drawn at random (SWIM §3.1).

    Each of the n − 1 others picks it with 1/(n − 1), so a period passes it over with (1 − 1/(n−1))^(n−1).
    """
    return 1 / (1 - (1 - 1 / (n - 1)) ** (n - 1))


def wait_round_robin(n: int) -> list[float]:
    """P(W > k) for k = 0, 1, …: periods until one member next probes a given other, shuffled round robin.

    With m = n − 1 targets, two visits of one target in successive passes at places a and b (uniform on 1…m,
    independent) are G = m − a + b periods apart, which is triangular on 1…2m − 1 with mean m. Seen from a random
    moment, P(W = j) = P(G ≥ j) / m (renewal theory), so P(W > k) = Σ_{j>k} P(G ≥ j) / m.
    """
    m = n - 1
    gap = dict.fromkeys(range(1, 2 * m), 0.0)
    for g in gap:
        gap[g] = (m - abs(g - m)) / (m * m)
    at_least = [0.0] * (2 * m + 1)
    for g in range(2 * m - 1, 0, -1):
        at_least[g] = at_least[g + 1] + gap[g]
    tail = [0.0] * (2 * m + 1)
    for k in range(2 * m - 1, -1, -1):
        tail[k] = tail[k + 1] + at_least[k + 1] / m
    return tail[: 2 * m]


def first_detection_round_robin(n: int) -> float:
    """Expected periods from a crash to the first probe of it, shuffled round robin (SWIM §4.3).

    The n − 1 others go through their lists independently: E[min W] = Σ_k P(W > k)^(n−1).
    """
    return sum(tail ** (n - 1) for tail in wait_round_robin(n))


def probe_failure(delivery: float, k: int) -> float:
    """Chance that a probe of a live member fails: the direct ping and ack, and k times four more messages.

    SWIM §3.1 with q_f = 1: (1 − q²)(1 − q⁴)^k for a delivery probability of q.
    """
    return (1 - delivery**2) * (1 - delivery**4) ** k


def false_detections_per_period(delivery: float, k: int) -> float:
    """SWIM §3.1's PM(T): probe failure times e/(e − 1), the expected periods to a first detection."""
    return probe_failure(delivery, k) * math.e / (math.e - 1)


def infected(n: int, periods: float) -> float:
    """Members that know an update after so many periods, piggybacked on pings and acks (SWIM §4.1)."""
    return n / (1 + (n - 1) * math.exp(-(2 - 1 / n) * periods))


def infected_at(n: int, share: float) -> float:
    """Periods after which a share (between 0 and 1) of `n` members knows, by the curve of `infected`."""
    return (math.log(n - 1) + math.log(share / (1 - share))) / (2 - 1 / n)


EULER = 0.5772156649015329


def infection_delay(n: int) -> float:
    """Mean periods by which a spread that begins with one member is behind the logistic curve: γ/(2 − 1/n).

    The curve is that of expectations. While few know, their number is a pure birth process of rate β = 2 − 1/n: it
    grows as W·e^{βt} with W exponential of mean 1 (Yule), so the time of each level is later by −ln(W)/β, whose mean
    is γ/β with Euler's constant.
    """
    return EULER / (2 - 1 / n)


SIGMAS = 3.0
"""Standard errors within which two figures are said to differ by chance."""


def mean_and_error(values: list[float]) -> tuple[float, float]:
    """Mean and its standard error."""
    n = len(values)
    mean = sum(values) / n
    if n < 2:
        return mean, math.inf
    variance = sum((value - mean) ** 2 for value in values) / (n - 1)
    return mean, math.sqrt(variance / n)


def trend(x: list[float], y: list[float], errors: list[float]) -> tuple[float, float]:
    """How much a straight line through (x, y ± error) rises from the least x to the greatest, and its standard error.

    Weighted least squares with known errors, all above zero; (0, 0) where there are fewer than two different x.
    """
    weights = [1 / error**2 for error in errors]
    centre = sum(w * a for w, a in zip(weights, x, strict=True)) / sum(weights)
    spread = sum(w * (a - centre) ** 2 for w, a in zip(weights, x, strict=True))
    span = max(x) - min(x)
    if not span:
        return 0.0, 0.0
    slope = sum(w * (a - centre) * b for w, a, b in zip(weights, x, y, strict=True)) / spread
    return slope * span, span / math.sqrt(spread)


def quantile(values: list[float], q: float) -> float:
    """The q-quantile by nearest rank; infinite for no values."""
    if not values:
        return math.inf
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(q * len(ordered)) - 1))]


def poisson_interval(count: int, z: float = 2.576) -> tuple[float, float]:
    """Confidence interval (99 % by default) for the mean of a Poisson count (Wilson–Hilferty's approximation)."""

    def edge(k: float, sign: float) -> float:
        return k * (1 - 1 / (9 * k) + sign * z / (3 * math.sqrt(k))) ** 3

    return (edge(count, -1) if count else 0.0), edge(count + 1, +1)

"""Cost profile: a ceiling on what one request may cost, and cheap before dear. What runs in the house is free."""

from __future__ import annotations

import math
from collections.abc import Sequence

from saiserve.errors import ErrorKind
from saiserve.limits import ROUTE_RETRY_AFTER_S
from saiserve.routing.candidate import Candidate, Placement, RoutingRequest
from saiserve.routing.chain import Strategy
from saiserve.routing.decision import Refusal
from saiserve.routing.slate import Slate

ANSWER_TOKENS = 1_000
"""Length of an answer assumed for the estimate."""


def cost_profile(
    *, ceiling: float = math.inf, classes: Sequence[float] = (0.0,), answer_tokens: int = ANSWER_TOKENS
) -> Strategy:
    """A strategy that drops what would cost more than `ceiling` and splits the rest by price class.

    Args:
        ceiling: currency units for one request, estimated from its prompt and `answer_tokens`.
        classes: upper bounds of price classes, rising; what costs more than the last is one more class.

    Raises:
        ValueError: a negative ceiling, or classes that do not rise.
    """
    bounds = tuple(float(bound) for bound in classes)
    if not ceiling >= 0 or list(bounds) != sorted(set(bounds)):
        raise ValueError("cost: the ceiling must be 0 or more and the classes must rise")

    def by_cost(slate: Slate, request: RoutingRequest) -> Slate:
        price = {c.id: estimated_cost(c, request, answer_tokens) for c in slate.candidates}
        able = slate.keep(lambda c: price[c.id] <= ceiling, lambda c: f"would cost {price[c.id]:.4f}")
        if not able.ranked:
            message = f"every place that could serve this now would cost more than the ceiling of {ceiling:g}"
            return able.refuse(Refusal(ErrorKind.MODEL_UNAVAILABLE, message, ROUTE_RETRY_AFTER_S))
        return able.split(
            lambda c: sum(price[c.id] > bound for bound in bounds),
            lambda c: f"costs {price[c.id]:.4f}" if price[c.id] else "free",
        )

    by_cost.name = "cost"  # type: ignore[attr-defined]
    return by_cost


def estimated_cost(candidate: Candidate, request: RoutingRequest, answer_tokens: int = ANSWER_TOKENS) -> float:
    """Currency units one request would cost at a candidate; 0 for everything but upstreams."""
    if candidate.placement is not Placement.UPSTREAM:
        return 0.0
    cost = (candidate.price_in * request.prompt_tokens + candidate.price_out * answer_tokens) / 1e6
    return math.inf if math.isnan(cost) else cost

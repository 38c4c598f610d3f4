"""A/B splits: a share of the conversations to each arm, and always the same arm for one conversation."""

from __future__ import annotations

import math
from collections.abc import Mapping

from saiserve.routing.candidate import Candidate, Placement, RoutingRequest
from saiserve.routing.chain import Strategy
from saiserve.routing.slate import Slate


def split_traffic(arms: Mapping[str, float], *, experiment: str = "split") -> Strategy:
    """A strategy that prefers one arm per conversation, drawn by weight. An arm is a model id or an upstream's name.

    The draw is a hash of the conversation, the experiment and the arm's name, so all nodes agree, and a new arm takes
    its share from the others without moving conversations among those. Other arms stay as bands below, for failover. The
    label `arm` records the draw, whoever answers in the end.

    Raises:
        ValueError: no arm, or a weight that is negative, infinite, or zero for all.
    """
    weights = {arm: float(weight) for arm, weight in arms.items()}
    if not weights or any(not 0 <= weight < math.inf for weight in weights.values()) or not sum(weights.values()):
        raise ValueError("arms: give at least one, with weights of 0 or more and not all 0")

    def by_arm(slate: Slate, request: RoutingRequest) -> Slate:
        drawn = max(weights, key=lambda arm: (_score(request, experiment, arm, weights[arm]), arm))
        labelled = slate.label("arm", drawn).label("experiment", experiment)
        return labelled.split(lambda c: not _is_of(c, drawn), lambda c: f"arm {drawn}" if _is_of(c, drawn) else "other")

    by_arm.name = "split"  # type: ignore[attr-defined]
    return by_arm


def _score(request: RoutingRequest, experiment: str, arm: str, weight: float) -> float:
    draw = request.conversation_draw(f"{experiment}:{arm}")
    return weight / -math.log1p(-draw) if draw > 0 else math.inf if weight else 0.0


def _is_of(candidate: Candidate, arm: str) -> bool:
    return candidate.model == arm or (candidate.placement is Placement.UPSTREAM and candidate.node == arm)

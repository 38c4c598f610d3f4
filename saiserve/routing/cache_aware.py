"""Third rule: efficiency. Inside a band, whoever can start the answer soonest, and conversations stay where they are.

Seconds to the first token: wait (queued tokens and lanes) + tokens to compute + the hop. The candidate with the claim
to the conversation (placement.py) is passed over only for a wait longer than what moving would cost, never for a
difference in measured rates: turns of a conversation must meet at one node though each entry node decides alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from saiserve.routing.candidate import Candidate, Placement, RoutingRequest
from saiserve.routing.placement import claimant
from saiserve.routing.slate import Slate

FORWARD_S = 0.003
"""Cost of one hop to a peer."""
RATE_UNKNOWN = 200.0
"""Prefill tokens per second where none of the band has been measured."""
DECODE_UNKNOWN = 20.0
ANSWER_TOKENS = 128
"""Length of an answer for the time until a lane frees itself."""
PATIENCE_S = 0.1
"""Least wait for which the claim holds; swallows what an old report can be wrong by."""
FIRST_TURN_SHARE = 0.25
"""Part of a first prompt's prefill time that is worth waiting at its home, where later turns will find it."""


def cache_aware(slate: Slate, request: RoutingRequest) -> Slate:
    """Order each band by seconds to the first token; see the module."""
    cost: dict[str, float] = {}
    for band in slate.bands:
        cost |= band_costs(band, request)
    return slate.order(lambda c: cost[c.id], lambda c: _reason(c, cost[c.id]))


cache_aware.name = "cache"  # type: ignore[attr-defined]


def band_costs(band: Sequence[Candidate], request: RoutingRequest) -> dict[str, float]:
    """Cost in seconds by candidate id; the claimant's is lowered by its patience and may be negative."""
    rate = _rates(band)
    work = {c.id: _work_s(c, request, rate[c.id]) for c in band}
    costs = {c.id: _wait_s(c, request, rate[c.id]) + work[c.id] for c in band}
    claim = claimant(band, request)
    if claim is not None:
        own_turn = _own_turn_s(claim, request, rate[claim.id])
        patience = PATIENCE_S + _saved_s(request, rate[claim.id])
        wait = costs[claim.id] - work[claim.id]
        costs[claim.id] = max(0.0, wait - own_turn) + min(work.values()) - patience
    return costs


def _rates(band: Sequence[Candidate]) -> dict[str, float]:
    """Prefill rates; one that is unknown counts as the median of the known ones."""
    known = sorted(c.prefill_rate for c in band if 0 < c.prefill_rate < math.inf)
    usual = known[len(known) // 2] if known else RATE_UNKNOWN
    return {c.id: c.prefill_rate if 0 < c.prefill_rate < math.inf else usual for c in band}


def _wait_s(candidate: Candidate, request: RoutingRequest, rate: float) -> float:
    """Seconds until its prompt's turn: queued prefill, and lanes to be freed."""
    lanes = max(1, candidate.lanes)
    missing = max(0.0, candidate.busy + 1 - lanes)
    decode = candidate.decode_rate if candidate.decode_rate > 0 else DECODE_UNKNOWN
    return max(0, candidate.queued_tokens) / rate + missing * ANSWER_TOKENS / (decode * lanes)


def _work_s(candidate: Candidate, request: RoutingRequest, rate: float) -> float:
    """Seconds of computing what it does not hold, and the hop."""
    missing = max(0, request.prompt_tokens - candidate.held_tokens)
    return missing / rate + (0.0 if candidate.placement is Placement.LOCAL else FORWARD_S)


def _own_turn_s(claim: Candidate, request: RoutingRequest, rate: float) -> float:
    """What an old report may show of this conversation's own last turn, which has ended: its prompt and its lane."""
    if not request.history.turns or claim.load_age_s <= 0:
        return 0.0
    lanes = max(1, claim.lanes)
    decode = claim.decode_rate if claim.decode_rate > 0 else DECODE_UNKNOWN
    return request.history.previous_tokens / rate + ANSWER_TOKENS / (decode * lanes)


def _saved_s(request: RoutingRequest, rate: float) -> float:
    """Seconds of prefill that staying saves: the history of a later turn, a part of the prompt of a first one."""
    if request.history.turns:
        return request.history.tokens / rate
    return FIRST_TURN_SHARE * request.prompt_tokens / rate


def _reason(candidate: Candidate, cost: float) -> str:
    home = f", home {candidate.home_rank}" if candidate.home_rank is not None else ""
    return f"{cost:.3f} s, {candidate.held_tokens} tokens held{home}"

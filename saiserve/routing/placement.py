"""Who has a claim to a conversation: the node that served its last turn, or the one every node would send it to."""

from __future__ import annotations

from collections.abc import Sequence

from saiserve.routing.candidate import Candidate, RoutingRequest


def holds_last_turn(candidate: Candidate, request: RoutingRequest) -> bool:
    """Whether this node itself saw the candidate serve the previous turn of the conversation."""
    return 0 < request.history.previous_tokens <= candidate.held_tokens


def claimant(candidates: Sequence[Candidate], request: RoutingRequest) -> Candidate | None:
    """The candidate with the claim: seen to hold the last turn (deepest first), otherwise first among homes.

    Homes are computed alike everywhere, so an entry node that saw nothing of the conversation names the same one.
    """
    seen = [c for c in candidates if holds_last_turn(c, request)]
    if seen:
        return min(seen, key=lambda c: (-c.held_tokens, _rank(c), c.id))
    homes = [c for c in candidates if c.home_rank is not None]
    return min(homes, key=lambda c: (_rank(c), c.id)) if homes else None


def _rank(candidate: Candidate) -> int:
    return 1 << 30 if candidate.home_rank is None else candidate.home_rank

"""Second rule: balance. Who is clearly busier than the least busy goes one band down; the rest is left to the cache.

Load is a share of lanes. Old news makes the apparent minimum a trap (everybody goes there), so nobody takes the
minimum: inside the tolerated range two random choices order the candidates (Mitzenmacher, "How useful is old
information?"), and the third rule may prefer whoever holds the prefix.
"""

from __future__ import annotations

from saiserve.routing.candidate import Candidate, RoutingRequest
from saiserve.routing.placement import claimant
from saiserve.routing.slate import Slate

TOLERANCE = 0.25
"""Share of its lanes by which a candidate may be busier than the least busy of its band, but at least one lane."""


def load_aware(slate: Slate, request: RoutingRequest) -> Slate:
    """Split each band into inside, outside and lagging; order by two random choices.

    Inside: at most min + max(1 lane, 25 %) busy, with a lane free if anybody has one. A lagging or ramping candidate
    goes one band down. One idle candidate among busy ones beats all but a node with a claim to the conversation.
    """
    load = _loads(slate, request)
    down: dict[str, int] = {}
    for band in slate.bands:
        down |= _bands_down(band, load, claimant(band, request))
    place = {c.id: number for band in slate.bands for number, c in enumerate(_two_choices(band, load, request))}
    bands = slate.split(lambda c: down[c.id], lambda c: _reason(c, load[c.id], down[c.id]))
    return bands.order(lambda c: place[c.id])


load_aware.name = "load"  # type: ignore[attr-defined]


def _loads(slate: Slate, request: RoutingRequest) -> dict[str, float]:
    """Busy share of lanes by candidate id.

    The report about the node that served the previous turn may still count that turn, which has ended: clients send
    a turn after they read the last one. One lane is taken off there unless the load is known exactly.
    """
    loads = {c.id: max(0.0, c.busy) / max(1, c.lanes) for c in slate.candidates}
    if request.history.turns:
        for band in slate.bands:
            last = claimant(band, request)
            if last is not None and last.load_age_s > 0:
                loads[last.id] = max(0.0, last.busy - 1) / max(1, last.lanes)
    return loads


def _bands_down(band: tuple[Candidate, ...], load: dict[str, float], claim: Candidate | None) -> dict[str, int]:
    """How many bands each candidate of a band goes down: 0, 1 or 2, and one more below a lone idle one."""
    least = min(load[c.id] for c in band)
    somebody_free = any(load[c.id] < 1 for c in band)
    down = {}
    for c in band:
        inside = load[c.id] <= least + max(1 / max(1, c.lanes), TOLERANCE) + 1e-9
        has_lane = load[c.id] < 1 or not somebody_free
        down[c.id] = (not (inside and has_lane)) + c.lagging
    idle = [c for c in band if load[c.id] == 0 and not c.lagging]
    if len(idle) == 1 and len(band) > 1:
        winners = {idle[0].id} | ({claim.id} if claim is not None else set())
        down = {key: steps + (key not in winners) for key, steps in down.items()}
    return down


def _two_choices(band: tuple[Candidate, ...], load: dict[str, float], request: RoutingRequest) -> list[Candidate]:
    """Order a band by repeatedly taking the less busy of two random candidates; an idle one never loses to a busy one."""
    queue = sorted(band, key=lambda c: (load[c.id] > 0, request.draw(f"load:{c.id}"), c.id))
    order = []
    while queue:
        pair = queue[:2]
        best = min(pair, key=lambda c: (load[c.id], queue.index(c)))
        queue.remove(best)
        order.append(best)
    return order


def _reason(candidate: Candidate, load: float, down: int) -> str:
    place = "inside" if down == 0 else "busier" if not candidate.lagging else f"lagging ({candidate.note or 'slow'})"
    return f"{place}, {candidate.busy:g} of {candidate.lanes} lanes busy ({load:.0%})"

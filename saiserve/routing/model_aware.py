"""First rule: correctness. Only places that can serve a wanted model stay, and where it is resident comes first."""

from __future__ import annotations

from blake3 import blake3

from saiserve.errors import ErrorKind
from saiserve.limits import ROUTE_RETRY_AFTER_S
from saiserve.routing.candidate import Candidate, Residence, RoutingRequest
from saiserve.routing.decision import Refusal, not_held
from saiserve.routing.slate import Slate

_CAN_SERVE = (Residence.READY, Residence.ARRIVING, Residence.LOADABLE)


def model_aware(slate: Slate, request: RoutingRequest) -> Slate:
    """Keep who can serve the model; bands: asked-for models, then a route's fallbacks; resident, on its way, loadable.

    Refuses with MODEL_NOT_FOUND when no member holds the model (a catalog entry alone does not count), and with
    MODEL_UNAVAILABLE and a time when one that holds it is down, suspected, loading or draining.
    """
    place = dict.fromkeys(request.wanted, 0)
    for number, model in enumerate(request.fallbacks, start=1):
        place.setdefault(model, number)
    known = slate.keep(lambda c: c.model in place, lambda c: f"serves {c.model}")
    if not known.ranked:
        return known.refuse(not_held(request))
    able = known.keep(_can_serve, _why_not)
    if not able.ranked:
        return able.refuse(_unavailable(known, request))
    by_model = able.split(lambda c: place[c.model], lambda c: f"fallback model {c.model}" if place[c.model] else "")
    by_residence = by_model.split(lambda c: _CAN_SERVE.index(c.residence), lambda c: str(c.residence))
    return by_residence.split(_loads_where)


model_aware.name = "model"  # type: ignore[attr-defined]


def _can_serve(candidate: Candidate) -> bool:
    return candidate.residence in _CAN_SERVE and candidate.reachable and not candidate.draining


def _loads_where(candidate: Candidate) -> float:
    """One place for all requests and all nodes, by model and node name, or each would have its own copy loaded."""
    if candidate.residence is not Residence.LOADABLE:
        return 0.0
    digest = blake3(f"{candidate.model}\x00{candidate.node}".encode()).digest(length=6)
    return float(int.from_bytes(digest, "big"))


def _why_not(candidate: Candidate) -> str:
    if candidate.draining:
        return "draining"
    if not candidate.reachable:
        return "not directly reachable"
    return candidate.note or str(candidate.residence)


def _unavailable(known: Slate, request: RoutingRequest) -> Refusal:
    reasons = sorted({_why_not(c) for c in known.candidates})
    return Refusal(
        ErrorKind.MODEL_UNAVAILABLE,
        f"the model {request.model!r} is known here but cannot be served now ({', '.join(reasons)}): try again shortly",
        ROUTE_RETRY_AFTER_S,
    )

"""Candidates and requests with sensible defaults."""

from __future__ import annotations

from typing import Any

from saiserve.routing.candidate import Candidate, Placement, Residence, RoutingRequest


def place(node: str, model: str = "small", **changes: Any) -> Candidate:
    values: dict[str, Any] = {
        "id": f"{model}@{node}",
        "node": node,
        "model": model,
        "placement": Placement.PEER,
        "residence": Residence.READY,
        "reachable": True,
        "lanes": 4,
        "prefill_rate": 400.0,
        "decode_rate": 40.0,
    }
    return Candidate(**{**values, **changes})


def upstream(target: str, model: str = "small", **changes: Any) -> Candidate:
    return place(target, model, id=f"{model}@upstream:{target}", placement=Placement.UPSTREAM, **changes)


def wish(model: str = "small", **changes: Any) -> RoutingRequest:
    values: dict[str, Any] = {"id": "request-1", "model": model, "prompt_tokens": 100}
    return RoutingRequest(**{**values, **changes})

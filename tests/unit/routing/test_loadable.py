"""Where a model that is nowhere ready goes: to where it is on its way, else to one place all nodes agree on."""

from __future__ import annotations

from saiserve.errors import ErrorKind
from saiserve.routing.candidate import Candidate, Placement, Residence, RoutingRequest
from saiserve.routing.chain import decide
from saiserve.routing.default import DEFAULT_CHAIN


def place(node: str, residence: Residence, **more: object) -> Candidate:
    return Candidate(f"m@{node}", node, "m", Placement.PEER, residence, reachable=True, **more)  # type: ignore[arg-type]


def chosen(*places: Candidate, id: str = "r1") -> list[str]:  # noqa: A002
    decision = decide(DEFAULT_CHAIN, places, RoutingRequest(id, "m"))
    return [ranked.candidate.node for ranked in decision.attempts]


def test_ready_comes_before_on_its_way_and_that_before_loadable() -> None:
    places = [place("a", Residence.LOADABLE), place("b", Residence.ARRIVING), place("c", Residence.READY, busy=9.0)]
    assert chosen(*places) == ["c", "b", "a"]


def test_every_request_and_every_node_choose_the_same_place_to_load_it() -> None:
    places = [place(name, Residence.LOADABLE) for name in ("a", "b", "c", "d")]
    first = {chosen(*places[shift:], *places[:shift], id=f"r{number}")[0] for number in range(30) for shift in range(4)}
    assert len(first) == 1


def test_a_model_that_restarts_or_failed_is_no_place() -> None:
    places = (place("a", Residence.LOADING), place("b", Residence.UNAVAILABLE, note="failed"))
    refusal = decide(DEFAULT_CHAIN, places, RoutingRequest("r", "m")).refusal
    assert refusal is not None
    assert refusal.kind is ErrorKind.MODEL_UNAVAILABLE
    assert refusal.retry_after_s
    assert "failed" in refusal.message

"""The fleet as one node sees it: who may serve what, and what is remembered of those that went."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from saiserve.engines.messages import Load
from saiserve.errors import ErrorKind
from saiserve.fleet.facts import (
    ModelFact,
    ModelState,
    NodeFacts,
    NodeVitals,
    SlotVitals,
    capability_bits,
    encode_metadata,
    encode_vitals,
)
from saiserve.fleet.load_ledger import SECOND as S
from saiserve.fleet.view import FleetView, UpstreamModel, candidate_id
from saiserve.limits import HOLDER_DOWN_S, HOLDER_LEFT_S, VITALS_STALE_S
from saiserve.routing.candidate import Candidate, Placement, Residence, RoutingRequest
from saiserve.routing.chain import decide
from saiserve.routing.decision import Decision
from saiserve.routing.default import DEFAULT_CHAIN
from saiserve.routing.describe import describe
from swimcluster.address import Address
from swimcluster.member import Member, MemberState, Reachability
from tests.unit.routing.simulated_fleet import chat

FACTS = NodeFacts(version=1, advertise="b.lan:8081", lanes=4, models=(ModelFact("small", b"8bytes..", context=8_192),))
VITALS = NodeVitals(1, 1, 37, 900, 4_000, 2, (SlotVitals(8, 3, 1, 500, 400, 385),))


def member(name: str, facts: NodeFacts = FACTS, vitals: NodeVitals | None = VITALS, **changes: Any) -> Member:
    plain = Member(
        name=name,
        address=Address("10.0.0.9", 8081),
        instance=b"instance",
        epoch=1,
        incarnation=0,
        state=MemberState.ALIVE,
        metadata=encode_metadata(facts),
        vitals=encode_vitals(vitals) if vitals is not None else b"",
        vitals_age_s=0.25 if vitals is not None else None,
        rtt_s=0.0021,
        reachability=Reachability.DIRECT,
    )
    return replace(plain, **changes)


def replace_facts(**changes: Any) -> NodeFacts:
    return NodeFacts(version=2, models=FACTS.models, **changes)


def view_of(*members: Member, now: int = 10 * S) -> FleetView:
    view = FleetView("a")
    view.update_local(now, NodeFacts(version=1, no_engine=True))
    view.update_members(now, members)
    return view


def wish(model: str = "small", **changes: Any) -> RoutingRequest:
    return RoutingRequest(id="r", model=model, prompt_tokens=10, **changes)


def only(view: FleetView, model: str = "small", now: int = 10 * S) -> Candidate:
    (candidate,) = view.candidates(now, wish(model))
    return candidate


def outcome(view: FleetView, model: str = "small", now: int = 10 * S) -> Decision:
    return decide(DEFAULT_CHAIN, view.candidates(now, wish(model)), wish(model))


def test_a_member_is_a_candidate_with_what_it_says_of_itself() -> None:
    c = only(view_of(member("b")))
    assert (c.id, c.node, c.placement, c.residence) == ("small@b", "b", Placement.PEER, Residence.READY)
    assert (c.lanes, c.busy, c.prefill_rate, c.decode_rate) == (8, 4, 400.0, 38.5)
    assert (c.digest, c.context_tokens, c.lagging, c.reachable) == (b"8bytes..", 8_192, False, True)
    assert c.load_age_s > 0


def test_the_local_engine_is_a_candidate_too() -> None:
    view = FleetView("a")
    view.update_local(0, FACTS)
    view.note_load(0, "a", "small", Load(lanes=2, busy=1))
    c = only(view, now=0)
    assert (c.placement, c.lanes, c.busy, c.load_age_s, c.lagging) == (Placement.LOCAL, 2, 1, 0.0, False)


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"state": MemberState.SUSPECT}, "suspected"),
        ({"state": MemberState.DEAD}, "down"),
        ({"state": MemberState.LEFT}, "left"),
        ({"reachability": Reachability.RELAYED}, "not directly reachable"),
        ({"reachability": Reachability.NONE}, "not directly reachable"),
        ({"metadata": encode_metadata(replace_facts(draining=True))}, "draining"),
    ],
)
def test_a_member_that_cannot_serve_now_makes_its_models_unavailable_and_not_unknown(
    changes: dict[str, Any], note: str
) -> None:
    view = view_of(member("b", **changes))
    assert (only(view).residence, only(view).note) == (Residence.UNAVAILABLE, note)
    refusal = outcome(view).refusal
    assert refusal is not None
    assert refusal.kind is ErrorKind.MODEL_UNAVAILABLE
    assert refusal.retry_after_s
    assert note in refusal.message


def test_a_member_that_vanished_is_down_for_a_while_and_then_unknown() -> None:
    view = view_of(member("b"))
    view.update_members(20 * S, [])
    assert view.is_gone("b")
    assert only(view).note == "down"
    view.update_members(20 * S + int(HOLDER_DOWN_S * S) + 1, [])
    refusal = outcome(view).refusal
    assert refusal is not None
    assert refusal.kind is ErrorKind.MODEL_NOT_FOUND


def test_a_member_that_left_is_forgotten_sooner() -> None:
    view = view_of(member("b", state=MemberState.LEFT))
    view.update_members(10 * S + int(HOLDER_LEFT_S * S) + 1, [])
    assert view.candidates(11 * S, wish()) == ()


def test_a_member_that_returns_serves_again() -> None:
    view = view_of(member("b", state=MemberState.DEAD))
    view.update_members(20 * S, [member("b", epoch=2, instance=b"another!")])
    assert only(view, now=20 * S).residence is Residence.READY
    assert not view.is_gone("b")


@pytest.mark.parametrize(
    ("state", "residence"),
    [
        (ModelState.LOADING, Residence.LOADING),
        (ModelState.LOADABLE, Residence.LOADABLE),
        (ModelState.DRAINING, Residence.UNAVAILABLE),
    ],
)
def test_the_state_of_a_model_becomes_its_residence(state: ModelState, residence: Residence) -> None:
    facts = NodeFacts(version=1, models=(ModelFact("small", state=state),))
    assert only(view_of(member("b", facts))).residence is residence


def test_a_node_without_fresh_news_lags_and_is_not_out() -> None:
    assert only(view_of(member("b", vitals=None))).note == "no load report yet"
    old = view_of(member("b"))
    late = 10 * S + int((VITALS_STALE_S + 1) * S)
    assert (only(old, now=late).lagging, only(old, now=late).residence) == (True, Residence.READY)
    slow = NodeVitals(1, 1, loop_lag_ms=1_900, slots=VITALS.slots)
    assert only(view_of(member("b", vitals=slow))).note == "its event loop lags"


def test_another_life_of_a_node_takes_its_loads_and_prefixes_with_it() -> None:
    view = view_of(member("b"))
    view.note_held(10 * S, ((b"mark", 10),), candidate_id("b", "small"))
    asked = wish(marks=((b"mark", 10),))
    assert view.candidates(10 * S, asked)[0].held_tokens == 10
    view.update_members(11 * S, [member("b", instance=b"another!", vitals=None)])
    (c,) = view.candidates(11 * S, asked)
    assert (c.held_tokens, c.busy, c.lagging) == (0, 0, True)


def test_vitals_of_other_facts_than_ours_are_not_given_to_the_wrong_model() -> None:
    view = view_of(member("b", vitals=NodeVitals(1, 9, slots=VITALS.slots)))
    assert only(view).busy == 0


def test_metadata_that_was_cut_short_is_asked_for_and_learnt() -> None:
    many = NodeFacts(version=3, models=tuple(ModelFact(f"a-model-of-number-{n}", b"8bytes..") for n in range(60)))
    view = view_of(member("b", many))
    assert view.wants_facts() == ("b",)
    assert view.candidates(10 * S, wish("a-model-of-number-59")) == ()
    view.learn_facts("b", NodeFacts(version=2))
    assert view.wants_facts() == ("b",)
    view.learn_facts("b", many)
    assert view.wants_facts() == ()
    assert only(view, "a-model-of-number-59").node == "b"
    view.update_members(11 * S, [member("b", FACTS)])
    assert view.facts("b") == many


def test_newer_metadata_replaces_full_facts_of_an_older_version() -> None:
    view = view_of(member("b", NodeFacts(version=1, truncated=True)))
    view.learn_facts("b", FACTS)
    view.update_members(11 * S, [member("b", NodeFacts(version=2))])
    assert view.candidates(11 * S, wish()) == ()


def test_metadata_of_another_protocol_is_a_fault_on_display_and_nothing_else() -> None:
    view = view_of(replace(member("b"), metadata=b"\xc1", vitals=b"\xc1"), member("c"))
    assert only(view).node == "c"
    faults = {m["name"]: m["fault"] for m in view.state(10 * S)["members"]}
    assert faults["b"]
    assert faults["c"] is None


def test_own_requests_count_at_the_peer_until_they_end() -> None:
    view = view_of(member("b"))
    view.note_started(10 * S, "small@b", 100, "attempt")
    assert (only(view).busy, view.in_flight) == (5, 1)
    view.note_finished(11 * S, "attempt")
    assert (only(view, now=11 * S).busy, view.in_flight) == (4, 0)


def test_upstreams_are_candidates_that_only_routes_can_use() -> None:
    view = view_of()
    view.set_upstreams([UpstreamModel("cloud", "small", price_out=2.0), UpstreamModel("cloud", "other")])
    assert only(view).placement is Placement.UPSTREAM
    assert outcome(view).refusal is not None
    asked = wish(upstreams=frozenset({"cloud"}))
    assert decide(DEFAULT_CHAIN, view.candidates(10 * S, asked), asked).first is not None


def test_all_nodes_name_the_same_homes() -> None:
    facts = {name: replace_facts(advertise=name, lanes=lanes) for name, lanes in (("a", 4), ("b", 9), ("c", 16))}
    request = describe(chat("1", "hello", system="s" * 3_000), b"salt")
    ranks = []
    for viewer, own in facts.items():
        view = FleetView(viewer)
        view.update_local(0, own)
        view.update_members(0, [member(name, facts[name], is_local=name == viewer) for name in facts])
        ranks.append({c.node: c.home_rank for c in view.candidates(0, request)})
    assert ranks[0] == ranks[1] == ranks[2]
    assert sorted(ranks[0].values()) == [0, 1, 2]  # type: ignore[type-var]


def test_listing_names_what_members_hold_and_who_is_ready() -> None:
    eyes = NodeFacts(
        version=1, models=(ModelFact("small", context=4_096, capability_bits=capability_bits({"vision"}), lanes=3),)
    )
    (model,) = view_of(member("b"), member("c", eyes), member("d", state=MemberState.SUSPECT)).known_models()
    assert (model.id, model.ready, model.nodes) == ("small", ("b", "c"), ("b", "c", "d"))
    assert (model.context_tokens, model.tags, model.lanes) == (8_192, {"vision"}, 4 + 3)


def test_of_several_templates_the_one_of_the_best_place_counts() -> None:
    def told(number: int, state: ModelState) -> NodeFacts:
        return NodeFacts(version=1, models=(ModelFact("small", state=state, template_ways=number),))

    old, loadable, ready = member("b"), told(1, ModelState.LOADABLE), told(3, ModelState.READY)
    (model,) = view_of(old, member("c", loadable), member("d", ready)).known_models()
    assert model.template_ways == 3
    (model,) = view_of(old, member("c", loadable)).known_models()
    assert model.template_ways == 1, "a member of an earlier version says nothing"
    (model,) = view_of(old).known_models()
    assert model.template_ways == 0


def test_a_model_is_known_by_its_name_in_any_case_on_every_node() -> None:
    name = view_of(member("b")).known_models()[0].id
    view = view_of(member("b"), member("c"))
    assert view.model_called(name) == name
    assert view.model_called(name.upper()) == name
    assert view.model_called("no-such-Model") == "no-such-Model"


def test_the_state_shows_every_member_with_load_machine_and_the_way_to_it() -> None:
    view = view_of(member("b"), member("c", state=MemberState.SUSPECT))
    view.update_local(10 * S, NodeFacts(advertise="a.lan:8081", no_engine=True), NodeVitals(cpu_percent=5))
    a, b, c = view.state(11 * S)["members"]
    assert (a["local"], a["engine"], a["cpu_percent"], a["reachability"]) == (True, False, 5, "local")
    assert (b["name"], b["address"], b["state"], b["reachability"]) == ("b", "b.lan:8081", "alive", "direct")
    assert (b["lanes"], b["busy"], b["load"], b["cpu_percent"]) == (4, 4, 0.5, 37)
    assert (b["ram_used_mib"], b["ram_total_mib"], b["vitals_age_s"], b["rtt_ms"]) == (900, 4_000, 1.25, 2.1)
    assert b["models"][0] == {
        "id": "small",
        "state": "ready",
        "digest": b"8bytes..".hex(),
        "context_tokens": 8_192,
        "capabilities": [],
        "lanes": 8,
        "busy": 4,
        "queued_tokens": 0,
        "prefill_rate": 400.0,
        "decode_rate": 38.5,
    }
    assert c["state"] == "suspect"


@pytest.mark.parametrize("state", [MemberState.SUSPECT, MemberState.DEAD, MemberState.LEFT])
def test_the_last_load_of_a_member_that_is_not_alive_is_not_shown_as_current(state: MemberState) -> None:
    view = view_of(member("b"))
    view.update_members(11 * S, [member("b", state=state)])
    _, b = view.state(11 * S)["members"]
    assert b["state"] == state.name.lower()
    machine = ("busy", "load", "cpu_percent", "ram_used_mib", "ram_total_mib", "loop_lag_ms", "vitals_age_s")
    assert [b[name] for name in machine] == [None] * len(machine)
    (model,) = b["models"]
    assert [model[name] for name in ("busy", "queued_tokens", "prefill_rate", "decode_rate")] == [None] * 4
    assert (model["id"], model["lanes"], b["lanes"]) == ("small", 0, 4)
    view.update_members(12 * S, [member("b")])
    assert view.state(12 * S)["members"][1]["busy"] == 4


def test_a_member_that_membership_forgot_shows_no_load() -> None:
    view = view_of(member("b"))
    view.update_members(11 * S, [])
    _, b = view.state(11 * S)["members"]
    assert (b["state"], b["busy"], b["models"][0]["busy"]) == ("dead", None, None)


def test_beliefs_about_caches_are_counted_against_the_truth() -> None:
    view = view_of(member("b"))
    for cached, turn in ((0, b"1"), (10, b"2"), (0, b"3"), (0, b"3")):
        view.note_held(10 * S, ((b"mark", 10), (turn, 20)), "small@b", cached)
    assert (view.held_right, view.held_wrong) == (1, 1)
    view.note_miss(((b"mark", 10),), "small@b")
    assert view.candidates(10 * S, wish(marks=((b"mark", 10),)))[0].held_tokens == 0

"""The laws of the chain, for every strategy and any input."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from saiserve.routing.ask import Ask
from saiserve.routing.cache_aware import cache_aware
from saiserve.routing.candidate import Candidate, Placement, Residence, RoutingRequest
from saiserve.routing.capability import TierRule, capability, capability_by_model, needs
from saiserve.routing.chain import Strategy, decide
from saiserve.routing.cost import cost_profile
from saiserve.routing.default import DEFAULT_CHAIN
from saiserve.routing.escalation import Signals, escalate_on_answer, escalate_on_signals
from saiserve.routing.load_aware import load_aware
from saiserve.routing.model_aware import model_aware
from saiserve.routing.slate import Slate, is_lawful
from saiserve.routing.split import split_traffic
from saiserve.routing.tiers import Tier
from tests.property.routing.worlds import calm_fleets, requests, slates

TIERS = (Tier("small", ("a",)), Tier("large", ("b", "c")))
STRATEGIES: tuple[Strategy, ...] = (
    model_aware,
    needs,
    load_aware,
    cache_aware,
    capability(TIERS, [TierRule("large", traits=frozenset({"tools"}))]),
    capability_by_model("judge", TIERS),
    escalate_on_signals(TIERS, [Signals(tool_calls=1, turns=3)]),
    escalate_on_answer(TIERS),
    split_traffic({"a": 1, "b": 2, "n1": 0.5}),
    cost_profile(ceiling=1.0, classes=(0.0, 0.1)),
)


def after(strategy: Strategy, slate: Slate, request: RoutingRequest) -> list[Slate]:
    outcome = strategy(slate, request)
    return [outcome.slate, outcome.if_failed] if isinstance(outcome, Ask) else [outcome]


SERVING = (Residence.READY, Residence.ARRIVING, Residence.LOADABLE)


@given(slates, requests(), st.lists(st.integers(0, 2), max_size=10))
def test_every_strategy_drops_with_a_reason_brings_nobody_back_and_only_refines_bands(
    candidates: list[Candidate], request: RoutingRequest, keys: list[int]
) -> None:
    before = Slate.of(candidates, request).under("test")
    place = dict(zip((c.id for c in before.candidates), keys, strict=False))
    before = before.split(lambda c: place.get(c.id, 0))
    for slate in (slate for strategy in STRATEGIES for slate in after(strategy, before, request)):
        assert is_lawful(before, slate), slate.by
        assert len({r.candidate.id for r in slate.ranked} | {d.candidate.id for d in slate.dropped}) == len(
            {c.id for c in candidates}
        )
        assert all(d.reason and d.by for d in slate.dropped)


@given(slates, requests(), st.randoms(use_true_random=False))
def test_the_decision_does_not_depend_on_the_order_of_the_candidates(
    candidates: list[Candidate], request: RoutingRequest, random: Random
) -> None:
    shuffled = list(candidates)
    random.shuffle(shuffled)
    chain = (*STRATEGIES[4:], *DEFAULT_CHAIN)
    # Compared as text, in which NaN equals itself.
    assert repr(decide(chain, candidates, request)) == repr(decide(chain, shuffled, request))


@given(slates, requests())
def test_a_decision_has_attempts_or_a_refusal_and_never_both(
    candidates: list[Candidate], request: RoutingRequest
) -> None:
    for chain in (DEFAULT_CHAIN, (), (load_aware,), tuple(STRATEGIES)):
        decision = decide(chain, candidates, request)
        assert bool(decision.attempts) != (decision.refusal is not None)
        ids = [r.candidate.id for r in decision.attempts]
        assert len(ids) == len(set(ids))


@given(slates, requests())
def test_no_upstream_is_used_unless_the_route_names_it(candidates: list[Candidate], request: RoutingRequest) -> None:
    for chain in (DEFAULT_CHAIN, (), tuple(STRATEGIES)):
        for ranked in decide(chain, candidates, request).attempts:
            c = ranked.candidate
            assert c.placement is not Placement.UPSTREAM or c.node in request.upstreams


@given(slates, requests())
def test_the_default_chain_only_goes_where_the_model_can_be_served(
    candidates: list[Candidate], request: RoutingRequest
) -> None:
    attempts = [r.candidate for r in decide(DEFAULT_CHAIN, candidates, request).attempts]
    for c in attempts:
        assert c.model in (*request.wanted, *request.fallbacks)
        assert c.reachable
        assert not c.draining
        assert c.residence in SERVING
    wanted_then_resident = [(c.model not in request.wanted, SERVING.index(c.residence)) for c in attempts]
    if not request.fallbacks:
        assert wanted_then_resident == sorted(wanted_then_resident)


@given(calm_fleets(), requests(), st.integers(0, 5))
def test_a_lone_idle_node_wins_where_nobody_has_a_claim(
    fleet: tuple[Candidate, ...], request: RoutingRequest, which: int
) -> None:
    idle = which % len(fleet)
    fleet = tuple(replace(c, busy=0.0 if n == idle else max(1.0, c.busy)) for n, c in enumerate(fleet))
    request = replace(request, model="a", models=(), fallbacks=())
    first = decide(DEFAULT_CHAIN, fleet, request).first
    assert first is not None
    assert first.id == fleet[idle].id


@given(calm_fleets(), requests())
def test_who_is_clearly_busier_never_comes_before_who_is_not(
    fleet: tuple[Candidate, ...], request: RoutingRequest
) -> None:
    request = replace(request, model="a", models=(), fallbacks=())
    load = {c.id: c.busy / c.lanes for c in fleet}
    least = min(load.values())
    first = decide(DEFAULT_CHAIN, fleet, request).first
    assert first is not None
    assert load[first.id] <= least + max(1 / first.lanes, 0.25) + 1e-6


@given(calm_fleets(), requests(), st.integers(0, 5))
def test_a_later_turn_goes_back_to_who_holds_it_while_loads_are_alike(
    fleet: tuple[Candidate, ...], request: RoutingRequest, which: int
) -> None:
    history = replace(request.history, turns=1, previous_tokens=400, tokens=500)
    request = replace(request, model="a", models=(), fallbacks=(), history=history, prompt_tokens=600)
    holder = fleet[which % len(fleet)].id
    fleet = tuple(
        replace(c, busy=1.0, lanes=4, queued_tokens=0, held_tokens=400 if c.id == holder else 0) for c in fleet
    )
    first = decide(DEFAULT_CHAIN, fleet, request).first
    assert first is not None
    assert first.id == holder

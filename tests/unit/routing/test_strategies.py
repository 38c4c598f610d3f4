"""Each strategy by example."""

from __future__ import annotations

import collections

import pytest

from saiserve.errors import ErrorKind
from saiserve.routing.ask import Ask, Keep, Reply
from saiserve.routing.candidate import History, Placement, Residence
from saiserve.routing.capability import TierRule, capability, capability_by_model
from saiserve.routing.chain import Strategy, decide, route
from saiserve.routing.cost import cost_profile
from saiserve.routing.decision import Decision
from saiserve.routing.default import DEFAULT_CHAIN
from saiserve.routing.escalation import Signals, confident, escalate_on_answer, escalate_on_signals
from saiserve.routing.load_aware import load_aware
from saiserve.routing.model_aware import model_aware
from saiserve.routing.slate import Slate
from saiserve.routing.split import split_traffic
from saiserve.routing.tiers import Tier, read_tiers
from tests.unit.routing.places import place, upstream, wish

TIERS = (Tier("small", ("small",)), Tier("large", ("large",)), Tier("huge", ("huge",)))
FLEET = (place("a", "small"), place("b", "large"), place("c", "huge"))
ANY = {"models": ("small", "large", "huge")}


def nodes(decision: Decision) -> list[str]:
    return [r.candidate.node for r in decision.attempts]


# model


def test_a_model_nobody_holds_is_not_found() -> None:
    decision = decide(DEFAULT_CHAIN, [place("a")], wish("other"))
    assert decision.refusal is not None
    assert decision.refusal.kind is ErrorKind.MODEL_NOT_FOUND
    assert "'other'" in decision.refusal.message
    assert decision.refusal.as_error().param == "model"


@pytest.mark.parametrize(
    "state",
    [
        {"residence": Residence.UNAVAILABLE, "note": "suspected"},
        {"residence": Residence.LOADING},
        {"reachable": False},
        {"draining": True},
    ],
)
def test_a_model_that_is_known_but_cannot_be_served_is_unavailable_with_a_time(state: dict[str, object]) -> None:
    decision = decide(DEFAULT_CHAIN, [place("a", **state)], wish())
    assert decision.refusal is not None
    assert decision.refusal.kind is ErrorKind.MODEL_UNAVAILABLE
    assert decision.refusal.retry_after_s


def test_resident_comes_before_loadable_however_busy() -> None:
    fleet = [place("a", busy=9.0), place("b", residence=Residence.LOADABLE)]
    assert nodes(decide(DEFAULT_CHAIN, fleet, wish())) == ["a", "b"]


def test_a_fallback_model_comes_last_and_only_when_the_route_lists_it() -> None:
    fleet = [place("a", "large"), place("b", "small", busy=9.0)]
    assert nodes(decide([model_aware], fleet, wish())) == ["b"]
    assert nodes(decide([model_aware, load_aware], fleet, wish(fallbacks=("large",)))) == ["b", "a"]
    assert nodes(decide([model_aware], fleet[:1], wish(fallbacks=("large",)))) == ["a"]


# load


def test_a_full_node_comes_after_one_with_a_free_lane() -> None:
    fleet = [place("a", lanes=1, busy=1.0), place("b", lanes=16, busy=3.0)]
    assert nodes(decide(DEFAULT_CHAIN, fleet, wish())) == ["b", "a"]


def test_a_full_node_loses_even_a_long_conversation_to_one_with_a_free_lane() -> None:
    fleet = [place("a", lanes=1, busy=1.0, held_tokens=8_000), place("b", lanes=16, busy=3.0)]
    later = wish(prompt_tokens=9_000, history=History(turns=1, previous_tokens=8_000, tokens=8_500))
    assert nodes(decide(DEFAULT_CHAIN, fleet, later)) == ["b", "a"]


def test_one_idle_node_comes_before_a_faster_busy_one() -> None:
    fleet = [place("a", busy=1.0, prefill_rate=4_000.0), place("b", prefill_rate=100.0), place("c", busy=1.0)]
    assert nodes(decide(DEFAULT_CHAIN, fleet, wish()))[0] == "b"


def test_who_is_within_a_quarter_of_its_lanes_is_inside_and_who_is_beyond_is_not() -> None:
    fleet = [place("a", lanes=16, busy=2.0), place("b", lanes=16, busy=6.0), place("c", lanes=16, busy=7.0)]
    bands = {r.candidate.node: r.band for r in decide([load_aware], fleet, wish()).attempts}
    assert bands == {"a": 0, "b": 0, "c": 1}


def test_a_lagging_node_goes_one_band_down_and_not_out() -> None:
    fleet = [place("a", lagging=True), place("b", busy=1.0), place("c", busy=4.0)]
    assert nodes(decide([load_aware], fleet, wish()))[0] == "b"
    assert set(nodes(decide([load_aware], fleet, wish()))) == {"a", "b", "c"}


def test_equal_nodes_share_requests() -> None:
    fleet = [place(name, busy=1.0) for name in "abc"]
    firsts = collections.Counter(nodes(decide([load_aware], fleet, wish(id=f"r{n}")))[0] for n in range(600))
    assert min(firsts.values()) > 150


# cache


def test_a_conversation_goes_home_on_its_first_turn_and_to_its_holder_later() -> None:
    fleet = [place("a", placement=Placement.LOCAL), place("b", home_rank=0), place("c", held_tokens=80)]
    assert nodes(decide(DEFAULT_CHAIN, fleet, wish()))[0] == "b"
    later = wish(history=History(turns=1, previous_tokens=80, tokens=90))
    assert nodes(decide(DEFAULT_CHAIN, fleet, later))[0] == "c"


def test_an_old_memory_of_a_conversation_gives_way_to_its_home() -> None:
    fleet = [place("a", held_tokens=20), place("b", home_rank=0)]
    later = wish(history=History(turns=2, previous_tokens=80, tokens=90))
    assert nodes(decide(DEFAULT_CHAIN, fleet, later))[0] == "b"


def test_a_long_queue_at_home_is_worth_going_elsewhere() -> None:
    fleet = [place("a", home_rank=0, busy=1.0, queued_tokens=5_000), place("b", home_rank=1, busy=1.0)]
    assert nodes(decide(DEFAULT_CHAIN, fleet, wish()))[0] == "b"


def test_a_holder_that_is_overloaded_loses_its_conversation() -> None:
    fleet = [place("a", held_tokens=80, busy=6.0), place("b", busy=1.0)]
    later = wish(history=History(turns=1, previous_tokens=80, tokens=90))
    assert nodes(decide(DEFAULT_CHAIN, fleet, later)) == ["b", "a"]


# capability


def test_a_need_nobody_has_is_the_clients_error_and_unknown_tags_are_given_a_chance() -> None:
    blind = place("a", tags=frozenset({"chat"}))
    decision = decide(DEFAULT_CHAIN, [blind], wish(traits=frozenset({"vision"})))
    assert decision.refusal is not None
    assert decision.refusal.kind is ErrorKind.INVALID_REQUEST
    assert nodes(decide(DEFAULT_CHAIN, [blind, place("b")], wish(traits=frozenset({"vision"})))) == ["b"]


def test_a_roomy_context_comes_before_a_tight_one_and_a_tight_one_stays() -> None:
    fleet = [place("a", context_tokens=100), place("b", context_tokens=4_000, busy=1.0)]
    assert nodes(decide(DEFAULT_CHAIN, fleet, wish(prompt_tokens=120))) == ["b", "a"]


def test_rules_pick_the_tier_and_a_stronger_one_stands_in_before_a_weaker() -> None:
    strategy = capability(TIERS, [TierRule("large", traits=frozenset({"tools"}))])
    chat, tools = wish("auto", **ANY), wish("auto", traits=frozenset({"tools"}), **ANY)
    assert nodes(decide([strategy], FLEET, chat)) == ["a", "b", "c"]
    assert nodes(decide([strategy], FLEET, tools)) == ["b", "c", "a"]
    assert decide([strategy], FLEET, tools).label("tier") == "large"


def test_a_judge_picks_the_tier_and_its_failure_takes_the_default_and_is_labelled() -> None:
    strategy = capability_by_model("judge", TIERS, default="large")
    assert ask(strategy, Reply('{"tier": "huge"}')).label("tier") == "huge"
    for unusable in (None, Reply("huge"), Reply('{"tier": "none"}'), Reply("[" * 100_000), Reply("null")):
        decision = ask(strategy, unusable)
        assert (decision.label("tier"), decision.label("tier_judge")) == ("large", "failed")


@pytest.mark.parametrize(
    "tiers", [[], [{"name": "x"}], [{"name": "x", "models": ["a"]}, {"name": "x", "models": ["b"]}]]
)
def test_malformed_tiers_are_refused(tiers: list[dict[str, object]]) -> None:
    with pytest.raises(ValueError, match="tiers"):
        read_tiers(tiers)


# escalation


def test_tool_use_in_the_history_escalates_and_keeps_escalating() -> None:
    strategy = escalate_on_signals(TIERS, [Signals(tool_calls=1), Signals(tool_calls=0, tool_errors=3)])
    tiers = [
        decide([strategy], FLEET, wish("auto", history=History(turns, calls, errors), **ANY)).label("tier")
        for turns, calls, errors in [(0, 0, 0), (1, 1, 0), (2, 1, 1), (5, 9, 3), (9, 9, 3)]
    ]
    assert tiers == ["small", "large", "large", "huge", "huge"]


def test_a_sure_draft_is_kept_and_a_doubtful_one_escalates() -> None:
    strategy = escalate_on_answer(TIERS[:2])
    kept = ask(strategy, Reply("fine", mean_logprob=-0.2))
    assert kept.draft_kept
    assert (nodes(kept), kept.label("tier"), kept.label("draft")) == (["a"], "small", "kept")
    dropped = ask(strategy, Reply("hm", mean_logprob=-4.0))
    assert (nodes(dropped)[0], dropped.label("tier"), dropped.label("draft")) == ("b", "large", "dropped")
    assert ask(strategy, None).label("draft") == "failed"


def test_without_a_drafting_candidate_nothing_is_asked() -> None:
    decision = decide([escalate_on_answer(TIERS)], FLEET[1:], wish("auto", **ANY))
    assert decision.label("draft") == "none"
    assert nodes(decision) == ["b", "c"]


def test_a_draft_that_calls_tools_or_says_nothing_is_not_good_enough() -> None:
    assert not confident()(Reply("call", tool_calls=1, mean_logprob=0.0))
    assert not confident()(Reply(" ", finished=True, mean_logprob=0.0))
    assert not confident()(Reply("text"))
    strategy = escalate_on_answer(TIERS, verdict=lambda reply: None)
    outcome = strategy(Slate.of(FLEET, wish()), wish())
    assert isinstance(outcome, Ask)
    assert not isinstance(outcome.decide(Reply("x", finished=True)), Keep)


# split


def test_arms_get_their_shares_and_a_conversation_keeps_its_arm() -> None:
    strategy = split_traffic({"small": 3, "large": 1})
    arms = [
        {decide([strategy], FLEET, wish(id=f"{c}/{t}", conversation=f"c{c}", **ANY)).label("arm") for t in range(3)}
        for c in range(800)
    ]
    assert all(len(arm) == 1 for arm in arms)
    share = sum(arm == {"small"} for arm in arms) / len(arms)
    assert 0.70 < share < 0.80


def test_a_new_arm_moves_conversations_only_to_itself() -> None:
    before, after = split_traffic({"small": 1, "large": 1}), split_traffic({"small": 1, "large": 1, "huge": 1})
    for number in range(300):
        request = wish(conversation=f"c{number}", **ANY)
        old, new = (decide([s], FLEET, request).label("arm") for s in (before, after))
        assert new in (old, "huge")


def test_an_arm_of_weight_zero_is_never_drawn_and_the_other_arm_stands_in() -> None:
    strategy = split_traffic({"small": 0, "large": 1})
    assert nodes(decide([strategy], FLEET, wish(**ANY)))[0] == "b"
    assert nodes(decide([strategy], FLEET[:1], wish(**ANY))) == ["a"]


@pytest.mark.parametrize("arms", [{}, {"a": -1.0}, {"a": 0.0}, {"a": float("inf")}, {"a": float("nan")}])
def test_impossible_arms_are_refused(arms: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="arms"):
        split_traffic(arms)


# cost


def test_local_is_free_and_what_is_over_the_ceiling_is_dropped() -> None:
    fleet = [upstream("cheap", price_out=1.0), upstream("dear", price_out=1_000.0), place("a", busy=9.0)]
    request = wish(upstreams=frozenset({"cheap", "dear"}))
    decision = decide([model_aware, cost_profile(ceiling=0.5)], fleet, request)
    assert nodes(decision) == ["a", "cheap"]
    assert decision.dropped[-1].candidate.node == "dear"


def test_when_all_is_over_the_ceiling_the_refusal_says_so() -> None:
    decision = decide([cost_profile(ceiling=0.0)], [upstream("x", price_out=1.0)], wish(upstreams=frozenset({"x"})))
    assert decision.refusal is not None
    assert "ceiling" in decision.refusal.message


@pytest.mark.parametrize("options", [{"ceiling": -1.0}, {"classes": (1.0, 0.0)}, {"ceiling": float("nan")}])
def test_an_impossible_profile_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="cost"):
        cost_profile(**options)  # type: ignore[arg-type]


def ask(strategy: Strategy, reply: Reply | None) -> Decision:
    request = wish("auto", **ANY)
    steps = route([strategy], Slate.of(FLEET, request), request)
    next(steps)
    with pytest.raises(StopIteration) as stop:
        steps.send(reply)
    decision: Decision = stop.value.value
    return decision

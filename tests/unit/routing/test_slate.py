"""The moves of a slate and the laws the chain holds every strategy to."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from saiserve.errors import ErrorKind
from saiserve.limits import DRAFT_ROUNDS_MAX
from saiserve.routing.ask import Ask, Keep, More, Question, Reply
from saiserve.routing.candidate import RoutingRequest
from saiserve.routing.chain import Strategy, StrategyError, decide, route
from saiserve.routing.decision import Decision, Dropped, Ranked, Refusal
from saiserve.routing.slate import Slate, is_lawful
from tests.unit.routing.places import place, upstream, wish

A, B, C = place("a"), place("b"), place("c")


def test_split_refines_bands_and_never_lets_one_overtake_a_better_band() -> None:
    slate = Slate.of([A, B, C], wish()).split(lambda c: c.node == "a").split(lambda c: c.node == "b")
    assert [(r.candidate.node, r.band) for r in slate.ranked] == [("c", 0), ("b", 1), ("a", 2)]
    again = slate.split(lambda c: -ord(c.node))
    assert [r.candidate.node for r in again.ranked] == ["c", "b", "a"]


def test_order_sorts_inside_bands_only_and_keeps_equals_as_they_were() -> None:
    slate = Slate.of([A, B, C], wish()).split(lambda c: c.node == "a")
    first = [r.candidate.node for r in slate.order(lambda c: 0.0).ranked]
    assert first == [r.candidate.node for r in slate.ranked]
    assert [r.candidate.node for r in slate.order(lambda c: ord(c.node)).ranked] == ["b", "c", "a"]


def test_a_key_that_is_not_a_number_sorts_last() -> None:
    slate = Slate.of([A, B], wish()).order(lambda c: math.nan if c.node == "a" else 5.0)
    assert [r.candidate.node for r in slate.ranked] == ["b", "a"]


def test_every_drop_is_recorded_with_its_reason_even_when_none_was_given() -> None:
    slate = Slate.of([A, B], wish()).under("test").keep(lambda c: c.node == "a", "")
    assert slate.dropped == (Dropped(B, "test", "dropped without a word"),)


def test_an_upstream_is_dropped_unless_the_route_names_it_whatever_the_chain() -> None:
    slate = Slate.of([A, upstream("x"), upstream("y")], wish(upstreams=frozenset({"y"})))
    assert {c.node for c in slate.candidates} == {"a", "y"}
    assert [d.candidate.node for d in slate.dropped] == ["x"]


def test_a_second_entry_of_one_id_is_dropped_whichever_comes_first() -> None:
    busy = replace(A, busy=3.0)
    assert Slate.of([A, busy], wish()).ranked == Slate.of([busy, A], wish()).ranked


def test_the_first_refusal_stands() -> None:
    first, second = Refusal(ErrorKind.BUSY, "one"), Refusal(ErrorKind.INTERNAL, "two")
    slate = Slate.of([A], wish()).refuse(first).refuse(second)
    assert slate.refusal == first
    assert not slate.ranked


def test_a_later_label_replaces_an_earlier_one() -> None:
    slate = Slate.of([A], wish()).label("tier", "x").label("arm", "y").label("tier", "z")
    assert slate.labels == (("arm", "y"), ("tier", "z"))


BEFORE = Slate.of([A, B, C], wish()).split(lambda c: c.node == "a").keep(lambda c: c.node != "c", "not c")
UNLAWFUL = {
    "brings back": replace(BEFORE, ranked=(*BEFORE.ranked, Ranked(C, band=9))),
    "invents": replace(BEFORE, ranked=(*BEFORE.ranked, Ranked(place("z"), band=9))),
    "changes one": replace(
        BEFORE, ranked=(replace(BEFORE.ranked[0], candidate=replace(B, busy=9.0)), BEFORE.ranked[1])
    ),
    "doubles": replace(BEFORE, ranked=BEFORE.ranked + BEFORE.ranked[-1:]),
    "loses one silently": replace(BEFORE, ranked=BEFORE.ranked[:1]),
    "forgets drops": replace(BEFORE, dropped=()),
    "merges bands": replace(BEFORE, ranked=tuple(replace(r, band=0) for r in BEFORE.ranked)),
    "swaps bands": replace(BEFORE, ranked=tuple(replace(r, band=1 - r.band) for r in reversed(BEFORE.ranked))),
    "is not sorted": replace(BEFORE, ranked=BEFORE.ranked[::-1]),
}


@pytest.mark.parametrize("after", UNLAWFUL.values(), ids=UNLAWFUL)
def test_a_slate_that_breaks_a_law_is_found_out(after: Slate) -> None:
    assert is_lawful(BEFORE, BEFORE)
    assert not is_lawful(BEFORE, after)
    with pytest.raises(StrategyError, match="'rogue' broke a law"):
        drive(route([named("rogue", after)], BEFORE, wish()))


def test_a_strategy_that_raises_is_named_and_nothing_is_sent() -> None:
    def faulty(slate: Slate, request: RoutingRequest) -> Slate:
        raise KeyError("x")

    with pytest.raises(StrategyError, match="'faulty' raised KeyError"):
        decide([faulty], [A], wish())


def test_an_empty_slate_is_a_refusal_with_the_last_reason() -> None:
    def nobody(slate: Slate, request: RoutingRequest) -> Slate:
        return slate.keep(lambda _: False, "not on Sundays")

    decision = decide([nobody], [A], wish())
    assert decision.refusal is not None
    assert decision.refusal.kind is ErrorKind.MODEL_UNAVAILABLE
    assert "not on Sundays (nobody)" in decision.refusal.message
    nothing = decide([], [], wish()).refusal
    assert nothing is not None
    assert repr(wish().model) in nothing.message
    assert "/v1/models lists" in nothing.message


def test_the_trace_says_what_each_strategy_did() -> None:
    def first(slate: Slate, request: RoutingRequest) -> Slate:
        return slate.keep(lambda c: c.node != "b", "not b")

    decision = decide([first], [A, B, C], wish())
    (step,) = decision.trace
    assert (step.by, step.kept, step.bands, step.dropped) == ("first", 2, 1, (("small@b", "not b"),))


def test_a_side_question_goes_on_with_the_slate_its_answer_chose() -> None:
    steps = route([ask_for("b")], Slate.of([A, B], wish()), wish())
    asked = next(steps)
    assert asked.question is not None
    assert drive(steps, Reply("b"))[1].first == B


@pytest.mark.parametrize("reply", [None, Reply("keep")])
def test_a_side_question_without_a_usable_answer_takes_the_given_way_out(reply: Reply | None) -> None:
    steps = route([ask_for("b")], Slate.of([A, B], wish()), wish())
    next(steps)
    decision = drive(steps, reply)[1]
    assert decision.first == A
    assert decision.trace[0].note


def test_a_draft_is_placed_by_the_rest_of_the_chain_and_kept_where_it_runs() -> None:
    def prefer_b(slate: Slate, request: RoutingRequest) -> Slate:
        return slate.split(lambda c: c.node != "b")

    steps = route([draft(["a", "b"]), prefer_b], Slate.of([A, B, C], wish()), wish())
    assert [r.candidate.node for r in next(steps).attempts] == ["b", "a"]
    decision = drive(steps, Reply("good"))[1]
    assert decision.draft_kept
    assert [r.candidate.node for r in decision.attempts] == ["b", "a"]


def test_a_draft_that_is_dropped_leaves_the_rest_to_the_chain() -> None:
    steps = route([draft(["a"])], Slate.of([A, B], wish()), wish())
    next(steps)
    decision = drive(steps, Reply("bad"))[1]
    assert not decision.draft_kept
    assert decision.first == B


def test_a_draft_that_never_decides_is_given_up() -> None:
    steps = route([draft(["a"])], Slate.of([A, B], wish()), wish())
    asked, decision = drive(steps, *[Reply("more")] * (DRAFT_ROUNDS_MAX + 1), started=False)
    assert asked == DRAFT_ROUNDS_MAX
    assert decision.trace[0].note == "still undecided"


def named(name: str, after: Slate) -> Strategy:
    def strategy(slate: Slate, request: RoutingRequest) -> Slate:
        return after

    strategy.name = name  # type: ignore[attr-defined]
    return strategy


def ask_for(node: str) -> Strategy:
    def asks(slate: Slate, request: RoutingRequest) -> Ask:
        way_out = slate.keep(lambda c: c.node != node, "no answer")

        def read(reply: Reply) -> Keep | More | Slate:
            return Keep() if reply.text == "keep" else slate.keep(lambda c: c.node == reply.text, "not chosen")

        return Ask(slate, Question("judge", "which?", {}), read, way_out)

    return asks


def draft(nodes: list[str]) -> Strategy:
    def drafts(slate: Slate, request: RoutingRequest) -> Ask:
        stronger = slate.split(lambda c: c.node in nodes)

        def read(reply: Reply) -> Keep | More | Slate:
            return {"good": Keep(), "more": More(8)}.get(reply.text, stronger)  # type: ignore[return-value]

        return Ask(slate.keep(lambda c: c.node in nodes, "drafts elsewhere"), None, read, stronger)

    return drafts


def drive(steps: object, *replies: Reply | None, started: bool = True) -> tuple[int, Decision]:
    """Send replies until the decision; how many questions were put, and the decision."""
    asked = 0
    try:
        if not started or not replies:
            next(steps)  # type: ignore[call-overload]
            asked += 1
        for reply in replies:
            steps.send(reply)  # type: ignore[attr-defined]
            asked += 1
    except StopIteration as stop:
        return asked, stop.value
    raise AssertionError("the chain did not come to a decision")

"""The merge of claims is a join: order, repetition and grouping of news change nothing (P1)."""

from __future__ import annotations

from itertools import permutations, product

from hypothesis import given
from hypothesis import strategies as st

from swimcluster.member import Claim, MemberState, overrides

claims = st.builds(
    Claim,
    st.integers(0, 2),
    st.sampled_from([b"a" * 8, b"b" * 8]),
    st.integers(0, 3),
    st.sampled_from(list(MemberState)),
)


def merge(one: Claim, other: Claim) -> Claim:
    return other if overrides(other, one) else one


@given(claims, claims)
def test_merging_is_commutative(a, b):
    assert merge(a, b) == merge(b, a)


@given(claims, claims, claims)
def test_merging_is_associative(a, b, c):
    assert merge(merge(a, b), c) == merge(a, merge(b, c))


@given(claims, claims)
def test_merging_is_idempotent_and_never_falls(a, b):
    merged = merge(a, b)
    assert merge(merged, a) == merge(merged, b) == merged
    assert merged >= a


@given(st.lists(claims, min_size=1, max_size=5))
def test_any_order_of_news_ends_in_the_same_claim(news):
    ends = set()
    for order in permutations(news):
        held = order[0]
        for claim in order[1:]:
            held = merge(held, claim)
        ends.add(held)
    assert len(ends) == 1


def test_the_precedence_table_as_it_is_written():
    states = list(MemberState)
    for new, old in product(states, states):
        same = overrides(Claim(1, b"i", 5, new), Claim(1, b"i", 5, old))
        assert same == (new > old)
        assert overrides(Claim(1, b"i", 6, new), Claim(1, b"i", 5, old))
        assert not overrides(Claim(1, b"i", 4, new), Claim(1, b"i", 5, old))
        assert overrides(Claim(2, b"a", 0, new), Claim(1, b"z", 9, old))
        assert overrides(Claim(1, b"b", 0, new), Claim(1, b"a", 9, old))
    assert [state.name for state in sorted(states)] == ["ALIVE", "SUSPECT", "DEAD", "LEFT"]


def test_alive_needs_a_greater_incarnation_than_any_failure_evidence():
    for failure in (MemberState.SUSPECT, MemberState.DEAD, MemberState.LEFT):
        held = Claim(1, b"i", 7, failure)
        assert not overrides(Claim(1, b"i", 7, MemberState.ALIVE), held)
        assert overrides(Claim(1, b"i", 8, MemberState.ALIVE), held)

"""Placement is the same on every member, balanced, and moves as little as it must."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swimcluster.member import MemberState
from swimcluster.rendezvous import Ring, owner, rank


@dataclass(frozen=True)
class Someone:
    name: str
    state: MemberState = MemberState.ALIVE


TEN = [Someone(f"m{number}") for number in range(10)]
KEYS = [f"key-{number}" for number in range(4000)]


def ring_owner(key: str, members: Iterable[Someone]) -> Someone:
    return Ring(members).owners(key)[0]


def rendezvous_owner(key: str, members: Iterable[Someone]) -> Someone:
    found = owner(key, members)
    assert found is not None
    return found


@given(st.lists(st.text(max_size=8), unique=True, min_size=1, max_size=8), st.binary(max_size=16), st.randoms())
def test_the_order_of_the_list_does_not_matter(names: list[str], key: bytes, rng: random.Random) -> None:
    members = [Someone(name) for name in names]
    shuffled = rng.sample(members, len(members))
    assert rank(key, members) == rank(key, shuffled)
    assert sorted(rank(key, members), key=lambda m: m.name) == sorted(members, key=lambda m: m.name)
    assert Ring(members, points=8).owners(key, 3) == Ring(shuffled, points=8).owners(key, 3)


@pytest.mark.parametrize(("place", "spread"), [(rendezvous_owner, 0.2), (None, 0.45)], ids=["rendezvous", "ring"])
def test_keys_spread_evenly_and_only_those_of_a_departed_member_move(
    place: Callable[[str, Iterable[Someone]], Someone] | None, spread: float
) -> None:
    def owners(members: list[Someone]) -> dict[str, Someone]:
        if place is not None:
            return {key: place(key, members) for key in KEYS}
        ring = Ring(members)
        return {key: ring.owners(key)[0] for key in KEYS}

    before = owners(TEN)
    counts = Counter(before.values())
    assert all(abs(count / (len(KEYS) / len(TEN)) - 1) < spread for count in counts.values()), counts
    after = owners([*TEN[:3], Someone("m3", MemberState.DEAD), *TEN[4:]])
    moved = {key for key in KEYS if before[key] != after[key]}
    assert moved == {key for key in KEYS if before[key].name == "m3"}
    assert len({after[key].name for key in moved}) == 9


def test_weights_give_shares_in_proportion_and_zero_gives_none() -> None:
    weights = {"m0": 1.0, "m1": 2.0, "m2": 4.0, "m3": 0.0}
    counts = Counter(
        found.name for key in KEYS if (found := owner(key, TEN[:4], weight=lambda member: weights[member.name]))
    )
    assert "m3" not in counts
    for name in ("m0", "m1", "m2"):
        assert counts[name] / len(KEYS) == pytest.approx(weights[name] / 7, rel=0.15)


def test_the_gone_are_left_out_and_suspects_are_not() -> None:
    members = [Someone(state.name, state) for state in MemberState]
    assert {member.name for member in rank("k", members)} == {"ALIVE", "SUSPECT"}
    assert {member.name for member in Ring(members).owners("k", 4)} == {"ALIVE", "SUSPECT"}
    assert owner("k", members[2:]) is None
    assert Ring(members[2:]).owners("k") == []


def test_ring_owners_are_distinct_and_begin_with_the_owner() -> None:
    ring = Ring(TEN)
    for key in KEYS[:50]:
        three = ring.owners(key, 3)
        assert len(set(three)) == 3
        assert three[0] == ring.owners(key)[0]
    assert len(ring.owners("k", 99)) == 10

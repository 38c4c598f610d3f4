"""Who fails for an output that is no number, and as whose fault."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from saiserve.engines.llamacpp.spoilt import SPOILT_MAX, CacheSpoiltError, SpoiltCache
from saiserve.engines.messages import FailureKind

NAMED, OWN, OTHER = "named", "@0=2.0", "@0=3.0"


@dataclass
class Computed:
    probation: int = 0


@pytest.mark.parametrize(
    ("mix", "suspects", "kinds"),
    [
        ("", set(), [None, FailureKind.INTERNAL]),
        ("", {OWN}, [None, None, None, None]),
        (NAMED, set(), [None, FailureKind.INTERNAL]),
        (NAMED, {NAMED}, [None, FailureKind.INTERNAL]),
        (NAMED, {NAMED, OWN}, [None, FailureKind.INTERNAL]),
        (OWN, set(), [None, FailureKind.BAD_REQUEST]),
        (OWN, {OWN}, [None, FailureKind.BAD_REQUEST]),
        (OWN, {OWN, NAMED}, [None, FailureKind.INTERNAL]),
        (OWN, {OTHER}, [None, FailureKind.INTERNAL]),
    ],
)
def test_who_fails_and_how(mix: str, suspects: set[str], kinds: list[FailureKind | None]) -> None:
    cache, computed = SpoiltCache(lanes=1), Computed()
    for kind in kinds:
        failure = cache.judge(computed, "no number", mix, suspects)
        assert (failure and failure.kind) == kind
        if failure is not None:
            assert ("lora" in failure.detail) == (kind is FailureKind.BAD_REQUEST)
        assert cache.is_spoilt
        assert cache.clear() == (failure is not None), "explained by who failed"
        assert not cache.is_spoilt


def test_a_try_is_not_used_up_while_others_are_under_suspicion() -> None:
    cache, computed = SpoiltCache(lanes=1), Computed()
    assert [cache.judge(computed, "", "", {OWN}) for _ in range(3)] == [None] * 3
    assert cache.judge(computed, "", "", set()) is None
    assert cache.judge(computed, "", "", set()) is not None


@pytest.mark.parametrize("mix", ["", NAMED])
def test_only_failures_without_adapters_say_that_the_process_is_broken(mix: str) -> None:
    cache = SpoiltCache(lanes=1)
    for _ in range(SPOILT_MAX):
        cache.clear()
        cache.judge(Computed(1), "", mix, set())
    if mix:
        cache.clear()
        return
    with pytest.raises(CacheSpoiltError):
        cache.clear()
    cache.is_number()
    cache.clear()


def test_one_culprit_beside_all_lanes_and_a_request_for_vectors_is_not_the_process() -> None:
    cache = SpoiltCache(lanes=SPOILT_MAX)
    for _ in range(SPOILT_MAX + 1):
        cache.judge(Computed(1), "", "", set())
        cache.clear()
    cache.judge(Computed(1), "", "", set())
    with pytest.raises(CacheSpoiltError):
        cache.clear()

"""Shrinking, searching, exploring and the theory, apart from any membership."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulations.theory import (
    first_detection_random,
    first_detection_round_robin,
    infected,
    mean_and_error,
    poisson_interval,
    probe_failure,
    quantile,
)
from swimcluster.address import Address
from swimcluster.testing import Crash, Partition, Pause, Replay, describe, explore, fork, random_schedule, shrink
from swimcluster.testing.network import SECOND
from swimcluster.testing.search import Outcome, map_seeds, search

NAMES = ["a", "b", "c", "d"]


def pause(at: int, name: str = "a", length: int = SECOND) -> Pause:
    return Pause(at, length, name)


def test_shrinking_finds_the_two_faults_that_matter():
    schedule = tuple(pause(at) for at in range(40))
    smallest = shrink(schedule, lambda s: {f.at_ns for f in s} >= {7, 31})
    assert [f.at_ns for f in smallest] == [7, 31]


def test_shrinking_shortens_what_is_left():
    smallest = shrink((pause(1, length=8 * SECOND),), lambda s: bool(s) and s[0].for_ns >= SECOND)
    assert smallest[0].for_ns == SECOND


def test_shrinking_halves_groups_and_counts():
    schedule = (Partition(0, SECOND, frozenset(NAMES)), Replay(0, count=64))
    smallest = shrink(schedule, lambda s: len(s) == 2 and s[1].count >= 8)
    assert len(smallest[0].members) == 1
    assert smallest[1].count == 8


def test_shrinking_refuses_a_schedule_that_does_not_fail():
    with pytest.raises(ValueError, match="does not fail"):
        shrink((pause(1),), lambda s: False)


def test_shrinking_stops_at_its_budget():
    tried = []
    shrink(tuple(pause(at) for at in range(50)), lambda s: not tried.append(s) and len(s) > 20, tries=5)
    assert len(tried) == 5


@settings(max_examples=25)
@given(st.sets(st.integers(0, 30), min_size=1), st.integers(0, 2**32))
def test_what_shrinking_returns_is_minimal(needed, seed):
    order = list(range(31))
    random.Random(seed).shuffle(order)
    schedule = tuple(pause(at) for at in order)
    smallest = shrink(schedule, lambda s: needed <= {f.at_ns for f in s}, tries=5000)
    assert {f.at_ns for f in smallest} == needed


def test_random_schedules_are_a_function_of_their_stream_and_end_in_time():
    def draw():
        return random_schedule(fork(3, "x"), NAMES, start_ns=SECOND, length_ns=100 * SECOND)

    assert draw() == draw()
    for seed in range(50):
        for fault in random_schedule(fork(seed, "x"), NAMES, start_ns=SECOND, length_ns=100 * SECOND):
            assert fault.at_ns >= SECOND
            assert fault.at_ns + fault.for_ns <= 102 * SECOND
            assert describe(fault)


def outcome_of(seed: int) -> Outcome:
    return Outcome(seed, str(seed), ("odd",) if seed % 2 else ())


def test_a_search_yields_in_order_and_stops_when_it_has_enough():
    assert [o.seed for o in search(outcome_of, range(10), stop_at=2)] == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_search_over_processes_brings_the_same():
    assert list(search(outcome_of, range(9), processes=2)) == [outcome_of(seed) for seed in range(9)]
    assert map_seeds(abs, [-1, -2], processes=2) == [1, 2]


# Exploring: a counter that two machines share by sending increments; a lost one must be sent again, once.

A, B = Address("a", 1), Address("b", 1)


@dataclass
class Out:
    destination: Address
    data: bytes


@dataclass
class Sender:
    """Sends 1 until it is acknowledged; `careless` counts an acknowledgement of anything."""

    peer: Address
    due: int | None = 0
    acked: bool = False
    counted: int = 0
    dedupe: bool = True
    seen: bool = False
    out: list = field(default_factory=list)

    def advance(self, now):
        if not self.acked:
            self.out.append(Out(self.peer, b"add"))
            self.due = now + 100
        else:
            self.due = None

    def receive_datagram(self, now, source, data):
        if data == b"add":
            if not (self.dedupe and self.seen):
                self.counted += 1
            self.seen = True
            self.out.append(Out(source, b"ok"))
        else:
            self.acked = True

    def next_deadline(self):
        return self.due

    def transmits(self):
        out, self.out = self.out, []
        return out

    def events(self):
        return []


def counts_twice(before, after):
    return ["counted twice"] if after.machines.get(B) and after.machines[B].counted > 1 else []


def test_exploring_finds_the_lost_acknowledgement():
    sloppy = {A: Sender(B), B: Sender(A, due=None, dedupe=False)}
    found = explore(sloppy, now=0, depth=6, check=counts_twice)
    assert any("counted twice" in violation for violation in found.violations)
    careful = {A: Sender(B), B: Sender(A, due=None)}
    found = explore(careful, now=0, depth=6, check=counts_twice)
    assert found.violations == []
    assert found.is_complete
    assert found.states > 20
    assert found.merged > 0


def test_exploring_says_when_it_was_cut_short():
    machines = {A: Sender(B), B: Sender(A, due=0)}
    assert not explore(machines, now=0, depth=8, check=counts_twice, states_max=50).is_complete


def test_exploring_can_let_processes_end():
    gone = []

    def check(before, after):
        gone.append(len(after.machines))
        return []

    explore({A: Sender(B), B: Sender(A, due=None)}, now=0, depth=3, check=check, crashes_max=1)
    assert min(gone) == 1


# Theory: the formulas against a few lines of Monte Carlo each.


def play_round_robin(n: int, rng: random.Random) -> int:
    """Windows until one of n − 1 probers with their own shuffled passes hits target 0, from a random moment."""
    m = n - 1
    best = 10**9
    for _ in range(m):
        offset = rng.randrange(m)
        order: list[int] = []
        for _ in range(3):
            turn = list(range(m))
            rng.shuffle(turn)
            order += turn
        best = min(best, order[offset:].index(0) + 1)
    return best


@pytest.mark.parametrize("n", [3, 8])
def test_the_round_robin_expectation_is_that_of_a_simulated_list(n):
    rng = random.Random(1)
    mean, error = mean_and_error([float(play_round_robin(n, rng)) for _ in range(5_000)])
    assert abs(mean - first_detection_round_robin(n)) < 4 * error


@pytest.mark.parametrize("n", [3, 8])
def test_the_random_expectation_is_that_of_simulated_draws(n):
    rng = random.Random(2)

    def once() -> float:
        periods = 1
        while all(rng.randrange(n - 1) for _ in range(n - 1)):
            periods += 1
        return periods

    mean, error = mean_and_error([once() for _ in range(10_000)])
    assert abs(mean - first_detection_random(n)) < 4 * error


def test_published_figures_come_out():
    assert first_detection_random(8) == pytest.approx(1.515, abs=1e-3)
    assert first_detection_random(1000) == pytest.approx(1.582, abs=1e-3)
    assert probe_failure(0.99, 0) == pytest.approx(0.0199)
    assert probe_failure(0.8, 3) * 1.582 == pytest.approx(0.117, abs=1e-3)
    assert infected(32, 1.74) == pytest.approx(16, rel=0.02)


def test_intervals_and_quantiles():
    low, high = poisson_interval(100)
    assert low < 80 < 100 < 125 < high
    assert poisson_interval(0)[0] == 0
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([], 0.5) == float("inf")
    assert Crash(0, 1, "a").restarts

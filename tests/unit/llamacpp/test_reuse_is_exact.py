"""Every way of reusing computed tokens gives the logits of a cold run, on each kind of memory."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from saiserve.engines.llamacpp.binding import LlamaContext
from saiserve.engines.llamacpp.kv import Family
from tests.fixtures import tiny_models
from tests.unit.llamacpp.reuse_harness import Harness, Run, worst_difference

MODELS = tuple(tiny_models.MODELS)
HOST_BYTES = 64 * 1024 * 1024
NORMAL_TOKENS = 260


@dataclass
class Bench:
    """A harness and a cold context of one model."""

    name: str
    harness: Harness
    cold: LlamaContext
    random: random.Random
    flash: bool = False

    def tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self.random.randrange(NORMAL_TOKENS) for _ in range(count))

    def check(self, *runs: Run) -> None:
        for run in runs:
            difference = worst_difference(self.cold, run)
            assert difference <= tiny_models.tolerance(self.name, flash=self.flash), f"{run.job.id}: {difference}"

    @property
    def counters(self) -> dict[str, float]:
        return self.harness.scheduler.counters()


@pytest.fixture(params=MODELS)
def bench(request: pytest.FixtureRequest, open_context: Callable[..., LlamaContext]) -> Callable[..., Bench]:
    """Makes a bench of each model."""

    def make(*, cells: int = 4096, host_bytes: int = HOST_BYTES, flash: bool = False, **settings: int) -> Bench:
        context = open_context(request.param, cells=cells, flash=flash)
        cold = open_context(request.param, flash=flash)
        harness = Harness(context, host_bytes=host_bytes, **settings)
        return Bench(request.param, harness, cold, random.Random(7), flash)

    return make


def test_one_wrong_token_far_back_is_seen(bench: Callable[..., Bench]) -> None:
    b = bench()
    run = b.harness.run(b.tokens(60), draw=4)
    tokens = list(run.job.tokens)
    tokens[-20] = (tokens[-20] + 1) % NORMAL_TOKENS
    wrong = Run(dataclasses.replace(run.job, tokens=tuple(tokens)), run.answer, run.logits)
    assert worst_difference(b.cold, wrong) > 10 * tiny_models.tolerance(b.name)


def test_a_cut_tail_continues_as_if_computed_anew(bench: Callable[..., Bench]) -> None:
    b = bench()
    base = b.tokens(200)
    first = b.harness.run(base + b.tokens(40), boundaries=(200,))
    second = b.harness.run(base + b.tokens(30), boundaries=(200,))
    assert second.cached_tokens >= 199
    b.check(first, second)


def test_the_same_prompt_again_computes_one_token(bench: Callable[..., Bench]) -> None:
    b = bench()
    prompt = b.tokens(300)
    first = b.harness.run(prompt, draw=8)
    again = b.harness.run(prompt, draw=8)
    if b.harness.context.family is not Family.RECURRENT:
        assert again.cached_tokens == len(prompt) - 1
    b.check(first, again)


def test_a_conversation_goes_on_from_its_own_answer(bench: Callable[..., Bench]) -> None:
    b = bench()
    turn = b.harness.run(b.tokens(120), draw=50)
    for _ in range(3):
        history = turn.job.tokens + tuple(turn.answer)
        turn = b.harness.run(history + b.tokens(25), draw=50, boundaries=(len(history),))
        assert turn.cached_tokens >= len(history) - 2
        b.check(turn)


def test_a_branch_far_back_is_right_although_the_window_has_passed(bench: Callable[..., Bench]) -> None:
    b = bench()
    long = b.tokens(500)
    first = b.harness.run(long, draw=60, boundaries=(100, 350))
    for cut in (350, 100, 33, 7):
        branch = b.harness.run(long[:cut] + b.tokens(20))
        b.check(branch)
    b.check(first, b.harness.run(long, draw=3))


def test_a_running_answer_lends_its_prompt_and_is_not_disturbed(bench: Callable[..., Bench]) -> None:
    b = bench()
    base = b.tokens(150)
    source = b.harness.submit(base + b.tokens(10), draw=40, boundaries=(150,))
    while len(source.answer) < 5:
        b.harness.step()
    borrower = b.harness.submit(base + b.tokens(12), draw=20, boundaries=(150,))
    b.harness.finish(source, borrower)
    if b.harness.context.family is not Family.RECURRENT:
        assert borrower.cached_tokens == 150
    b.check(source, borrower)


def test_simultaneous_requests_behind_one_prefix_compute_it_once(bench: Callable[..., Bench]) -> None:
    b = bench()
    base = b.tokens(400)
    runs = [b.harness.submit(base + b.tokens(15), draw=6, boundaries=(400,)) for _ in range(4)]
    b.harness.finish(*runs)
    assert b.counters["prefill_tokens"] <= 400 + 4 * 16 + 8
    b.check(*runs)


def test_an_idle_prefix_survives_the_work_of_others(bench: Callable[..., Bench]) -> None:
    b = bench()
    kept = b.tokens(200)
    b.harness.run(kept, boundaries=(200,))
    for _ in range(3):
        b.harness.run(b.tokens(600), draw=2)
    for cut in (200, 90):
        b.check(b.harness.run(kept[:cut] + b.tokens(10)))


def test_a_prefix_comes_back_from_host_memory(bench: Callable[..., Bench]) -> None:
    b = bench(hot_cells_max=0)
    conversations = [b.harness.run(b.tokens(180), draw=5) for _ in range(3)]
    b.harness.settle()
    assert b.counters["moves_to_host"] > 0
    assert b.counters["cells_idle"] == 0
    for turn in conversations:
        history = turn.job.tokens + tuple(turn.answer)
        again = b.harness.run(history + b.tokens(10))
        assert again.cached_tokens >= len(history) - 2
        b.check(again)
    assert b.counters["moves_from_host"] > 0


def test_a_full_cache_requeues_and_everyone_still_gets_the_right_answer(bench: Callable[..., Bench]) -> None:
    b = bench(cells=512)
    runs = [b.harness.submit(b.tokens(100), draw=90) for _ in range(4)]
    b.harness.finish(*runs)
    b.check(*runs)


def test_an_answer_resumes_at_every_token(bench: Callable[..., Bench]) -> None:
    b = bench()
    prompt = b.tokens(70)
    whole = b.harness.run(prompt, draw=40)
    for done in range(1, 40):
        sent = tuple(whole.answer[:done])
        resumed = b.harness.submit(prompt + sent, draw=min(3, 40 - done), resumed=done)
        b.harness.finish(resumed)
        b.check(resumed)


@pytest.mark.parametrize("seed", range(3))
def test_random_reuse_never_gives_other_logits(bench: Callable[..., Bench], seed: int) -> None:
    b = bench(cells=2048, hot_cells_max=600, host_bytes=HOST_BYTES if seed else 0)
    b.random.seed(seed)
    known: list[tuple[int, ...]] = [b.tokens(60)]
    pending: list[Run] = []
    for _ in range(40):
        base = b.random.choice(known)
        cut = b.random.randrange(1, len(base) + 1)
        tokens = (base[:cut] + b.tokens(b.random.randrange(1, 80)))[:500]
        pending.append(b.harness.submit(tokens, draw=b.random.randrange(1, 30), boundaries=(min(cut, len(tokens)),)))
        if len(pending) >= b.random.randrange(1, 6):
            b.harness.finish(*pending)
            known += [run.job.tokens + tuple(run.answer) for run in pending]
            b.check(*pending)
            pending.clear()
    b.harness.finish(*pending)
    b.check(*pending)
    if b.harness.context.family is not Family.RECURRENT:
        assert b.counters["prefix_hit_tokens"] > 0


def test_with_flash_attention_reuse_is_as_exact_as_it_can_be(bench: Callable[..., Bench]) -> None:
    b = bench(flash=True, hot_cells_max=100)
    base = b.tokens(300)
    turns = [b.harness.run(base[:cut] + b.tokens(20), draw=10, boundaries=(cut,)) for cut in (300, 300, 150, 40, 300)]
    b.check(*turns)


def test_a_small_window_cache_reuses_less_and_is_as_exact(open_context: Callable[..., LlamaContext]) -> None:
    context = open_context("gemma3", window_full=False)
    harness = Harness(context, host_bytes=HOST_BYTES, pins=False)
    b = Bench("gemma3", harness, open_context("gemma3"), random.Random(3))
    known = [b.tokens(200)]
    for _ in range(40):
        base = b.random.choice(known)
        cut = b.random.randrange(1, len(base) + 1)
        run = b.harness.run((base[:cut] + b.tokens(b.random.randrange(1, 60)))[:600], draw=6, boundaries=(cut,))
        b.check(run)
        known.append(run.job.tokens + tuple(run.answer))

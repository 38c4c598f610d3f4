"""How many rows a step has, and whose, over the fake cache."""

from __future__ import annotations

from itertools import pairwise

from tests.fakes.engine_loop import job, make_loop


def test_streams_that_run_keep_their_pace_while_a_long_prompt_prefills() -> None:
    loop = make_loop(cells=8000, batch_max=512)
    loop.submit(job("stream", range(50), 400))
    while len(loop.answers["stream"]) < 20:
        loop.turn()
    before = len(loop.step_ms)
    loop.submit(job("long", range(2000, 4000), 2))
    while "long" not in loop.answers:
        loop.turn()
    during = loop.step_ms[before:]
    assert max(during) <= 300
    assert sum(during) / 1000 < 2000 / 300 / 0.7, "prefill must not starve either"


def test_prompts_and_streams_apart_take_turns_and_no_step_mixes_them() -> None:
    loop = make_loop(cells=8000, batch_max=512, apart=True, prefill_rate=300.0)
    loop.submit(job("stream", range(50), 100))
    while len(loop.answers["stream"]) < 20:
        loop.turn()
    before, said = len(loop.steps), len(loop.answers["stream"])
    loop.submit(job("long", range(1000, 1640), 2))
    while not loop.answers["long"]:
        loop.turn()
    kinds = [{part.is_prefill for part in step.parts} for step in loop.steps[before:]]
    assert all(len(kind) == 1 for kind in kinds), "a step had both"
    assert all({True, False} == one | other for one, other in pairwise(kinds)), "one had two turns running"
    assert len(loop.answers["stream"]) - said == len(kinds) // 2
    pieces = [len(step.rows) for step in loop.steps[before:-1] if step.parts[0].is_prefill]
    assert pieces[0] == 64, "a block, though the first guess of the rate gives 52"
    assert 70 <= max(pieces) <= 75, "0.25 s at 300 tokens per second, once that is learned"
    loop.run()
    assert loop.ended == {"stream": "finished", "long": "finished"}


def test_a_prompt_that_finds_no_cell_does_not_stop_the_streams_beside_which_it_would_be_read() -> None:
    loop = make_loop(cells=120, lanes=2, batch_max=64, apart=True)
    loop.submit(job("first", range(60), 40))
    loop.submit(job("second", range(100, 140), 3))
    loop.run()
    assert loop.ended == {"first": "finished", "second": "finished"}


def test_a_crowd_of_prompts_may_lengthen_the_step_to_four_times_the_budget() -> None:
    loop = make_loop(cells=8000, batch_max=512)
    loop.submit(job("stream", range(50), 300))
    while len(loop.answers["stream"]) < 20:
        loop.turn()
    before = len(loop.step_ms)
    for index in range(6):
        loop.submit(job(f"j{index}", range(1000 * index + 1000, 1000 * index + 1400), 2))
    loop.run()
    assert 900 < max(loop.step_ms[before:]) < 1030


def test_a_short_prompt_does_not_wait_for_a_long_one_that_came_first() -> None:
    loop = make_loop(cells=8000, batch_max=64)
    loop.submit(job("long", range(3000), 2))
    for _ in range(4):
        loop.turn()
    loop.submit(job("short", range(5000, 5040), 2))
    loop.turn()
    loop.turn()
    assert loop.answers["short"]
    assert not loop.answers["long"]


def test_short_prompts_without_end_do_not_starve_a_long_one() -> None:
    loop = make_loop(cells=8000, batch_max=64, hot_cells_max=0)
    loop.submit(job("long", range(1500), 1))
    count = 0
    while "long" not in loop.ended:
        if loop.scheduler.load().queued < 2:
            loop.submit(job(f"s{count}", [7000 + count, *range(5000, 5060)], 1, isolation=str(count)))
            count += 1
        loop.turn()
        assert count < 400


def test_whole_batches_are_prefilled_when_nothing_streams() -> None:
    loop = make_loop(cells=8000, batch_max=512)
    loop.submit(job("long", range(2000), 2))
    loop.turn()
    assert len(loop.steps[0].rows) == 512


def test_a_step_never_has_more_rows_than_the_batch() -> None:
    loop = make_loop(cells=8000, batch_max=32)
    for index in range(16):
        loop.submit(job(f"j{index}", range(index * 100, index * 100 + 90), 12))
    loop.run()
    assert max(len(step.rows) for step in loop.steps) <= 32


def test_embeddings_run_between_steps_with_a_fifth_of_the_time() -> None:
    loop = make_loop()
    assert loop.scheduler.may_embed(loop.now, 50)
    loop.scheduler.embedding_done(loop.now, 10_000_000)
    loop.submit(job("a", range(100), 50))
    loop.turn()
    loop.scheduler.embedding_done(loop.now, 1_000_000_000)
    assert not loop.scheduler.may_embed(loop.now + 3_900_000_000, 50)
    assert loop.scheduler.may_embed(loop.now + 4_100_000_000, 50)

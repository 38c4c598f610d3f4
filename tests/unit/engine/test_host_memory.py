"""Prefixes that leave the KV cache for host memory, and come back, over the fake cache."""

from __future__ import annotations

import pytest

from saiserve.engines.llamacpp.kv import Family
from tests.fakes.engine_checks import check_everything
from tests.fakes.engine_loop import FAMILIES, job, make_hosted, make_loop, turns

SYSTEM = list(range(450))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_parked_conversation_comes_back_from_host_memory_whole(family: Family) -> None:
    loop = make_hosted(family, hot_cells_max=50)
    history = turns(loop, "t1", [], range(200))
    for index in range(3):
        loop.submit(job(f"other{index}", range(5000 + 500 * index, 5200 + 500 * index), 10))
        loop.run()
    assert loop.scheduler.counters()["cells_idle"] <= 50
    turns(loop, "t2", history, range(900, 950))
    assert loop.cached("t2") == len(history) - 1
    assert loop.scheduler.counters()["moves_from_host"] >= 1
    assert loop.scheduler.counters()["gate_refusals"] == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_a_parked_conversation_can_be_branched_at_a_message_boundary(family: Family) -> None:
    loop = make_hosted(family, hot_cells_max=0)
    history = turns(loop, "t1", [], range(200))
    assert loop.scheduler.counters()["cells_used"] == 0
    edited = [*history[:197], *range(7000, 7050)]
    loop.submit(job("edited", edited, 4))
    loop.run()
    assert loop.cached("edited") == 197
    loop.submit(job("system only", [*history[:20], *range(8000, 8050)], 4))
    loop.run()
    assert loop.cached("system only") == 20
    assert loop.scheduler.counters()["gate_refusals"] == 0


def test_full_attention_host_memory_keeps_a_shared_prefix_once() -> None:
    loop = make_hosted(Family.FULL, hot_cells_max=0)
    for index in range(8):
        loop.submit(job(f"j{index}", [*SYSTEM, *range(1000 * index + 1000, 1000 * index + 1020)], 2))
    loop.run()
    tokens = sum(blob.end - blob.start for blob in loop.scheduler._cache.host.store.blobs.values())
    assert tokens == 450 + 8 * (20 + 1)


def test_prefixes_move_one_a_step_while_streams_run() -> None:
    loop = make_hosted(Family.FULL, hot_cells_max=0)
    for index in range(6):
        loop.submit(job(f"j{index}", range(1000 * index, 1000 * index + 50), 2))
    loop.submit(job("stream", range(9000, 9010), 200))
    saves = 0
    while "stream" not in loop.ended:
        loop.turn()
        assert loop.kv.calls["save"] <= saves + 1
        saves = loop.kv.calls["save"]
    assert saves == 6


@pytest.mark.parametrize("family", FAMILIES)
def test_host_memory_stays_within_its_budget_and_drops_the_oldest(family: Family) -> None:
    loop = make_hosted(family, hot_cells_max=0, host_bytes_max=6_000)
    for index in range(12):
        loop.submit(job(f"j{index}", range(1000 * index + 1000, 1000 * index + 1100), 2))
        loop.run()
        assert loop.scheduler.counters()["host_bytes"] <= 6_000
    assert loop.scheduler.counters()["host_evictions"] > 0
    loop.submit(job("newest", [*range(12_000, 12_100), *loop.answers["j11"], 5], 2))
    loop.submit(job("oldest", [*range(1000, 1100), *loop.answers["j0"], 5], 2))
    loop.run()
    assert loop.cached("newest") == 101
    assert loop.cached("oldest") == 0


def test_a_long_prefix_moves_in_pieces() -> None:
    loop = make_hosted(Family.FULL, hot_cells_max=0)
    loop.submit(job("long", range(600), 2))
    while "long" not in loop.ended:
        loop.turn()
    held = []
    while loop.scheduler.has_chores:
        loop.turn()
        held.append((loop.scheduler.counters()["cells_used"], loop.scheduler.counters()["host_blobs"]))
    assert held == [(601, 1), (0, 2)]


def test_without_host_memory_idle_prefixes_beyond_the_hot_set_are_dropped() -> None:
    loop = make_loop(hot_cells_max=120)
    for index in range(4):
        loop.submit(job(f"j{index}", range(1000 * index, 1000 * index + 100), 2))
        loop.run()
    assert loop.scheduler.counters()["cells_idle"] == 101
    assert [(held.where, held.tokens) for held in loop.scheduler.held()] == [("idle", 101)]


def test_a_running_recurrent_leader_leaves_a_state_where_the_waiting_job_branches() -> None:
    loop = make_hosted(Family.RECURRENT)
    loop.submit(job("leader", range(300), 30))
    loop.turn()
    loop.submit(job("branch", [*range(200), *range(900, 950)], 3))
    loop.run()
    assert loop.cached("branch") == 200
    assert loop.scheduler.counters()["checkpoints"] == 1


def test_recurrent_models_without_host_memory_do_not_wait_for_what_will_not_come() -> None:
    loop = make_loop(Family.RECURRENT)
    loop.submit(job("leader", range(300), 30))
    loop.submit(job("branch", [*range(200), *range(900, 950)], 3))
    loop.turn()
    assert {"leader", "branch"} <= set(loop.started)
    loop.run()
    assert set(loop.ended.values()) == {"finished"}


def test_what_is_held_is_told_with_where_it_is() -> None:
    loop = make_hosted(Family.FULL, hot_cells_max=120)
    loop.submit(job("old", range(100), 2))
    loop.run()
    loop.submit(job("idle", range(1000, 1100), 2))
    loop.run()
    loop.submit(job("running", range(2000, 2100), 50))
    while not loop.answers["running"]:
        loop.turn()
    assert [(held.where, held.tokens) for held in loop.scheduler.held()] == [
        ("running", 100),
        ("idle", 101),
        ("host", 101),
    ]


def test_a_saved_branch_is_dropped_before_the_longer_one_that_it_continues() -> None:
    loop = make_hosted(Family.FULL, lanes=1, hot_cells_max=0)
    for name, prompt in (("long", [*range(200)]), ("short", [*range(40), 1, 2, 3])):
        loop.submit(job(name, prompt, 2))
        loop.run()
    blobs = list(loop.scheduler._cache.host.store.blobs.values())
    assert any(blob.parent is not None and blob.end < blob.parent.end for blob in blobs)
    loop.scheduler.start_over(loop.now)
    assert not loop.scheduler.held()
    check_everything(loop)

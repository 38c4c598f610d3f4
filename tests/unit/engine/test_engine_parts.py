"""Arithmetic of lanes, rates, waits, checkpoints, gate and host store."""

from __future__ import annotations

import pytest

from saiserve.engines.llamacpp.admission import ServiceTime, turn_of
from saiserve.engines.llamacpp.batch import Pace
from saiserve.engines.llamacpp.checkpoints import CHECKPOINTS_MAX, checkpoint_places
from saiserve.engines.llamacpp.host_store import Blob, HostStore
from saiserve.engines.llamacpp.kv import Family
from saiserve.engines.llamacpp.lanes import lanes_for
from saiserve.engines.llamacpp.prefix_cache import passes_gate
from saiserve.engines.llamacpp.rates import Rates
from saiserve.engines.llamacpp.scheduler_config import SchedulerConfig
from tests.fakes.engine_loop import job

S = 1_000_000_000


@pytest.mark.parametrize(
    ("rates", "floor", "lanes"),
    [
        ({1: 100.0}, 0.5, 1),
        ({1: 100.0, 2: 90.0, 4: 70.0, 8: 40.0}, 0.5, 6),  # 10, 14.3, 25 ms a step; 20 ms is 0.53 of the way from 4 to 8
        ({1: 100.0, 2: 90.0, 4: 70.0, 8: 55.0}, 0.5, 8),
        ({1: 100.0, 2: 30.0}, 0.5, 1),
        ({1: 100.0, 2: 0.0}, 0.5, 1),
        ({1: 100.0, 2: 90.0, 4: 70.0, 8: 40.0}, 1.0, 1),
        ({1: 100.0, 2: 99.0, 32: 98.0}, 0.5, 16),  # the cap
    ],
)
def test_lanes_keep_each_stream_at_its_share_of_the_lone_speed(
    rates: dict[int, float], floor: float, lanes: int
) -> None:
    assert lanes_for(rates, cells_total=32_768, lanes_max=16, speed_floor=floor) == lanes


def test_lanes_need_room_and_the_lone_speed() -> None:
    assert lanes_for({1: 100.0, 8: 90.0}, cells_total=2048, lanes_max=16) == 4
    with pytest.raises(ValueError, match="alone"):
        lanes_for({2: 50.0}, cells_total=2048, lanes_max=16)


@pytest.mark.parametrize(
    ("family", "span", "cut", "passes"),
    [
        (Family.FULL, (0, 9), 10, True),
        (Family.FULL, (0, 8), 10, False),
        (Family.FULL, (1, 9), 10, False),
        (Family.FULL, (-1, -1), 1, False),
        (Family.WINDOW, (0, 9), 10, True),
        (Family.WINDOW, (3, 9), 10, True),  # window 8: the next row looks at 3..9
        (Family.WINDOW, (4, 9), 10, False),
        (Family.WINDOW, (0, 3), 4, True),
        (Family.WINDOW, (1, 3), 4, False),
        (Family.WINDOW, (-1, -1), 4, False),
        (Family.RECURRENT, (9, 9), 10, True),
        (Family.RECURRENT, (129, 99), 100, False),  # the state is past the cut
        (Family.RECURRENT, (0, 9), 10, False),
    ],
)
def test_the_gate_lets_through_only_what_is_whole(
    family: Family, span: tuple[int, int], cut: int, passes: bool
) -> None:
    assert passes_gate(span, cut, family, window=8 if family is Family.WINDOW else 0) is passes


def test_prefill_beside_streams_is_given_its_budget_whatever_they_take_themselves() -> None:
    rates = Rates(prefill_rate=300.0, decode_rate=100.0)
    assert rates.prefill_tokens_in(0.25) == int(0.25 * 300 * 0.7)
    for _ in range(50):
        rates.learn(decode_rows=1, prefill_rows=60, batch_max=512, elapsed_ns=int(0.31 * S))
    assert rates.prefill_tokens_in(0.25) == pytest.approx(50, abs=1)
    assert rates.prefill == 300.0
    assert rates.decode_alone == 100.0


def test_a_prompts_own_step_between_those_of_streams_tells_the_rate_beside_them() -> None:
    rates = Rates(prefill_rate=300.0, decode_rate=100.0)
    for _ in range(50):
        rates.learn(0, 64, 512, S // 2, is_beside=True)
        rates.learn(0, 3, 512, S // 2, is_beside=True)  # the end of a prompt
    assert rates.prefill_tokens_in(0.25) == 32
    assert rates.prefill == 300.0


@pytest.mark.parametrize(
    ("rate", "apart", "prompts", "rows"),
    [
        (200.0, False, 1, 50),
        (200.0, True, 1, 64),  # a block of flash attention
        (100.0, True, 1, 25),  # half a block and less: the streams would wait too long
        (400.0, True, 1, 100),
        (200.0, True, 2, 100),
        (200.0, True, 9, 200),
        (20.0, False, 1, 16),
        (9e9, False, 1, 510),
    ],
)
def test_a_piece_is_what_its_time_allows(rate: float, apart: bool, prompts: int, rows: int) -> None:
    rates = Rates(rate, 0.0)
    rates.learn(0, 64, 512, int(64 / rate * S), is_beside=True)
    config = SchedulerConfig(lanes=4, batch_max=512, apart=apart)
    assert Pace(config, rates).rows(decoding=2, prefilling=prompts) == rows


def test_rates_are_learned_apart_for_prefill_and_each_number_of_streams() -> None:
    rates = Rates(0.0, 0.0)
    assert (rates.decode_alone, rates.decode_step_s(4), rates.prefill_tokens_in(0.25)) == (0.0, 0.0, 0)
    rates.learn(0, 512, 512, 2 * S)
    rates.learn(0, 5, 512, S)  # a tail says nothing about the rate
    rates.learn(1, 0, 512, S // 100)
    rates.learn(8, 0, 512, S // 40)
    rates.learn(8, 0, 512, 0)
    assert rates.prefill == 256.0
    assert rates.decode_alone == pytest.approx(100.0)
    assert rates.decode_step_s(7) == pytest.approx(0.025)


def test_turns_follow_arrival_moved_by_priority_and_resumption() -> None:
    plain = job("a", [1, 2])
    assert turn_of(plain, 5 * S) == 5 * S
    assert turn_of(job("b", [1, 2], priority=3), 5 * S) == 2 * S
    assert turn_of(job("c", [1, 2], prompt_tokens=1), 5 * S) < turn_of(job("d", [1, 2], priority=100), 5 * S)
    late = turn_of(job("e", [1, 2], priority=100), 201 * S)
    assert late > turn_of(job("f", [1, 2], priority=-100), 0), "the lowest priority waits 200 s at most"


def test_waits_are_guessed_until_a_job_has_ended_and_then_learned() -> None:
    service = ServiceTime()
    assert service.wait_s(ahead=3, lanes=2, guess_s=5.0) == 10.0
    service.learn(2 * S)
    assert service.wait_s(ahead=3, lanes=2, guess_s=5.0) == 4.0


def test_checkpoints_are_placed_at_the_first_boundary_and_the_last_ones_apart() -> None:
    assert checkpoint_places([], 0, 100) == set()
    assert checkpoint_places([50, 100], 0, 100) == {50}
    assert checkpoint_places([10, 20, 30, 300], 0, 400) == {10, 30, 300}
    assert checkpoint_places([10, 20, 30, 300], 30, 400) == {30, 300}
    many = checkpoint_places(range(100, 10_000, 100), 0, 10_000)
    assert len(many) == CHECKPOINTS_MAX
    assert {100, 9900, 9800} <= many


def put(store: HostStore, now: int, size: int, cost: float = 10.0, parent: Blob | None = None) -> Blob | None:
    return store.put(now, b"x" * size, start=0, end=10, isolation="", cost=cost, parent=parent)


def test_the_store_drops_the_cheap_and_old_first_and_tells() -> None:
    gone: list[int] = []
    store = HostStore(100, lambda blob: gone.append(blob.id))
    cheap, dear = put(store, 1, 40, 1.0), put(store, 2, 40, 100.0)
    assert cheap is not None
    assert dear is not None
    put(store, 3, 40, 1.0)
    assert gone == [cheap.id]
    for now in range(4, 200):
        put(store, now, 40, 1.0)
    assert dear.id in gone, "nothing stays for ever"
    assert store.bytes_used <= 100
    assert store.evictions == len(gone)


def test_a_use_makes_a_blob_and_its_parents_young() -> None:
    gone: list[int] = []
    store = HostStore(90, lambda blob: gone.append(blob.id))
    first, second, third = (put(store, now, 30) for now in (1, 2, 3))
    assert first is not None
    assert second is not None
    assert third is not None
    store.touch(4, first)
    put(store, 5, 30)
    assert gone == [second.id]


def test_a_continued_blob_outlives_what_continues_it() -> None:
    gone: list[int] = []
    store = HostStore(90, lambda blob: gone.append(blob.id))
    root = put(store, 1, 30)
    child = put(store, 2, 30, parent=root)
    assert root is not None
    assert child is not None
    assert put(store, 3, 60) is not None
    assert gone == [child.id]
    put(store, 4, 60)
    assert root.id in gone
    assert root.continued == 0


def test_what_cannot_fit_beside_its_parents_is_not_kept() -> None:
    store = HostStore(90, lambda blob: None)
    root = put(store, 1, 60)
    assert put(store, 2, 91) is None
    assert put(store, 2, 40, parent=root) is None
    assert root is not None
    assert root.continued == 0
    assert store.bytes_used == 60

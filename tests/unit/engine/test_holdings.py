"""What is held is told in numbers: by place, the longest first, nothing of whose it is."""

from __future__ import annotations

import msgspec

from saiserve.engines.llamacpp.holdings import LONGEST_MAX, summarise
from saiserve.engines.llamacpp.job import HeldPrefix
from saiserve.engines.llamacpp.protocol import Holdings
from saiserve.engines.waits import NS
from tests.fakes.engine_loop import job, make_loop

HELD = (
    HeldPrefix(100, "alice", "running", 5 * NS),
    HeldPrefix(70, "alice", "idle", 4 * NS),
    HeldPrefix(300, "bob", "host", 1 * NS, size_bytes=4000),
    HeldPrefix(350, "bob", "host", 2 * NS, size_bytes=500, begins_at=300),
)


def test_places_are_summed_and_the_longest_named() -> None:
    shown = summarise(HELD, 6 * NS).shown()
    assert shown == {
        "running": {"prefixes": 1, "tokens": 100, "size_bytes": 0},
        "idle": {"prefixes": 1, "tokens": 70, "size_bytes": 0},
        "host": {"prefixes": 2, "tokens": 350, "size_bytes": 4500},
        "longest": [
            {"tokens": 350, "where": "host", "age_s": 4.0},
            {"tokens": 300, "where": "host", "age_s": 5.0},
            {"tokens": 100, "where": "running", "age_s": 1.0},
            {"tokens": 70, "where": "idle", "age_s": 2.0},
        ],
    }


def test_it_is_bounded_and_says_nothing_of_keys() -> None:
    many = [HeldPrefix(10 + number, f"key{number}", "idle", number) for number in range(5000)]
    told = summarise(many, 5000)
    assert len(told.longest) == LONGEST_MAX
    assert told.idle.prefixes == 5000
    data = msgspec.msgpack.encode(told)
    assert len(data) < 1_000
    assert b"key" not in data
    assert msgspec.msgpack.decode(data, type=Holdings) == told


def test_a_scheduler_s_prefixes_are_counted_once() -> None:
    loop = make_loop(hot_cells_max=120)
    for index in range(3):
        loop.submit(job(f"j{index}", range(1000 * index, 1000 * index + 100), 2))
        loop.run()
    told = summarise(loop.scheduler.held(), 0)
    counters = loop.scheduler.counters()
    assert told.idle.tokens == counters["cells_idle"]
    assert told.host.prefixes == counters["host_blobs"]
    assert told.host.size_bytes == counters["host_bytes"]

"""One budget: what fits, what goes for it and what never does; and where the budget comes from."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saiserve.residency.budget import Held, budget_bytes, machine_bytes, plan_room

GB = 1_000_000_000


def test_what_fits_needs_nobody_to_go() -> None:
    assert plan_room(10, 4, [Held("a", 6)], "b").evict == ()
    assert plan_room(10, 4, [Held("a", 6)], "b").refusal == ""


def test_the_longest_unused_go_first_and_no_more_than_needed() -> None:
    held = [Held("old", 3, may_go=True, used_at=1), Held("new", 3, may_go=True, used_at=9), Held("pin", 3)]
    assert plan_room(10, 4, held, "b").evict == ("old",)
    assert plan_room(10, 7, held, "b").evict == ("old", "new")


def test_a_small_one_stays_when_a_large_one_that_goes_suffices() -> None:
    held = [Held("small", 1, may_go=True, used_at=1), Held("large", 8, may_go=True, used_at=2)]
    assert plan_room(10, 9, held, "b").evict == ("large",)


def test_busy_and_pinned_models_stay_and_the_refusal_has_the_numbers() -> None:
    held = [Held("a", 6 * GB, is_pinned=True), Held("b", 3 * GB)]
    room = plan_room(10 * GB, 4 * GB, held, "c needs about 4.0 GB")
    assert room.evict == ()
    assert room.refusal.startswith(
        "c needs about 4.0 GB, and 1.0 of 10.0 GB are left (held: a 6.0 pinned, b 3.0 in use): unload one or choose"
    )
    assert "MEMORY_MIB" in room.refusal
    assert not room.is_final
    assert plan_room(10 * GB, 5 * GB, held, "c").is_final
    alone = plan_room(10 * GB, 11 * GB, [], "c needs about 11.0 GB")
    assert alone.is_final
    assert "more than the budget of 10.0 GB" in alone.refusal


@given(
    st.integers(0, 40),
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(1, 12), st.booleans(), st.integers(0, 5)), max_size=6),
)
def test_what_is_allowed_fits_and_only_the_idle_go(
    budget: int, needed: int, shapes: list[tuple[int, bool, int]]
) -> None:
    held = [Held(f"m{i}", size, may_go=go, used_at=at) for i, (size, go, at) in enumerate(shapes)]
    room = plan_room(budget, needed, held, "x")
    by_name = {one.model: one for one in held}
    left = sum(one.size for one in held) - sum(by_name[name].size for name in room.evict)
    assert all(by_name[name].may_go for name in room.evict)
    if room.refusal:
        assert not room.evict
        assert needed + sum(one.size for one in held if not one.may_go) > budget
    else:
        assert needed + left <= budget
        for name in room.evict:
            assert needed + left + by_name[name].size > budget, "one went that need not have"


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1000000\n"}, 1_000_000),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, None),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/memory.max": "2000000\n",
            },
            2_000_000,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu:/x\n3:memory:/docker/1\n",
                "sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes": "3000000\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            3_000_000,
        ),
        ({"proc/self/cgroup": "0::/host/only\n", "sys/fs/cgroup/memory.max": "4000000\n"}, 4_000_000),
        ({"proc/self/cgroup": "nonsense\n"}, None),
    ],
)
def test_the_lowest_cgroup_limit_holds(files: dict[str, str], limit: int | None, tmp_path: Path) -> None:
    for name, text in files.items():
        write(tmp_path, name, text)
    assert machine_bytes(tmp_path) == (limit or psutil.virtual_memory().total)
    assert budget_bytes(0, tmp_path) == int((limit or psutil.virtual_memory().total) * 0.8)
    assert budget_bytes(7, tmp_path) == 7 << 20

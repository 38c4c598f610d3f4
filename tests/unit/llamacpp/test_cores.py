"""How many threads compute, and how they wait."""

from __future__ import annotations

import os

import psutil
import pytest

from saiserve.engines.llamacpp import cores
from saiserve.engines.llamacpp.cores import threads_for, waiting_environment


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(
    ("asked", "physical", "threads"), [(None, 2, 2), (None, 8, 4), (None, None, 4), (3, 2, 3), (9, 2, 4), (0, 2, 1)]
)
def test_threads_are_as_asked_or_one_a_core_and_never_more_than_the_process_may_use(
    monkeypatch: pytest.MonkeyPatch, asked: int | None, physical: int | None, threads: int
) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda *, logical: None if logical else physical)
    assert threads_for(asked) == threads


@pytest.mark.usefixtures("four_cores")
def test_threads_on_every_core_sleep_early_and_others_wait_as_the_library_does() -> None:
    assert waiting_environment(4, {}) == {"GOMP_SPINCOUNT": str(cores.SPINS)}
    assert waiting_environment(3, {}) == {}


@pytest.mark.parametrize(("machine", "sleeps"), [(2, True), (8, True), (9, False), (64, False)])
def test_threads_of_a_large_machine_wait_as_the_library_does(
    monkeypatch: pytest.MonkeyPatch, machine: int, sleeps: bool
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(machine)))
    assert bool(waiting_environment(machine, {})) == sleeps


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize("name", cores.WAITING_NAMES)
def test_how_the_operator_has_threads_wait_stands(name: str) -> None:
    assert waiting_environment(4, {name: "x"}) == {}

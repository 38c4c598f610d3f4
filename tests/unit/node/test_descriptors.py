"""A process that has many files open still says how the machine does, and connections never take the last descriptor."""

from __future__ import annotations

import resource

import psutil
import pytest

from saiserve import descriptors
from saiserve.host import HostMeter


@pytest.mark.parametrize(("limit", "most"), [(65_536, 65_408), (1_024, 896), (128, 64), (3, 2), (1, 1)])
def test_some_are_kept_for_everything_else(limit: int, most: int) -> None:
    assert descriptors.connections_max(limit) == most


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (1_024, 4_096, 4_096),
        (1_024, 1 << 20, descriptors.WANTED),
        (1_024, resource.RLIM_INFINITY, descriptors.WANTED),
        (1 << 20, 1 << 20, 1 << 20),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, descriptors.WANTED),
    ],
)
def test_the_limit_is_raised_as_far_as_it_goes(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int
) -> None:
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.append(wanted))
    assert descriptors.raise_limit() == raised
    assert limits[-1][1] == hard
    assert limits[-1][0] in (raised, resource.RLIM_INFINITY)


def test_where_it_cannot_be_raised_it_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, 4_096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert descriptors.raise_limit() == 1_024


def test_a_machine_that_cannot_be_read_is_told_of_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = HostMeter()
    before = meter.read()

    def refuse() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(psutil, "virtual_memory", refuse)
    assert meter.read() == before

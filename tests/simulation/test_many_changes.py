"""Three hundred members that all change at once: everybody hears of everything, in packets of the usual size."""

from __future__ import annotations

import pytest

from swimcluster.testing import Checks, SimulatedCluster
from swimcluster.testing import invariants as inv
from swimcluster.testing.network import SECOND


def changed_at_once(size: int) -> tuple[SimulatedCluster, inv.WithinBudget, Checks, float | None]:
    """A cluster whose members all replace their metadata within a second; how long until every view has them all."""
    cluster = SimulatedCluster(size, seed=4)
    budget = inv.WithinBudget(datagram_bytes=1400, exchange_bytes=8 * 2**20)
    checks = Checks(cluster, [budget, inv.VersionsRise()], look_every_s=5.0, after_event_s=5.0)
    cluster.start_all(within_s=size / 20)
    assert cluster.settle(limit_s=120, every_s=1.0) is not None
    for number, name in enumerate(cluster.places):
        at = cluster.world.now + SECOND * number // size
        cluster.world.at(at, cluster.call, name, "set_metadata", b"changed " + name.encode() + b"." * 200)
    cluster.world.run_for(1)
    return cluster, budget, checks, cluster.settle(limit_s=60, every_s=0.5)


def judge(size: int, within_s: float) -> None:
    cluster, budget, checks, took = changed_at_once(size)
    assert checks.violations == []
    assert took is not None, cluster.differences(most=3)
    assert took <= within_s
    assert 1_000 < budget.longest <= 1_400
    statistics = [cluster.machine(name).statistics() for name in cluster.places]
    assert sum(one.dropped_malformed for one in statistics) == 0
    assert len(cluster.running()) == size


def test_thirty_members_that_all_change_within_a_second_know_it_all_soon() -> None:
    judge(30, within_s=10)


@pytest.mark.slow
def test_three_hundred_members_that_all_change_within_a_second_know_it_all() -> None:
    judge(300, within_s=60)

"""The table beside the peer: each figure comes out of the observations that its name says."""

from __future__ import annotations

from typing import Any

from benchmarks.membership.table import MEASURES, as_json, row


def life(*kills: list[float | None]) -> dict[str, Any]:
    return {"kill": list(kills)}


def figure(name: str, ours: dict[str, Any], theirs: dict[str, Any]) -> Any:
    return row(next(measure for measure in MEASURES if measure.name == name), [ours], [theirs])


def test_everyone_knows_when_the_last_one_does():
    ours, theirs = life([1.0, 5.0], [2.0, 3.0]), life([4.0, 4.0], [8.0, 1.0])
    worst = figure("kill -9 to everyone knowing, p99", ours, theirs)
    assert (worst.ours, worst.theirs, worst.holds) == (5.0, 8.0, True)
    usual = figure("kill -9 to everyone knowing, median", ours, theirs)
    assert (usual.ours, usual.theirs) == (4.0, 6.0)


def test_who_never_knew_makes_the_figure_null():
    never = figure("kill -9 to everyone knowing, p99", life([1.0, None]), life([4.0, 4.0]))
    assert never.holds is False
    assert as_json(never)["ours"] is None

"""Vectors that take minutes are no silence: an engine that makes nothing else says meanwhile that it lives."""

from __future__ import annotations

from saiserve.engines.llamacpp.outbox import REPORT_S
from saiserve.engines.messages import Embed, Embedded, Heartbeat
from tests.unit.llamacpp.desk import Desk

NS = 1_000_000_000


def test_an_engine_that_only_makes_vectors_reports_between_their_pieces(desk: Desk) -> None:
    desk.worker.handle(Embed("e", "tiny", tuple(f"text number {at}" for at in range(8))), desk.now)
    silent_s = longest_s = 0.0
    while "e" not in desk.said:
        desk.now += round(REPORT_S * NS)
        assert desk.worker.step(desk.now)
        told = desk.worker.take_messages()
        silent_s = 0.0 if any(isinstance(one, Heartbeat) for one in told) else silent_s + REPORT_S
        longest_s = max(longest_s, silent_s)
        if any(isinstance(one, Embedded) for one in told):
            break
    assert longest_s <= REPORT_S

"""Targets of these tests are in the same process: a stop of it must not look like a target that cannot be reached."""

from __future__ import annotations

import pytest

from saiserve import limits
from tests.fakes.patience import WAIT_S


@pytest.fixture(autouse=True)
def _connecting_may_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "UPSTREAM_CONNECT_S", WAIT_S)

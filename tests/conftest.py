"""Runs `async def` tests on trio, each with a deadline; `@pytest.mark.autojump` puts one on a virtual clock."""

from __future__ import annotations

import inspect
import os
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, settings

TEST_DEADLINE_S = 120.0
SLOW_TEST_DEADLINE_S = 1800.0
"""It ends a hang: the longest of these tests takes 210 s on a machine that does nothing else."""

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test to its end; other tests are left to pytest."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    virtual = pyfuncitem.get_closest_marker("autojump") is not None
    slow = pyfuncitem.get_closest_marker("slow") is not None
    clock = trio.testing.MockClock(autojump_threshold=0) if virtual else None
    deadline_s = 100_000.0 if virtual else SLOW_TEST_DEADLINE_S if slow else TEST_DEADLINE_S

    async def main() -> Any:
        with trio.fail_after(deadline_s):
            await test(**arguments)

    trio.run(main, clock=clock)
    return True

"""Cancelled at whatever step, a cluster ends in bounded time, and the others do not keep its member."""

from __future__ import annotations

import pytest
import trio
from memory_clusters import MemoryNetwork, member, names, state_of

from swimcluster import Cluster, MemberState

pytestmark = pytest.mark.autojump


class CancelAt(trio.abc.Instrument):
    """Cancels a scope after so many steps of trio's tasks."""

    def __init__(self, step: int, scope: trio.CancelScope) -> None:
        self._left = step
        self._scope = scope

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count one step."""
        self._left -= 1
        if self._left == 0:
            self._scope.cancel()


async def live(network: MemoryNetwork) -> None:
    """Open a member and do a bit of everything."""

    async def shout(sender: str, payload: bytes) -> bytes:
        await trio.sleep(0.01)
        return payload.upper()

    async with member(network, "b", "a", on_request=shout) as b, b.subscribe() as events:
        await b.wait_for(lambda members: len(members) == 2)
        await anext(events)
        assert await b.request("a", b"x") == b"X"
        await b.join(["a:7946"])
        await b.leave()


async def cancelled_at(step: int, network: MemoryNetwork, a: Cluster) -> bool:
    """Cancel `live` after a number of steps; whether it had not ended by itself before."""
    with trio.fail_after(60), trio.CancelScope() as scope:
        counter = CancelAt(step, scope)
        trio.lowlevel.add_instrument(counter)
        try:
            await live(network)
        finally:
            trio.lowlevel.remove_instrument(counter)
    with trio.fail_after(60):
        await a.wait_for(lambda members: names(members) == ["a"])
    assert state_of(a, "b") in {None, MemberState.LEFT}
    return scope.cancelled_caught


@pytest.mark.slow
async def test_a_member_cancelled_at_any_step_leaves_and_ends() -> None:
    async def shout(sender: str, payload: bytes) -> bytes:
        return payload.upper()

    network = MemoryNetwork(delay_s=0.001)
    async with member(network, "a", on_request=shout, recorded_inputs_max=0) as a:
        step = 1
        while await cancelled_at(step, network, a):
            step += 1
        assert step > 50


async def test_opening_under_a_cancelled_scope_ends_at_once() -> None:
    with trio.fail_after(60), trio.CancelScope() as scope:
        scope.cancel()
        async with member(MemoryNetwork(), "a"):
            pytest.fail("it was opened")

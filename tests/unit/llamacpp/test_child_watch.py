"""A silent engine process is ended; one that could not be heard because the node itself stood still is not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio
import trio.testing

from saiserve.engines.llamacpp.child import Child

SILENCE_S = 60.0


async def ended_after(stops_s: tuple[float, ...], heard: bool) -> float:
    """Seconds that pass for the node itself until the child is ended, with stops of the whole machine on the way."""
    ended = trio.Event()
    process = SimpleNamespace(kill=ended.set, returncode=None, pid=1)
    child = Child(process, None, "fake")  # type: ignore[arg-type]
    clock = trio.testing.MockClock(autojump_threshold=0)
    passed = 0.0

    async def main() -> None:
        nonlocal passed
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child._watch, SILENCE_S, nursery.cancel_scope)
            await trio.sleep(1)
            for stop_s in stops_s:
                clock.jump(stop_s)
                await trio.sleep(1)
            if heard:
                child._heard_at = trio.current_time()
            start = trio.current_time()
            with trio.CancelScope(shield=True):
                await ended.wait()
            passed = trio.current_time() - start

    await trio.to_thread.run_sync(lambda: trio.run(main, clock=clock))
    return passed


@pytest.mark.parametrize(("stops_s", "heard"), [((), False), ((64.0,), False), ((61.0, 300.0), False), ((64.0,), True)])
async def test_only_silence_that_could_have_been_heard_counts(stops_s: tuple[float, ...], heard: bool) -> None:
    passed = await ended_after(stops_s, heard)
    assert SILENCE_S * 0.6 < passed < SILENCE_S * 1.2

"""Ctrl-C is the program's, whichever task runs when it comes: the driver goes on and says that the member leaves."""

from __future__ import annotations

import signal

import trio
import trio.testing
from memory_clusters import MemoryNetwork, member

from swimcluster import MemberState


def test_an_interrupt_while_the_driver_works_ends_the_program_and_is_told_as_a_leave() -> None:
    seen: list[MemberState] = []
    went_on: list[bool] = []

    async def interrupted(*_: object) -> bytes:
        signal.raise_signal(signal.SIGINT)
        went_on.append(True)
        return b"answered"

    async def main() -> None:
        network = MemoryNetwork(delay_s=0.001)
        async with member(network, "a") as a:
            try:
                async with member(network, "b", "a", on_request=interrupted):
                    await a.wait_for(lambda members: len(members) == 2)
                    await a.request("b", b"question")
            except KeyboardInterrupt:
                await trio.sleep(0.5)
                found = a.member("b")
                assert found is not None
                seen.append(found.state)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert (went_on, seen) == ([True], [MemberState.LEFT])

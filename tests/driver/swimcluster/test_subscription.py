"""A reader sees every event or is told how many it missed; the writer never waits."""

from __future__ import annotations

import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from swimcluster.events import Event, EventsLost, Snapshot, UserMessage
from swimcluster.member import Member
from swimcluster.subscription import Subscription


def message(number: int) -> UserMessage:
    return UserMessage("a", b"%d" % number)


def subscription(events_max: int = 4) -> Subscription:
    members: tuple[Member, ...] = ()
    return Subscription(lambda: members, lambda _: None, events_max=events_max)


async def take(events: Subscription, count: int) -> list[Event]:
    return [await anext(events) for _ in range(count)]


async def test_the_first_item_is_a_snapshot_and_events_follow_in_order() -> None:
    events = subscription()
    events.put(message(1))
    events.put(message(2))
    assert await take(events, 3) == [Snapshot(()), message(1), message(2)]


async def test_a_slow_reader_reads_what_was_queued_then_the_number_lost_then_a_snapshot() -> None:
    events = subscription(events_max=3)
    for number in range(10):
        events.put(message(number))
    assert await take(events, 4) == [Snapshot(()), message(0), message(1), EventsLost(8)]
    events.put(message(10))
    assert await take(events, 2) == [Snapshot(()), message(10)]


async def test_a_waiting_reader_is_woken_and_closing_ends_the_iteration() -> None:
    seen: list[Event] = []
    events = subscription()

    async def read() -> None:
        async with events:
            async for event in events:
                seen.append(event)  # noqa: PERF401 - seen must grow while reading

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        events.put(message(1))
        await trio.testing.wait_all_tasks_blocked()
        assert seen == [Snapshot(()), message(1)]
        events.close()


async def test_a_cancelled_reader_loses_nothing() -> None:
    events = subscription()
    await anext(events)
    with trio.move_on_after(0):
        await anext(events)
    events.put(message(1))
    with trio.CancelScope() as scope:
        scope.cancel()
        await anext(events)
    assert await anext(events) == message(1)


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5))
def test_read_and_lost_events_add_up_whatever_the_pace(steps: list[bool], events_max: int) -> None:
    async def run() -> None:
        events = subscription(events_max)
        written, read, lost = 0, [], 0
        for is_write in [*steps, *[False] * (events_max + 3)]:
            if is_write:
                events.put(message(written))
                written += 1
                continue
            with trio.move_on_after(0.001):
                match await anext(events):
                    case EventsLost(count=count):
                        lost += count
                    case UserMessage(payload=payload):
                        read.append(int(payload))
        assert len(read) + lost == written
        assert read == sorted(set(read))

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))

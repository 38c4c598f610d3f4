"""Events for readers who may be slow, from a protocol that never waits for them.

Each subscription has a bounded queue. When it is full, later events are only counted; the reader finishes what is
queued, is told `EventsLost(n)`, and gets a fresh `Snapshot`, after which events follow on without a gap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType

import trio

from swimcluster.events import Event, EventsLost, Snapshot
from swimcluster.member import Member


class Subscription:
    """An asynchronous iterator of events; the first item is a `Snapshot`. Use it as `async with`.

    Iteration ends when the subscription or the cluster is closed.
    """

    def __init__(
        self,
        members: Callable[[], tuple[Member, ...]],
        on_close: Callable[[Subscription], None],
        *,
        events_max: int,
    ) -> None:
        self._members = members
        self._on_close = on_close
        self._events_max = events_max
        # Taken now, so that every event from here on follows it.
        self._queue: deque[Event] = deque([Snapshot(members())])
        self._lost = 0
        self._closed = False
        self._readers = trio.lowlevel.ParkingLot()

    def put(self, event: Event) -> None:
        """Queue an event or count it as lost; never waits."""
        if self._closed:
            return
        if self._lost or len(self._queue) >= self._events_max:
            self._lost += 1
            return
        self._queue.append(event)
        self._readers.unpark_all()

    def put_back(self, event: Event) -> None:
        """Make an event the next one again, for a reader that took it and was cancelled before it could use it."""
        if not self._closed:
            self._queue.appendleft(event)
            self._readers.unpark_all()

    def close(self) -> None:
        """End the iteration, dropping what is queued."""
        if not self._closed:
            self._closed = True
            self._queue.clear()
            self._readers.unpark_all()
            self._on_close(self)

    async def __aenter__(self) -> Subscription:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Event:
        # The checkpoint comes first: nothing may happen between taking an event and giving it to the reader.
        await trio.lowlevel.checkpoint()
        while not self._closed:
            event = self._take()
            if event is not None:
                return event
            await self._readers.park()
        raise StopAsyncIteration

    def _take(self) -> Event | None:
        if self._queue:
            return self._queue.popleft()
        if self._lost:
            lost, self._lost = self._lost, 0
            self._queue.append(Snapshot(self._members()))
            return EventsLost(lost)
        return None

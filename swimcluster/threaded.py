"""The same cluster for programs that do not run on trio: plain threads, or asyncio.

    with threaded.open_cluster(config) as cluster:                       # threads; waits take `timeout_s`
    async with threaded.open_asyncio_cluster(config) as cluster:         # asyncio; use asyncio.timeout

The protocol runs on trio in one thread of its own. Calls are handed over to it and are safe from any thread; what
they return is frozen. Errors are those of `swimcluster.errors`, and TimeoutError where `timeout_s` ran out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import wait as wait_for_futures
from types import TracebackType
from typing import Any

import trio

from swimcluster.address import Address
from swimcluster.config import Config
from swimcluster.errors import ClosedError
from swimcluster.events import Event
from swimcluster.member import Member
from swimcluster.subscription import Subscription
from swimcluster.thread_face import ThreadSafeCluster
from swimcluster.transmits import LeaveProgress
from swimcluster.trio_thread import TrioThread, awaited, close_subscription, next_event, result_of

HANDLERS_MAX = 64
"""Threads of one cluster that answer requests at once, those of handlers given up on among them."""
MembersPredicate = Callable[[tuple[Member, ...]], bool]


# Threads --------------------------------------------------------------------------------------------------------


class ThreadedCluster(ThreadSafeCluster):
    """A cluster for threads. Made by `open_cluster`."""

    def wait_for(self, predicate: MembersPredicate, *, timeout_s: float | None = None) -> tuple[Member, ...]:
        """Wait until the live members satisfy `predicate`, which runs on the cluster's thread and must be quick."""
        return result_of(self._thread.begin(lambda cluster: cluster.wait_for(predicate)), timeout_s)

    def join(self, seeds: Sequence[Address | str], *, timeout_s: float | None = None) -> Address:
        """Add seeds and try all now; see `Cluster.join`."""
        return result_of(self._thread.begin(lambda cluster: cluster.join(seeds)), timeout_s)

    def leave(self, *, timeout_s: float | None = None) -> LeaveProgress:
        """Tell the others that this node leaves; see `Cluster.leave`."""
        return result_of(self._thread.begin(lambda cluster: cluster.leave()), timeout_s)

    def request(self, name: str, payload: bytes, *, timeout_s: float | None = None) -> bytes:
        """Ask a live member something; see `Cluster.request`."""
        return result_of(self._thread.begin(lambda cluster: cluster.request(name, payload)), timeout_s)

    def subscribe(self) -> ThreadedSubscription:
        """Return a stream of events: `with cluster.subscribe() as events: for event in events`."""
        return ThreadedSubscription(self._thread, self._thread.ask(lambda cluster: cluster.subscribe()))


class ThreadedSubscription:
    """Events for a thread; the first is a `Snapshot`. Iteration ends when the cluster closes."""

    def __init__(self, thread: TrioThread, subscription: Subscription) -> None:
        self._thread = thread
        self._subscription = subscription

    def get(self, *, timeout_s: float | None = None) -> Event:
        """Wait for the next event.

        Raises:
            TimeoutError: none came in time; none was lost.
            ClosedError: the cluster or the subscription is closed.
        """
        return result_of(next_event(self._thread, self._subscription), timeout_s)

    def __enter__(self) -> ThreadedSubscription:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        close_subscription(self._thread, self._subscription)

    def __iter__(self) -> Iterator[Event]:
        with contextlib.suppress(ClosedError):
            while True:
                yield self.get()


@contextlib.contextmanager
def open_cluster(
    config: Config, *, on_request: Callable[[str, bytes], bytes] | None = None, **options: Any
) -> Iterator[ThreadedCluster]:
    """Take part in a cluster until the body ends; the thread-safe face of `swimcluster.open_cluster`.

    Args:
        on_request: answers what members ask; called in worker threads.
        options: further ones of `swimcluster.open_cluster`.
    """

    # Of their own: handlers that hang must not keep the disk and the resolver waiting for a thread.
    limiter = trio.CapacityLimiter(HANDLERS_MAX)

    async def answer(sender: str, payload: bytes) -> bytes:
        assert on_request is not None
        return await trio.to_thread.run_sync(on_request, sender, payload, abandon_on_cancel=True, limiter=limiter)

    thread = TrioThread(config, {**options, "on_request": None if on_request is None else answer})
    try:
        awaited(thread.started)
    except BaseException:  # Ctrl-C above all: nobody else would end the member.
        thread.stop()
        wait_for_futures([thread.ended])
        raise
    try:
        yield ThreadedCluster(thread)
    finally:
        thread.stop()
        thread.ended.result()


# asyncio --------------------------------------------------------------------------------------------------------


class AsyncioCluster(ThreadSafeCluster):
    """A cluster for asyncio. Made by `open_asyncio_cluster`. Calls that do not wait block the loop for microseconds."""

    async def wait_for(self, predicate: MembersPredicate) -> tuple[Member, ...]:
        """Wait until the live members satisfy `predicate`, which runs on the cluster's thread and must be quick."""
        return await asyncio.wrap_future(self._thread.begin(lambda cluster: cluster.wait_for(predicate)))

    async def join(self, seeds: Sequence[Address | str]) -> Address:
        """Add seeds and try all now; see `Cluster.join`."""
        return await asyncio.wrap_future(self._thread.begin(lambda cluster: cluster.join(seeds)))

    async def leave(self) -> LeaveProgress:
        """Tell the others that this node leaves; see `Cluster.leave`."""
        return await asyncio.wrap_future(self._thread.begin(lambda cluster: cluster.leave()))

    async def request(self, name: str, payload: bytes) -> bytes:
        """Ask a live member something; see `Cluster.request`."""
        return await asyncio.wrap_future(self._thread.begin(lambda cluster: cluster.request(name, payload)))

    def subscribe(self) -> AsyncioSubscription:
        """Return a stream of events: `async with cluster.subscribe() as events: async for event in events`."""
        return AsyncioSubscription(self._thread, self._thread.ask(lambda cluster: cluster.subscribe()))


class AsyncioSubscription:
    """Events for an asyncio task; the first is a `Snapshot`. Iteration ends when the cluster closes."""

    def __init__(self, thread: TrioThread, subscription: Subscription) -> None:
        self._thread = thread
        self._subscription = subscription

    async def __aenter__(self) -> AsyncioSubscription:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        close_subscription(self._thread, self._subscription)

    def __aiter__(self) -> AsyncioSubscription:
        return self

    async def __anext__(self) -> Event:
        future = next_event(self._thread, self._subscription)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                event = future.result()  # it came in just as this task was cancelled
                self._thread.ask(lambda _: self._subscription.put_back(event))
            raise
        except ClosedError:
            raise StopAsyncIteration from None


@contextlib.asynccontextmanager
async def open_asyncio_cluster(
    config: Config, *, on_request: Callable[[str, bytes], Awaitable[bytes]] | None = None, **options: Any
) -> AsyncIterator[AsyncioCluster]:
    """Take part in a cluster until the body ends; the asyncio face of `swimcluster.open_cluster`.

    Args:
        on_request: answers what members ask; runs on this asyncio loop.
        options: further ones of `swimcluster.open_cluster`.
    """
    loop = asyncio.get_running_loop()

    async def on_this_loop(sender: str, payload: bytes) -> bytes:
        assert on_request is not None
        return await on_request(sender, payload)

    async def answer(sender: str, payload: bytes) -> bytes:
        token = trio.lowlevel.current_trio_token()
        done = trio.Event()
        future = asyncio.run_coroutine_threadsafe(on_this_loop(sender, payload), loop)
        future.add_done_callback(lambda _: token.run_sync_soon(done.set))
        try:
            await done.wait()
        finally:
            future.cancel()
        return future.result()

    thread = TrioThread(config, {**options, "on_request": None if on_request is None else answer})
    try:
        await asyncio.wrap_future(thread.started)
    except BaseException:  # Cancelled above all: nobody else would end the member.
        thread.stop()
        await asyncio.wait([asyncio.wrap_future(thread.ended)])
        raise
    try:
        yield AsyncioCluster(thread)
    finally:
        thread.stop()
        await asyncio.shield(asyncio.wrap_future(thread.ended))

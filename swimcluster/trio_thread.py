"""One thread that runs a cluster on trio and carries calls to it from other threads and loops."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import Any, TypeVar

import trio

from swimcluster.cluster import Cluster, open_cluster
from swimcluster.config import Config
from swimcluster.errors import ClosedError
from swimcluster.events import Event
from swimcluster.subscription import Subscription

T = TypeVar("T")
HEED_S = 0.5
"""A thread that waits looks this often whether it was interrupted."""
CLOSED = "the cluster is closed: it ends with the body of its `with`"
FORKED = "the cluster stayed with the process that opened it: open another one after a fork"


class TrioThread:
    """One thread that runs a cluster on trio and carries calls to it."""

    def __init__(self, config: Config, options: dict[str, Any]) -> None:
        self.started: Future[None] = Future()
        """Done when the cluster is open; holds the error when it could not be opened."""
        self.ended: Future[None] = Future()
        """Done when it is closed; holds the error that ended it before its time."""
        self.name = config.name
        self._config = config
        self._options = options
        self._token: trio.lowlevel.TrioToken | None = None
        self._cluster: Cluster | None = None
        self._nursery: trio.Nursery | None = None
        self._process = os.getpid()
        self._scope = trio.CancelScope()
        self._is_stopped = False
        # A daemon, so that a program which forgets to close can still end.
        threading.Thread(target=self._run, name=f"swimcluster {self.name}", daemon=True).start()

    def stop(self) -> None:
        """Begin to leave and close, also while it is being opened; `ended` tells when that is done."""
        if self._process != os.getpid():
            _set(self.ended.set_result, None)  # The thread is not in this process, and nothing of it to wait for.
            return
        self._is_stopped = True
        if self._token is not None:
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._scope.cancel)

    def ask(self, function: Callable[[Cluster], T]) -> T:
        """Run a function that does not wait on the cluster's thread and return what it returns.

        Raises:
            ClosedError: the cluster is closed.
        """
        self._check_process()
        try:
            return trio.from_thread.run_sync(self._call, function, trio_token=self._token)
        except trio.RunFinishedError:
            raise ClosedError(CLOSED) from None

    def begin(
        self, function: Callable[[Cluster], Awaitable[T]], on_unwanted: Callable[[T], None] | None = None
    ) -> Future[T]:
        """Start a function that waits; cancelling the future cancels it.

        Args:
            on_unwanted: takes, on the cluster's thread, a result whose future was cancelled a moment too late.
        """
        self._check_process()
        future: Future[T] = Future()

        def start() -> None:
            # It must not raise: that would end all of trio. The future may be cancelled by now, and a nursery takes
            # no more tasks once its last one has ended, a moment before it is left.
            with contextlib.suppress(RuntimeError):
                if self._nursery is not None:
                    self._nursery.start_soon(self._wait, function, future, on_unwanted)
                    return
            _set(future.set_exception, ClosedError(CLOSED))

        try:
            assert self._token is not None
            self._token.run_sync_soon(start)
        except trio.RunFinishedError:
            future.set_exception(ClosedError(CLOSED))
        return future

    def _check_process(self) -> None:
        if self._process != os.getpid():
            raise ClosedError(FORKED)

    def _call(self, function: Callable[[Cluster], T]) -> T:
        if self._cluster is None:
            raise ClosedError(CLOSED)
        return function(self._cluster)

    async def _wait(
        self,
        function: Callable[[Cluster], Awaitable[T]],
        future: Future[T],
        on_unwanted: Callable[[T], None] | None,
    ) -> None:
        token = trio.lowlevel.current_trio_token()
        scope = trio.CancelScope()

        def cancel_if_cancelled(done: Future[T]) -> None:
            if done.cancelled():
                with contextlib.suppress(trio.RunFinishedError):
                    token.run_sync_soon(scope.cancel)

        future.add_done_callback(cancel_if_cancelled)
        try:
            with scope:
                assert self._cluster is not None
                result = await function(self._cluster)
        except trio.Cancelled:
            _set(future.set_exception, ClosedError(CLOSED))
            raise
        except Exception as error:  # noqa: BLE001 - it belongs to the caller in the other thread
            _set(future.set_exception, error)
        else:
            if not scope.cancelled_caught and not _set(future.set_result, result) and on_unwanted is not None:
                on_unwanted(result)

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:  # noqa: BLE001 - it belongs to the program's thread
            if _set(self.started.set_exception, error):
                self.ended.set_result(None)
            else:
                self.ended.set_exception(error)
        else:
            _set(self.started.set_exception, ClosedError(CLOSED))
            self.ended.set_result(None)

    async def _main(self) -> None:
        # In this order, as `stop` writes and reads them in the other: one of the two sees what the other did.
        self._token = trio.lowlevel.current_trio_token()
        if self._is_stopped:
            self._scope.cancel()
        with self._scope:
            async with open_cluster(self._config, **self._options) as cluster:
                try:
                    async with trio.open_nursery() as nursery:
                        self._cluster, self._nursery = cluster, nursery
                        _set(self.started.set_result, None)
                        await trio.sleep_forever()
                finally:
                    self._cluster = self._nursery = None


def awaited(future: Future[T], timeout_s: float | None = None) -> T:
    """The outcome of a future, waited for in short pieces.

    A Ctrl-C that comes just before a thread falls asleep, or is handed to another thread, does not wake it: Python looks
    again whenever the wait ends.

    Raises:
        TimeoutError: there was none in time.
    """
    until = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left = until - time.monotonic()
        try:
            return future.result(max(0.0, min(left, HEED_S)))
        except TimeoutError:
            if future.done():  # it came in between, or is such an error itself
                return future.result()
            if left <= HEED_S:
                raise


def result_of(future: Future[T], timeout_s: float | None) -> T:
    try:
        return awaited(future, timeout_s)
    except TimeoutError:
        if future.cancel() or not future.done():
            raise TimeoutError(f"no outcome within timeout_s = {timeout_s:g}; this call was given up") from None
        return future.result()  # it came in just as the time ran out
    except CancelledError:
        raise ClosedError(CLOSED) from None


def next_event(thread: TrioThread, subscription: Subscription) -> Future[Event]:
    async def take(_: Cluster) -> Event:
        try:
            return await anext(subscription)
        except StopAsyncIteration:
            raise ClosedError(CLOSED) from None

    return thread.begin(take, on_unwanted=subscription.put_back)


def close_subscription(thread: TrioThread, subscription: Subscription) -> None:
    with contextlib.suppress(ClosedError):
        thread.ask(lambda _: subscription.close())


def _set(setter: Callable[[T], None], value: T) -> bool:
    """Complete a future; False when its reader has cancelled it meanwhile."""
    try:
        setter(value)
    except InvalidStateError:
        return False
    return True

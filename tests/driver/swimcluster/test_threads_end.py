"""However a threaded or asyncio cluster is opened, left, used late or forked, it ends, and whoever waits is told."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import trio

from swimcluster import Address, ClosedError, Config
from swimcluster.threaded import open_asyncio_cluster, open_cluster
from swimcluster.trio_thread import awaited
from tests.fakes.patience import PATIENT, WAIT_S

ANYWHERE = Address("127.0.0.1", 0)


def config(name: str, *seeds: Address, **overrides: Any) -> Config:
    return Config.local(name=name, bind=ANYWHERE, seeds=seeds, insecure=True, **PATIENT | overrides)


def runs(name: str) -> bool:
    """Whether the thread of a member does not come to its end."""
    for thread in threading.enumerate():
        if thread.name == f"swimcluster {name}":
            thread.join(WAIT_S)
            return thread.is_alive()
    return False


HANDLERS_AT_ONCE = 8
FOREVER_S = 120.0
"""A wait that would outlast what is waited for here."""


@pytest.fixture
def silent_seed() -> Iterator[socket.socket]:
    """A seed that says nothing to whom it accepts: opening waits for it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_ctrl_c_while_a_cluster_is_opened_leaves_no_member_behind(silent_seed: socket.socket) -> None:
    callers: list[socket.socket] = []

    def interrupt() -> None:
        callers.append(silent_seed.accept()[0])  # from here on it is being opened, and waits
        os.kill(os.getpid(), signal.SIGINT)

    settings = config("a", Address(*silent_seed.getsockname()), exchange_timeout_s=FOREVER_S)
    interrupter = threading.Thread(target=interrupt)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - nothing may come between
        interrupter.start()
        with open_cluster(settings, join_wait_s=FOREVER_S):
            pytest.fail("it was opened")
    assert time.monotonic() - began < FOREVER_S / 2
    assert not runs("a")
    interrupter.join(WAIT_S)
    for caller in callers:
        caller.close()


def test_ctrl_c_that_wakes_another_thread_ends_a_wait_too() -> None:
    future: Future[None] = Future()
    go, over = threading.Event(), threading.Event()

    def interrupt() -> None:
        go.wait(WAIT_S)
        os.kill(os.getpid(), signal.SIGINT)
        if not over.wait(WAIT_S):
            future.set_result(None)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - nothing may come between
            go.set()
            awaited(future)
        assert not future.done()
    finally:
        over.set()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        interrupter.join(WAIT_S)


@pytest.mark.parametrize("timeout_s", [0.0, 0.01])
def test_a_wait_ends_in_time_and_gives_what_is_there(timeout_s: float) -> None:
    with pytest.raises(TimeoutError):
        awaited(Future[None](), timeout_s)
    done: Future[int] = Future()
    done.set_result(3)
    assert awaited(done, timeout_s) == 3
    failed: Future[int] = Future()
    failed.set_exception(TimeoutError("its own"))
    with pytest.raises(TimeoutError, match="its own"):
        awaited(failed, timeout_s)


def test_a_cancelled_asyncio_opening_leaves_no_member_behind(silent_seed: socket.socket) -> None:
    settings = config("b", Address(*silent_seed.getsockname()), exchange_timeout_s=FOREVER_S)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3), open_asyncio_cluster(settings, join_wait_s=FOREVER_S):
                pytest.fail("it was opened")

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < FOREVER_S / 2
    assert not runs("b")


@pytest.mark.parametrize("turn", range(10))
def test_calls_from_other_threads_while_it_closes_get_an_error_and_do_not_end_trio(turn: int) -> None:
    is_over = False
    odd: list[BaseException] = []

    def call() -> None:
        while not is_over:
            try:
                cluster.wait_for(lambda members: False, timeout_s=0)
            except (TimeoutError, ClosedError):
                time.sleep(0.0003)
            except BaseException as error:  # noqa: BLE001 - what it must not be
                odd.append(error)

    threads = [threading.Thread(target=call, daemon=True) for _ in range(3)]
    with open_cluster(config("c", leave_timeout_s=0)) as cluster:
        for thread in threads:
            thread.start()
        time.sleep(0.02 + turn / 1000)
    time.sleep(0.01)
    is_over = True
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert odd == []


def test_after_a_fork_the_child_is_told_and_may_leave_the_body() -> None:
    with open_cluster(config("d")) as cluster:
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # it would hang without the check
            status = 1
            try:
                cluster.members  # noqa: B018
            except ClosedError:
                try:
                    cluster.wait_for(lambda members: True)
                except ClosedError:
                    status = 0
            cluster._thread.stop()
            cluster._thread.ended.result()
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert [member.name for member in cluster.members] == ["d"]


def test_handlers_that_hang_leave_threads_for_the_disk_and_the_resolver() -> None:
    release = threading.Event()
    hanging = threading.Semaphore(0)

    def hang(sender: str, payload: bytes) -> bytes:
        hanging.release()
        release.wait(WAIT_S)
        return b"at last"

    with open_cluster(config("e"), on_request=hang) as e, open_cluster(config("f", e.local.address)) as f:
        f.wait_for(lambda members: len(members) == 2, timeout_s=WAIT_S)
        threads = [threading.Thread(target=f.request, args=("e", b"?")) for _ in range(HANDLERS_AT_ONCE)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert hanging.acquire(timeout=WAIT_S)
        borrowed = e._thread.ask(lambda _: trio.to_thread.current_default_thread_limiter().borrowed_tokens)
        release.set()
        for thread in threads:
            thread.join()
        assert borrowed == 0

"""The engine process: `python -m saiserve.engines.llamacpp.process FD`, started by a supervisor only.

Reads and writes frames on the inherited socket FD. Ends at once when the other side is gone, even inside native code.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time

import msgspec

from saiserve import limits
from saiserve.engines.frames import FrameDecoder, FrameError, encode_frame
from saiserve.engines.llamacpp.cores import threads_for, waiting_environment
from saiserve.engines.llamacpp.heap import map_large_blocks
from saiserve.engines.llamacpp.inbox import Inbox
from saiserve.engines.llamacpp.protocol import Configure, EngineLoadError, Loaded, LoadFailed, Loading, ToProcess
from saiserve.engines.messages import Failed, FailureKind

READ_BYTES = 256 * 1024
LOADING_REPORT_S = 0.5
EXIT_ORPHANED, EXIT_LOAD_FAILED, EXIT_PROTOCOL = 3, 4, 5
NICENESS = 5
"""Added to the node's, so that its event loop comes first."""
IDLE_STEP_S = 0.05
"""Pause when there is work that cannot be computed now."""


class Channel:
    """Frames over the socket, from one thread. A full socket blocks writing: the node always reads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._decoder: FrameDecoder[ToProcess] = FrameDecoder(ToProcess)
        self._wake_out, self._wake_in = os.pipe()
        os.set_blocking(self._wake_out, False)
        os.set_blocking(self._wake_in, False)

    def wake(self) -> None:
        """End a wait; callable from any thread."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_in, b"\x00")

    def send(self, messages: list[msgspec.Struct]) -> None:
        """Write messages as one block of bytes."""
        if messages:
            self._connection.sendall(b"".join(map(framed, messages)))

    def receive(self, timeout_s: float) -> list[ToProcess]:
        """Messages that have come; waits up to `timeout_s` for the first. EOFError when the node is gone."""
        waited: list[socket.socket | int] = [self._connection, self._wake_out]
        readable, _, _ = select.select(waited, [], [], timeout_s)
        if self._wake_out in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_out, 4096)
        if self._connection not in readable:
            return []
        data = self._connection.recv(READ_BYTES)
        if not data:
            raise EOFError
        return self._decoder.feed(data)


def framed(message: msgspec.Struct) -> bytes:
    """A message as it is sent; an answer that is too long for one fails its request alone."""
    try:
        return encode_frame(message)
    except FrameError as error:
        return encode_frame(Failed(getattr(message, "id", ""), FailureKind.INTERNAL, str(error)))


def watch_parent(connection: socket.socket) -> None:
    """End this process as soon as the other end of the socket closes; llama_decode gives other threads the GIL."""
    poller = select.poll()
    poller.register(connection, select.POLLRDHUP | select.POLLHUP | select.POLLERR)

    def watch() -> None:
        poller.poll()
        os._exit(EXIT_ORPHANED)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def serve(channel: Channel) -> int:
    """Load as told, then work until told to stop. Returns the exit status."""
    first = channel.receive(limits.HEARTBEAT_LOST_S)
    if not first or not isinstance(first[0], Configure):
        return EXIT_PROTOCOL
    settings = first[0].settings
    os.nice(NICENESS)
    map_large_blocks()
    os.environ.update(waiting_environment(threads_for(settings.threads), os.environ))
    # Imported late: the module brings llama.cpp in, and the watch above must run before anything can block or crash.
    from saiserve.engines.llamacpp.loading import load_worker

    told_at = 0.0

    def on_progress(fraction: float) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= LOADING_REPORT_S:
            told_at = time.monotonic()
            channel.send([Loading(fraction)])

    channel.send([Loading(0.0)])
    try:
        worker, facts = load_worker(settings, on_progress=on_progress, on_ready=channel.wake)
    except EngineLoadError as error:
        channel.send([LoadFailed(str(error))])
        return EXIT_LOAD_FAILED
    worker.report(time.monotonic_ns())
    channel.send([Loaded(facts), *worker.take_messages()])
    inbox = Inbox()
    inbox.add(first[1:])
    computed = False
    while True:
        idle_s = IDLE_STEP_S if worker.has_work else 0.0 if inbox else limits.HEARTBEAT_S
        wait_s = 0.0 if computed else idle_s
        inbox.add(channel.receive(wait_s))
        if inbox:  # a longer step may follow
            channel.send(worker.take_messages())
        inbox.hand_over(worker, time.monotonic_ns)
        computed = worker.step(time.monotonic_ns())
        if not computed:
            worker.report(time.monotonic_ns())
        channel.send(worker.due_messages(time.monotonic_ns()) if computed else worker.take_messages())


def main() -> int:
    """Entry point."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's ^C is for the node, which stops its engines itself
    connection = socket.socket(fileno=int(sys.argv[1]))
    watch_parent(connection)
    try:
        return serve(Channel(connection))
    except (EOFError, ConnectionError):
        return EXIT_ORPHANED


if __name__ == "__main__":
    # Native threads and models need no farewell: the operating system takes everything back faster.
    status = main()
    sys.stderr.flush()
    os._exit(status)

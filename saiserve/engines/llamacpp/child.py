"""One life of an engine process seen from the node: start it, talk to it, learn why it ended."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import trio

import saiserve
from saiserve.engines.frames import FrameDecoder, FrameError, encode_frame
from saiserve.engines.llamacpp.heap import HUGE_PAGES
from saiserve.engines.llamacpp.protocol import FromProcess
from saiserve.engines.messages import Cancel, FailureKind

logger = logging.getLogger("saiserve.engine")

READ_BYTES = 256 * 1024
WAITING_FRAMES_MAX = 1_024
"""Requests handed over but not yet read by the process."""
ERROR_LINES_MAX = 20
ERROR_LINE_BYTES_MAX = 2_000
WATCH_TICKS = 12
"""A silence is counted in so many parts, each at most as long as it was to be: time in which the node itself stood still is none."""
END_S = 5.0
"""Time for a process to end once its socket is closed, before it is killed."""

PASSED_NAMES = frozenset({"PATH", "HOME", "LANG", "TZ", "TMPDIR", "USER", "LOGNAME", "VIRTUAL_ENV", "GLIBC_TUNABLES"})
PASSED_PREFIXES = (
    "LC_", "LD_LIBRARY", "PYTHON", "OMP_", "GOMP_", "KMP_", "GGML_", "LLAMA_", "CUDA_", "NVIDIA_", "HIP_", "ROCR_",
    "HSA_", "VK_", "XDG_", "COVERAGE_",
)  # fmt: skip
"""What of the node's environment the engine sees: nothing that could be a secret."""


class Child:
    """A running engine process. Made by `open_child`."""

    def __init__(self, process: trio.Process, stream: trio.SocketStream, name: str) -> None:
        self._process = process
        self._stream = stream
        self._name = name
        self._decoder: FrameDecoder[FromProcess] = FrameDecoder(FromProcess)
        self._waiting: deque[bytes] = deque()
        self._more = trio.Event()
        self._errors: deque[str] = deque(maxlen=ERROR_LINES_MAX)
        self._rest = b""
        self._heard_at = 0.0
        self._is_silent = False

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def send(self, message: msgspec.Struct) -> bool:
        """Hand a message over without waiting; False when too many wait already (a cancel always fits).

        Raises:
            FrameError: the message is too long; nothing was sent.
        """
        if len(self._waiting) >= WAITING_FRAMES_MAX and not isinstance(message, Cancel):
            return False
        self._waiting.append(encode_frame(message))
        self._more.set()
        return True

    async def run(self, receive: Callable[[FromProcess], None], silence_s: float) -> FailureKind:
        """Carry messages both ways until the process ends; HANG when it was killed for `silence_s` of silence."""
        kind = FailureKind.CRASH
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            nursery.start_soon(self._collect_errors)
            nursery.start_soon(self._watch, silence_s, nursery.cancel_scope)
            kind = await self._read(receive)
            nursery.cancel_scope.cancel()
        return kind if not self._is_silent else FailureKind.HANG

    async def _watch(self, silence_s: float, scope: trio.CancelScope) -> None:
        """End it all after a silence. Beside the reading, which has every token to bring and no time for deadlines."""
        self._heard_at = heard_at = trio.current_time()
        silent_s = 0.0
        while silent_s < silence_s:
            before = trio.current_time()
            await trio.sleep(silence_s / WATCH_TICKS)
            # A longer sleep than asked for: this process was stopped too, and what the child said may lie unread.
            silent_s += min(trio.current_time() - before, silence_s / WATCH_TICKS)
            if self._heard_at != heard_at:
                heard_at = self._heard_at
                silent_s = max(0.0, trio.current_time() - heard_at)
        self._is_silent = True
        self.kill()
        scope.cancel()

    async def _read(self, receive: Callable[[FromProcess], None]) -> FailureKind:
        while True:
            data = await self._receive()
            if not data:
                return FailureKind.CRASH
            self._heard_at = trio.current_time()
            try:
                messages = self._decoder.feed(data)
            except FrameError:
                logger.exception("engine %s does not speak our protocol", self._name)
                self.kill()
                return FailureKind.CRASH
            for message in messages:
                receive(message)

    async def _receive(self) -> bytes:
        """What has come; nothing at the end. Tokens come a few at a time, and a stream would first look for them in vain."""
        while True:
            await trio.lowlevel.wait_readable(self._stream.socket)
            try:
                return os.read(self._stream.socket.fileno(), READ_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                return b""

    async def _write(self) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            while True:
                while self._waiting:
                    await self._stream.send_all(self._waiting.popleft())
                self._more = trio.Event()
                await self._more.wait()

    async def _collect_errors(self) -> None:
        assert self._process.stderr is not None
        async for data in self._process.stderr:
            self._hear(data)

    def _hear(self, data: bytes | bytearray) -> None:
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:ERROR_LINE_BYTES_MAX]
        for line in lines:
            text = line[:ERROR_LINE_BYTES_MAX].decode("utf-8", "replace")
            self._errors.append(text)
            logger.debug("engine %s: %s", self._name, text)

    def _hear_unread(self) -> None:
        """Take what lies in the pipe, which is smaller than one read."""
        assert isinstance(self._process.stderr, trio.lowlevel.FdStream)
        with contextlib.suppress(OSError):
            self._hear(os.read(self._process.stderr.fileno(), READ_BYTES))

    def forget_errors(self) -> None:
        """The model is loaded: what was said until now, warnings mostly, is not what a later end comes from."""
        self._hear_unread()
        self._errors.clear()

    def kill(self) -> None:
        """End the process now."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def ended(self) -> str:
        """Wait for the end and say how it came, in half a sentence."""
        with trio.move_on_after(END_S):
            await self._process.wait()
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self._hear_unread()
        return describe_end(self._process.returncode, list(self._errors))


@contextlib.asynccontextmanager
async def open_child(name: str) -> AsyncIterator[Child]:
    """Start a fresh interpreter with one end of a socketpair; on leaving, it ends at once.

    Never by fork: a forked child of a process that has used OpenMP hangs. Only the one socket is inherited.
    """
    ours, theirs = socket.socketpair()
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(ours.close)
        with theirs:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-m", "saiserve.engines.llamacpp.process", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                env=passed_environment(dict(os.environ)),
                start_new_session=True,
            )
        cleanup.pop_all()
    ours.setblocking(False)
    child = Child(process, trio.SocketStream(trio.socket.from_stdlib_socket(ours)), name)
    try:
        yield child
    finally:
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(child._stream)  # noqa: SLF001
            await child.ended()
            assert process.stderr is not None
            await process.stderr.aclose()


def passed_environment(environment: dict[str, str]) -> dict[str, str]:
    """What the engine process is given of an environment."""
    passed = {
        name: value for name, value in environment.items() if name in PASSED_NAMES or name.startswith(PASSED_PREFIXES)
    }
    passed.setdefault(*HUGE_PAGES)
    root = str(Path(saiserve.__file__).parent.parent)
    passed["PYTHONPATH"] = os.pathsep.join(filter(None, [root, passed.get("PYTHONPATH", "")]))
    return passed


def describe_end(status: int | None, errors: list[str]) -> str:
    """A process's end in words, with the last thing it said."""
    if status is None:
        how = "did not end"
    elif status < 0:
        try:
            how = f"was ended by {signal.Signals(-status).name}"
        except ValueError:
            how = f"was ended by signal {-status}"
    else:
        how = f"ended with status {status}"
    said = next((line for line in reversed(errors) if line.strip()), "")
    return f"the engine process {how}" + (f" ({said.strip()})" if said else "")

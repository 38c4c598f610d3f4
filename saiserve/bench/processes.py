"""Starts what is measured: a node of ours and, if its binary is named, a llama-server on the same file."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

import trio

from saiserve.bench.client import AnswerError, Client
from saiserve.bench.ports import free_port

READY_S = 600.0
"""Longest time until a server answers: a large model is read from disk, and measured."""
STOP_S = 10.0
POLL_S = 0.05
LOG_BYTES = 2_000
PASSED = ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH", "XDG_CACHE_HOME", "VIRTUAL_ENV")


def stop_like_ctrl_c() -> None:
    """Have SIGTERM and SIGHUP end this program as Ctrl-C does, so that the servers it has started end with it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin with it ignored
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))


@asynccontextmanager
async def our_node(model: str, settings: Mapping[str, str]) -> AsyncIterator[Client]:
    """`saiserve node` with this model (an id), by itself, on loopback; `settings` are its others.

    Raises:
        AnswerError: it ended or did not get ready; the message ends with what it said last.
    """
    port, key = free_port(), secrets.token_urlsafe(24)
    with tempfile.TemporaryDirectory(prefix="saiserve-bench-", ignore_cleanup_errors=True) as folder:
        environment = {
            **settings,
            "HOST": "127.0.0.1",
            "PORT": str(port),
            "NODE_NAME": "bench",
            "API_KEY": key,
            "STATE_DIR": folder,
        }
        command = [sys.executable, "-m", "saiserve.cli", "node"]
        async with _process(command, environment, Path(folder)) as running:
            client = Client(port, model, key)
            await running.ready(client, "/ready")
            yield client
            client.close()


@asynccontextmanager
async def llama_server(
    binary: Path, path: Path, model: str, *, slots: int, context: int, threads: int, template: str | None
) -> AsyncIterator[Client]:
    """A llama-server on this file with so many slots of `context` tokens together.

    Raises:
        AnswerError: it ended or did not get ready; the message ends with what it said last.
    """
    port, key = free_port(), secrets.token_urlsafe(24)
    with tempfile.TemporaryDirectory(prefix="saiserve-bench-", ignore_cleanup_errors=True) as folder:
        command = [str(binary), "-m", str(path), "--host", "127.0.0.1", "--port", str(port), "--jinja", "--no-ui"]
        command += ["-c", str(context), "-np", str(slots), "-t", str(threads), "-b", "2048", "-ub", "512"]
        command += ["--alias", model]
        if template is not None:
            (Path(folder) / "template.jinja").write_text(template, "utf-8")
            command += ["--chat-template-file", str(Path(folder) / "template.jinja")]
        async with _process(command, {"LLAMA_API_KEY": key}, Path(folder)) as running:
            client = Client(port, model, key)
            await running.ready(client, "/health")
            yield client
            client.close()


class _Running:
    """A server process and its log."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    async def ready(self, client: Client, path: str) -> None:
        """Wait until it answers, then pay what the first requests of a process pay."""
        with trio.move_on_after(READY_S):
            while self.process.poll() is None:
                try:
                    await client.ask("GET", path)
                except (OSError, AnswerError):
                    await trio.sleep(POLL_S)
                    continue
                client.close()  # a server that was loading a moment ago may end the connection it said so on
                for _ in range(2):
                    await client.chat([{"role": "user", "content": "Say something to begin with."}], 16)
                return
        said = self._log.read_text("utf-8", "replace")[-LOG_BYTES:]
        raise AnswerError(f"{self.process.args!r} is not ready (exit {self.process.poll()}):\n{said}")


@asynccontextmanager
async def _process(command: Sequence[str], settings: Mapping[str, str], folder: Path) -> AsyncIterator[_Running]:
    """A child with its output in a file; it is gone afterwards."""
    environment = {**{name: os.environ[name] for name in PASSED if name in os.environ}, **settings}
    with (folder / "log").open("wb") as log:
        process = _started(command, environment, folder, log)
    try:
        yield _Running(process, folder / "log")
    finally:
        with trio.CancelScope(shield=True):
            process.terminate()
            try:
                await trio.to_thread.run_sync(process.wait, STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                await trio.to_thread.run_sync(process.wait)


@trio.lowlevel.enable_ki_protection
def _started(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, log: BinaryIO
) -> subprocess.Popen[bytes]:
    """Start it whole: an interrupt that comes meanwhile, with the child begun and not yet known, comes a moment later."""
    return subprocess.Popen(  # noqa: S603  # the command is ours
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=folder
    )

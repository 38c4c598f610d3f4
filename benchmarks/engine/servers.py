"""Both servers as processes of their own, set alike: one `saiserve node` and one llama-server on the same weights."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from acceptance.nodes import API_KEY, CLUSTER_SECRET, Node, default_model_dir, fleet, free_port
from benchmarks.engine.client import AnswerError, Client
from saiserve.models.catalog import builtin_catalog
from saiserve.models.store import ModelStore

MODELS = {"smol": "smollm2-135m", "gemma": "gemma-3-270m"}
"""Short names in rows to catalog ids."""
PEER = Path(__file__).parents[2] / ".peers" / "bin" / "llama-server"
"""Built by `make peers`."""
CONTEXT = 32_768
"""llama-server's cells in all, divided among its slots."""
READY_S = 120.0
PEER_KEY = "benchmark"


class PeerMissingError(Exception):
    """There is no llama-server to measure beside."""


@dataclass(frozen=True)
class Setup:
    """How both are started."""

    model: str
    """smol or gemma."""
    slots: int = 16
    threads: int = 2
    lanes: int | None = None
    """Our lanes where they are not to be llama-server's slots; 0: measured by the node."""
    cache_mib: int = 0
    """Our host memory for parked prefixes; 0: the node's default."""


@dataclass
class Ours:
    """A running node of ours."""

    client: Client
    node: Node

    async def metrics(self) -> dict[str, float]:
        """The node's metrics, summed over labels."""
        operator = Client(self.node.port, "", CLUSTER_SECRET)
        text = (await operator.ask("GET", "/metrics")).decode()
        operator.close()
        sums: dict[str, float] = {}
        for line in text.splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                name = name.partition("{")[0]
                sums[name] = sums.get(name, 0.0) + float(value)
        return sums


@asynccontextmanager
async def ours(setup: Setup) -> AsyncIterator[Ours]:
    """A node of ours, ready and warm."""
    lanes = setup.slots if setup.lanes is None else setup.lanes
    environment = {"THREADS": str(setup.threads), "LANES": str(lanes)}
    if setup.cache_mib:
        environment["CACHE_MIB"] = str(setup.cache_mib)
    async with fleet() as group:
        node = await group.start_ready("bench", MODELS[setup.model], seeds="", environment=environment)
        client = Client(node.port, MODELS[setup.model], API_KEY)
        await _warm(client)
        yield Ours(client, node)
        client.close()


@asynccontextmanager
async def theirs(setup: Setup, binary: Path = PEER) -> AsyncIterator[Client]:
    """A llama-server, ready and warm.

    Raises:
        PeerMissingError: the binary is not there.
    """
    if not binary.exists():
        raise PeerMissingError(f"{binary} is missing: run `make peers` (some minutes, once)")
    entry = builtin_catalog().entry(MODELS[setup.model])
    assert entry is not None
    path = await ModelStore(default_model_dir()).locate(entry)
    with tempfile.TemporaryDirectory(prefix="peer-", ignore_cleanup_errors=True) as folder:
        port = free_port()
        command = [str(binary), "-m", str(path), "--host", "127.0.0.1", "--port", str(port), "--jinja", "--no-ui"]
        command += ["-c", str(CONTEXT), "-np", str(setup.slots), "-t", str(setup.threads), "-b", "2048", "-ub", "512"]
        command += ["--api-key", PEER_KEY, "--alias", MODELS[setup.model]]
        template = entry.template_text
        if template is not None:
            template_path = Path(folder) / "template.jinja"
            template_path.write_text(template, "utf-8")
            command += ["--chat-template-file", str(template_path)]
        with (Path(folder) / "log").open("wb") as log:
            environment = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
            process = subprocess.Popen(  # noqa: ASYNC220  # it takes a millisecond
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=folder
            )
        client = Client(port, MODELS[setup.model], PEER_KEY)
        try:
            await _wait_ready(client, process, Path(folder) / "log")
            await _warm(client)
            yield client
        finally:
            client.close()
            process.terminate()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(process.wait)


async def _wait_ready(client: Client, process: subprocess.Popen[bytes], log: Path) -> None:
    with trio.move_on_after(READY_S):
        while process.poll() is None:
            try:
                await client.ask("GET", "/health")
            except (OSError, AnswerError):
                await trio.sleep(0.05)
            else:
                return
    raise AnswerError(
        f"llama-server is not ready (exit {process.poll()}):\n{log.read_text('utf-8', 'replace')[-2000:]}"
    )


async def _warm(client: Client) -> None:
    """What the first request of a process pays, paid before anything is measured."""
    for _ in range(2):
        await client.chat([{"role": "user", "content": "Say something to begin with."}], 16)

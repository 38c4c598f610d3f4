"""Real nodes as child processes on loopback, for acceptance checks, end-to-end tests and benchmarks.

Every process is started here, known by its id and ended here, whatever happens to the caller.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2
import trio

from saiserve.bench.ports import free_port
from swimcluster.address import Address

API_KEY: Final = "acceptance-client-key-0123456789"
CLUSTER_SECRET: Final = "acceptance-cluster-secret-0123456789"
READY_S: Final = 120.0
STOP_S: Final = 40.0
POLL_S: Final = 0.05


class NodeFailedError(AssertionError):
    """A node did not do what it should; the message ends with the tail of its log."""


@dataclass
class Node:
    """One `saiserve node` process."""

    name: str
    port: int
    environment: dict[str, str]
    folder: Path
    process: subprocess.Popen[bytes]
    log: Path
    gone: bool = field(default=False)
    host: str = "127.0.0.1"
    """Where this process reaches it."""

    @property
    def url(self) -> str:
        """Base URL without /v1."""
        return f"http://{self.address}"

    @property
    def address(self) -> str:
        """host:port other nodes use."""
        return str(Address(self.host, self.port))

    def client(self, timeout_s: float = 120.0) -> httpx2.AsyncClient:
        """An HTTP client with the client key."""
        return plain_client(timeout_s, base_url=self.url, headers={"Authorization": f"Bearer {API_KEY}"})

    def log_text(self) -> str:
        """All the node has logged."""
        return self.log.read_text("utf-8", "replace")

    @property
    def operator(self) -> dict[str, str]:
        """The header that opens this node's routes for operators."""
        secret = self.environment["CLUSTER_SECRET"].partition(",")[0]
        return {"X-SAI-Cluster": secret} if secret else {"Authorization": f"Bearer {API_KEY}"}

    async def state(self) -> dict[str, Any]:
        """This node's view of the cluster."""
        async with plain_client(60) as client:
            response = await client.get(f"{self.url}/cluster/state", headers=self.operator)
            response.raise_for_status()
            return dict(response.json())

    async def listens(self) -> bool:
        """Whether its port is open; then it takes signals too."""
        try:
            await (await trio.open_tcp_stream(self.host, self.port)).aclose()
        except OSError:
            return False
        return True

    async def wait_ready(self, timeout_s: float = READY_S) -> None:
        """Wait until the node takes requests.

        Raises:
            NodeFailedError: it ended, or was not ready in time.
        """
        with trio.move_on_after(timeout_s):
            async with plain_client(5) as client:
                while self.process.poll() is None:
                    try:
                        if (await client.get(f"{self.url}/ready")).status_code == 200:
                            return
                    except httpx2.TransportError:
                        pass
                    await trio.sleep(POLL_S)
        raise NodeFailedError(f"{self.name} is not ready (exit {self.process.poll()}):\n{self.log_text()[-2000:]}")

    def signal(self, number: int) -> None:
        """Send one signal to the node itself."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """End the node as a crash would: no goodbye."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    async def stop(self) -> int:
        """Ask the node to end and wait; returns the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            await trio.to_thread.run_sync(self.process.wait, STOP_S, abandon_on_cancel=True)
        except subprocess.TimeoutExpired:
            self.kill()
        return int(self.process.returncode)


@dataclass
class Fleet:
    """Nodes that share secrets, and the folder where their state and logs live."""

    folder: Path
    nodes: list[Node] = field(default_factory=list)

    def start(
        self,
        name: str,
        models: str,
        *,
        port: int | None = None,
        seeds: str | None = None,
        state_dir: Path | None = None,
        environment: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
    ) -> Node:
        """Start a node at `host`. Without `seeds` it joins the first living node of the fleet."""
        port = port or free_port()
        if seeds is None:
            seeds = ",".join(node.address for node in self.nodes if node.process.poll() is None)
        settings = {
            "HOST": host,
            "PORT": str(port),
            "NODE_NAME": name,
            "MODELS": models,
            "API_KEY": f"acceptance:{API_KEY}",
            "CLUSTER_SECRET": CLUSTER_SECRET,
            "CLUSTER_ADVERTISE": str(Address(host, port)),
            "CLUSTER_SEED": seeds,
            "STATE_DIR": str(state_dir or self.folder / f"state-{name}"),
            "MODEL_DIR": os.environ.get("MODEL_DIR", str(default_model_dir())),
            "THREADS": "1",
            **(environment or {}),
        }
        inherited = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "TMPDIR", "PYTHONPATH")}
        log = self.folder / f"{name}-{len(self.nodes)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "saiserve.cli", "node"],
                env={**inherited, **{k: v for k, v in settings.items() if v != ""}},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
            )
        node = Node(name, port, settings, self.folder, process, log, host=host)
        self.nodes.append(node)
        return node

    async def start_ready(self, name: str, models: str, **options: Any) -> Node:
        """Start a node and wait until it takes requests."""
        node = self.start(name, models, **options)
        await node.wait_ready()
        return node


def plain_client(timeout_s: float, **options: Any) -> httpx2.AsyncClient:
    """An HTTP client without TLS, as many connections as are asked for, and `timeout_s` for each silence.

    Making what TLS needs takes 25 ms of a processor, a hundred times a request: whoever looks often, or asks from many
    clients at once, would keep the nodes from their work on a machine with few of them.
    """
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx2.AsyncClient(timeout=timeout_s, limits=limits, verify=False, trust_env=False, **options)


def default_model_dir() -> Path:
    """Where assembled demo models are kept between runs."""
    import platformdirs

    return platformdirs.user_cache_path("saiserve") / "models"


@asynccontextmanager
async def fleet() -> AsyncIterator[Fleet]:
    """A fleet whose processes are all gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="saiserve-", ignore_cleanup_errors=True) as folder:
        group = Fleet(Path(folder))
        try:
            yield group
        finally:
            with trio.CancelScope(shield=True):
                for node in group.nodes:
                    if node.process.poll() is None:
                        node.process.send_signal(signal.SIGTERM)
                async with trio.open_nursery() as nursery:
                    for node in group.nodes:
                        nursery.start_soon(node.stop)

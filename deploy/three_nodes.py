"""Three nodes on loopback: two with SmolLM2, one with Gemma, one engine thread each. Ctrl-C ends them.

The same three commands that three machines would run, with ports in place of hosts: 8081 and the two above it, or the
three that begin with PORT.
"""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from saiserve.auth import parse_client_keys
from saiserve.errors import SettingsError

MODELS = ("smollm2-135m", "smollm2-135m", "gemma-3-270m")
FIRST_PORT = 8081
READY_S = 600
STOP_S = 40
POLL_S = 0.2

EXIT_FAILED = 1
EXIT_SETTINGS = 2

# A node must not outlive this script, even one ended by SIGKILL. 1 is PR_SET_PDEATHSIG; it lasts through exec. A parent
# that ended before the call is no parent any more.
WRAPPER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


@dataclass
class Node:
    """One node's process and what starts it."""

    port: int
    model: str
    settings: dict[str, str]
    process: subprocess.Popen[bytes]
    is_ready: threading.Event = field(default_factory=threading.Event)

    @property
    def ended(self) -> str:
        """How it ended, in words; empty while it runs."""
        code = self.process.poll()
        return "" if code is None else f"the node on port {self.port} ended with exit code {code}"


def main() -> int:
    """Start the nodes, say how to use them, wait, end them."""
    if sys.argv[1:]:
        print(f"{__doc__}\nNo arguments; PORT, API_KEY, CLUSTER_SECRET and STATE_DIR come from the environment.")
        return 0 if sys.argv[1] in ("-h", "--help") else EXIT_SETTINGS
    key = os.environ.get("API_KEY", "").strip(", ") or f"sai-{secrets.token_urlsafe(18)}"
    secret = os.environ.get("CLUSTER_SECRET") or secrets.token_urlsafe(18)
    try:
        shown_key = parse_client_keys(key)[0].secret.decode()
        ports = ports_from(os.environ.get("PORT", ""))
    except SettingsError as error:
        print(error, file=sys.stderr)
        return EXIT_SETTINGS
    # Both, because a shell's `&` starts a script's programs with SIGINT ignored.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    state = Path(os.environ.get("STATE_DIR") or ".state")
    nodes: list[Node] = []
    try:
        for port, model in zip(ports, MODELS, strict=True):
            own = settings(port, model, ports, state)
            nodes.append(start(model, {"API_KEY": key, "CLUSTER_SECRET": secret, **own}))
        fault = wait_ready(nodes)
        if fault:
            print(f"{fault}: see the lines marked with its port above", file=sys.stderr)
            return EXIT_FAILED
        print(usage(shown_key, secret.partition(",")[0].strip(), nodes), flush=True)
        watch(nodes)
    except KeyboardInterrupt:
        print("\nending the nodes: running answers have time to end; Ctrl-C again ends all at once", flush=True)
        return 0
    finally:
        stop(nodes)
    print("all nodes have ended", file=sys.stderr)
    return EXIT_FAILED


def ports_from(text: str) -> tuple[int, ...]:
    """The three ports that begin with PORT, none of them taken.

    Raises:
        SettingsError: PORT is no port with two above it, or one of them is taken.
    """
    last_first = 65_535 - len(MODELS) + 1
    if text and not (text.isascii() and text.isdigit() and 1 <= int(text) <= last_first):
        raise SettingsError(f"PORT is the first of {len(MODELS)} ports, 1 to {last_first}: {text!r} is not")
    first = int(text or FIRST_PORT)
    ports = tuple(range(first, first + len(MODELS)))
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                probe.listen()
            except OSError as error:
                raise SettingsError(
                    f"port {port} cannot be used ({error.strerror}): end what listens there, "
                    f"or name the first of three others: PORT={first + 500 if first < 65_000 else FIRST_PORT} make cluster"
                ) from None
    return ports


def settings(port: int, model: str, ports: tuple[int, ...], state: Path) -> dict[str, str]:
    """What one node is told beside the two secrets."""
    return {
        "HOST": "127.0.0.1",
        "PORT": str(port),
        "MODELS": model,
        "CLUSTER_ADVERTISE": f"127.0.0.1:{port}",
        "CLUSTER_SEED": "" if port == ports[0] else f"127.0.0.1:{ports[0]}",
        "STATE_DIR": str((state / str(port)).resolve()),
        "SAI_ROUTE_LOG": "1",
        "THREADS": "1",
    }


def start(model: str, environment: dict[str, str]) -> Node:
    """Start one node and copy its log to this terminal with its port in front; `usage` stands for its first lines."""
    command = ["-m", "saiserve.cli", "node"]
    if sys.platform == "linux":
        command = ["-c", WRAPPER, str(os.getpid()), *command]
    process = subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    node = Node(int(environment["PORT"]), model, environment, process)

    def copy() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            sys.stdout.write(f"[{node.port}] {line.decode('utf-8', 'replace')}")
            sys.stdout.flush()

    def wait_banner() -> None:
        # A node prints its first lines when it is ready. A request could be answered by somebody else's.
        assert process.stdout is not None
        for _ in process.stdout:
            node.is_ready.set()

    for work in (copy, wait_banner):
        threading.Thread(target=work, daemon=True).start()
    return node


def wait_ready(nodes: list[Node]) -> str:
    """Wait for all nodes at once; says what went wrong, or nothing when all take requests."""
    deadline = time.monotonic() + READY_S
    while True:
        are_ready = all(node.is_ready.is_set() for node in nodes)
        ended = next((node.ended for node in nodes if node.ended), "")
        if ended or are_ready:
            return ended
        if time.monotonic() > deadline:
            late = ", ".join(str(node.port) for node in nodes if not node.is_ready.is_set())
            return f"not ready after {READY_S} s on port {late}"
        time.sleep(POLL_S)


def watch(nodes: list[Node]) -> None:
    """Return when the last node has ended. One node going is a thing to try: the others serve on."""
    running = list(nodes)
    while running:
        time.sleep(POLL_S)
        for node in [node for node in running if node.ended]:
            running.remove(node)
            print(node.ended, flush=True)


def usage(key: str, secret: str, nodes: list[Node]) -> str:
    """What to try, with this run's key and secret."""
    first, second, third = nodes
    chat, story = (f"http://127.0.0.1:{node.port}/v1/chat/completions" for node in (first, third))
    ready_ones = [f"{node.model} on {node.port} (pid {node.process.pid})" for node in nodes]
    again = "\n".join(restart(node, first if node is not first else second) for node in nodes)
    return f"""
Three nodes are ready: {", ".join(ready_ones)}.

# who is there, and what each node serves
curl -sS -H "X-SAI-Cluster: {secret}" http://127.0.0.1:{first.port}/cluster/state

# ask any node for any model
curl -sS {chat} -H "Authorization: Bearer {key}" -H 'Content-Type: application/json' \\
  -d '{{"model":"gemma-3-270m","messages":[{{"role":"user","content":"hi"}}],"max_tokens":32}}'

# four long answers, taken in by the node with the other model; x-sai-route in each reply's head says where it runs
for n in 1 2 3 4; do curl -sSN -o /dev/null -D - -w '%{{size_download}} bytes\\n' {story} \
  -H "Authorization: Bearer {key}" -H 'Content-Type: application/json' \
  -d '{{"model":"smollm2-135m","stream":true,"messages":[{{"role":"user","content":"Tell a long story."}}],"max_tokens":300}}' & done

# meanwhile, kill one of the two nodes that write them: all four go on from the other
kill -9 {second.process.pid}

# start one of them again, each in a terminal of its own (Ctrl-C there ends it)
{again}

Ctrl-C ends all that were started here.
"""


def restart(node: Node, seed: Node) -> str:
    """The command that starts a node again, joining through another."""
    told = {**node.settings, "CLUSTER_SEED": f"127.0.0.1:{seed.port}"}
    words = [f"{name}={shlex.quote(value)}" for name, value in told.items()]
    return " ".join([*words, shlex.quote(sys.executable), "-m saiserve.cli node"])


def stop(nodes: list[Node]) -> None:
    """End all nodes: ask, wait, insist; a second Ctrl-C insists at once."""
    processes = [node.process for node in nodes]
    try:
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + STOP_S
        for process in processes:
            process.wait(max(0.1, deadline - time.monotonic()))
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        pass
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())

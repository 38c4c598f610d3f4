"""Three nodes on loopback: two with SmolLM2, one with Gemma, one engine thread each. Ctrl-C ends them.

The same three commands that three machines would run, with ports in place of hosts.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

PORTS = (8081, 8082, 8083)
MODELS = ("smollm2-135m", "smollm2-135m", "gemma-3-270m")
READY_S = 600
STOP_S = 40


def main() -> int:
    """Start the nodes, say how to use them, wait, end them."""
    key = os.environ.get("API_KEY") or f"sai-{secrets.token_urlsafe(18)}"
    secret = os.environ.get("CLUSTER_SECRET") or secrets.token_urlsafe(18)
    state = Path(os.environ.get("STATE_DIR", ".state"))
    nodes: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    try:
        for port, model in zip(PORTS, MODELS, strict=True):
            nodes.append(start(port, model, key, secret, state))
        if not all(ready(port, node) for port, node in zip(PORTS, nodes, strict=True)):
            print("a node did not become ready: see its lines above", file=sys.stderr)
            return 1
        print(usage(key, secret, nodes), flush=True)
        # One node going is a thing to try: the others serve on.
        running = dict(zip(PORTS, nodes, strict=True))
        while running:
            time.sleep(0.5)
            for port in [port for port, node in running.items() if node.poll() is not None]:
                print(f"[{port}] ended with exit code {running.pop(port).returncode}", flush=True)
    except KeyboardInterrupt:
        print("\nending the nodes", flush=True)
    finally:
        stop(nodes)
    return 0


def start(port: int, model: str, key: str, secret: str, state: Path) -> subprocess.Popen[bytes]:
    """Start one node and copy its log to this terminal with its port in front; `usage` stands for its first lines."""
    environment = {
        **os.environ,
        "HOST": "127.0.0.1",
        "PORT": str(port),
        "MODELS": model,
        "API_KEY": key,
        "CLUSTER_SECRET": secret,
        "CLUSTER_ADVERTISE": f"127.0.0.1:{port}",
        "CLUSTER_SEED": "" if port == PORTS[0] else f"127.0.0.1:{PORTS[0]}",
        "STATE_DIR": str((state / str(port)).resolve()),
        "SAI_ROUTE_LOG": "1",
        "THREADS": "1",
    }
    node = subprocess.Popen(
        [sys.executable, "-m", "saiserve.cli", "node"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )

    def copy() -> None:
        assert node.stderr is not None
        for line in node.stderr:
            sys.stdout.write(f"[{port}] {line.decode('utf-8', 'replace')}")
            sys.stdout.flush()

    threading.Thread(target=copy, daemon=True).start()
    return node


def ready(port: int, node: subprocess.Popen[bytes]) -> bool:
    """Wait until a node takes requests; False when it ended or took too long."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and node.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=2) as reply:
                if reply.status == 200:
                    return True
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    return False


def usage(key: str, secret: str, nodes: list[subprocess.Popen[bytes]]) -> str:
    """What to try, with this run's key and secret."""
    chat, story = (f"http://127.0.0.1:{port}/v1/chat/completions" for port in (PORTS[0], PORTS[2]))
    ready_ones = [f"{m} on {p} (pid {n.pid})" for p, m, n in zip(PORTS, MODELS, nodes, strict=True)]
    return f"""
Three nodes are ready: {", ".join(ready_ones)}.

# who is there, and what each node serves
curl -sS -H "X-SAI-Cluster: {secret}" http://127.0.0.1:{PORTS[0]}/cluster/state

# ask any node for any model
curl -sS {chat} -H "Authorization: Bearer {key}" -H 'Content-Type: application/json' \\
  -d '{{"model":"gemma-3-270m","messages":[{{"role":"user","content":"hi"}}],"max_tokens":32}}'

# four long answers, taken in by the node with the other model; x-sai-route in each reply's head says where it runs
for n in 1 2 3 4; do curl -sSN -o /dev/null -D - -w '%{{size_download}} bytes\n' {story} \
  -H "Authorization: Bearer {key}" -H 'Content-Type: application/json' \
  -d '{{"model":"smollm2-135m","stream":true,"messages":[{{"role":"user","content":"Tell a long story."}}],"max_tokens":300}}' & done

# meanwhile, kill one of the two nodes that write them: all four go on from the other
kill -9 {nodes[1].pid}

Ctrl-C ends them all.
"""


def stop(nodes: list[subprocess.Popen[bytes]]) -> None:
    """End all nodes: ask, wait, insist."""
    for node in nodes:
        if node.poll() is None:
            node.terminate()
    deadline = time.monotonic() + STOP_S
    for node in nodes:
        try:
            node.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            node.kill()
            node.wait()


if __name__ == "__main__":
    sys.exit(main())

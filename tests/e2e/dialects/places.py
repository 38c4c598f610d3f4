"""Where requests enter and where they are answered."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import httpx2

from acceptance.cluster import SMOL
from acceptance.nodes import API_KEY, CLUSTER_SECRET, Node
from acceptance.served import AGAIN_S, SERVED_S, is_for_later

CHAT = "/v1/chat/completions"
CALM_S = 120.0
"""How long gauges may take to come back to zero on a busy machine."""
KEY = {"Authorization": f"Bearer {API_KEY}"}
HTTP = httpx2.Client(verify=False, timeout=120)
"""One client for all: making one costs more than a request."""


@dataclass(frozen=True)
class Place:
    """Where requests enter, and the node that answers them."""

    entry: Node
    worker: Node

    def post(self, path: str, body: Any, *, headers: dict[str, str] | None = None) -> httpx2.Response:
        """Send a body with the client key and read all of the reply."""
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        until = time.monotonic() + SERVED_S
        while True:
            reply = HTTP.post(self.entry.url + path, headers={**KEY, **(headers or {})}, **content)
            if not is_for_later(reply) or time.monotonic() > until:
                return reply
            time.sleep(AGAIN_S)

    def get(self, path: str) -> dict[str, Any]:
        """Read a JSON document."""
        reply = HTTP.get(self.entry.url + path, headers=KEY)
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    def assert_alive(self) -> None:
        """Both nodes run on, answer, have nothing left to do and have logged no trace."""
        for node in (self.entry, self.worker):
            assert node.process.poll() is None, node.log_text()[-2000:]
            assert HTTP.get(f"{node.url}/health").status_code == 200
            assert "Traceback" not in node.log_text(), node.log_text()[-4000:]
        body = {"model": SMOL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        reply = self.post(CHAT, body)
        assert reply.status_code == 200, reply.text
        deadline = time.monotonic() + CALM_S
        while (load := self._load()) != (0, 0):
            assert time.monotonic() < deadline, f"busy lanes and queued tokens are {load}"
            time.sleep(0.1)

    def _load(self) -> tuple[int, int]:
        state = HTTP.get(f"{self.worker.url}/cluster/state", headers={"X-SAI-Cluster": CLUSTER_SECRET}).json()
        members = {member["name"]: member for member in state["members"]}
        models = members[self.worker.name]["models"]
        return sum(model["busy"] for model in models), sum(model["queued_tokens"] for model in models)

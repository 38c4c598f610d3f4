"""Where requests enter and where they are answered."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import httpx2
import trio

from acceptance.cluster import SMOL
from acceptance.nodes import API_KEY, Node

CHAT = "/v1/chat/completions"
CALM_S = 20.0
"""How long gauges may take to come back to zero, and a four-token chat to be answered, on a busy machine."""


@dataclass(frozen=True)
class Place:
    """Where requests enter, and the node that answers them."""

    entry: Node
    worker: Node

    def post(self, path: str, body: Any, **options: Any) -> httpx2.Response:
        """Send a body with the client key and read all of the reply."""
        headers = {"Authorization": f"Bearer {API_KEY}", **options.pop("headers", {})}
        if isinstance(body, bytes):
            return httpx2.post(self.entry.url + path, content=body, headers=headers, timeout=120, **options)
        return httpx2.post(self.entry.url + path, json=body, headers=headers, timeout=120, **options)

    def get(self, path: str) -> dict[str, Any]:
        """Read a JSON document."""
        reply = httpx2.get(self.entry.url + path, headers={"Authorization": f"Bearer {API_KEY}"}, timeout=20)
        assert reply.status_code == 200, reply.text
        return dict(reply.json())

    def assert_alive(self) -> None:
        """Both nodes run on, answer, have nothing left to do and have logged no trace."""
        for node in (self.entry, self.worker):
            assert node.process.poll() is None, node.log_text()[-2000:]
            assert httpx2.get(f"{node.url}/health", timeout=5).status_code == 200
            assert "Traceback" not in node.log_text(), node.log_text()[-4000:]
        body = {"model": SMOL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        reply = self.post(CHAT, body)
        assert reply.status_code == 200, reply.text
        deadline = time.monotonic() + CALM_S
        while (load := trio.run(self._load)) != (0, 0):
            assert time.monotonic() < deadline, f"busy and queued are {load}"
            time.sleep(0.1)

    async def _load(self) -> tuple[int, int]:
        members = {member["name"]: member for member in (await self.worker.state())["members"]}
        models = members[self.worker.name]["models"]
        return sum(model["busy"] for model in models), sum(model["queued"] for model in models)

"""Before a node is a member it cannot check who asks: it says that it will, unless it has no cluster at all."""

from __future__ import annotations

from typing import Any

import pytest

from saiserve.peers.messages import GENERATE
from saiserve.peers.server import PeerPort


async def nothing(_scope: Any, _receive: Any, _send: Any) -> None:
    raise AssertionError("cluster paths do not reach the application")


async def no_body() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


@pytest.mark.parametrize(
    ("is_clustered", "status", "words"), [(True, 503, b"still joining"), (False, 404, b"CLUSTER_SECRET")]
)
async def test_a_peer_is_told_to_come_back_while_the_node_joins(is_clustered: bool, status: int, words: bytes) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    port = PeerPort(nothing, verifier=None, engine=lambda _model: None, is_clustered=is_clustered)
    await port({"type": "http", "path": GENERATE, "method": "POST", "headers": []}, no_body, send)
    assert sent[0]["status"] == status
    assert words in sent[1]["body"]

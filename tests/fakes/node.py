"""A whole node in one process, with simulated engines and no network."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from saiserve.chat.request import Dialect, GenerationRequest, Message, Role, TextPart
from saiserve.config import load_settings
from saiserve.engines.messages import Sampling
from saiserve.metering.metrics import Tally
from saiserve.models.catalog import builtin_catalog, parse_models
from saiserve.node import Node
from saiserve.node_service import NodeService
from saiserve.routing.default import DEFAULT_CHAIN


def make_node(models: str, folder: Path, **environment: str) -> Node:
    """A node that was not started yet."""
    settings = load_settings(
        {
            "MODELS": models,
            "NODE_NAME": "node-a",
            "STATE_DIR": str(folder),
            "API_KEY": "a-key-of-16-or-more",
            **environment,
        },
        {},
    )
    entries = parse_models(settings.models, builtin_catalog())
    return Node(settings, builtin_catalog().with_entries(entries), entries, DEFAULT_CHAIN)


@asynccontextmanager
async def running(node: Node) -> AsyncIterator[tuple[NodeService, Tally]]:
    """The node's service, once its engines are ready."""
    tally = Tally.empty()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.run_load)
        nursery.start_soon(node.run_vitals)
        await nursery.start(node.residents.run)
        yield NodeService(node, tally, started_at=1), tally
        nursery.cancel_scope.cancel()


def chat(text: str, *, model: str = "sim", id: str = "r1", **more: object) -> GenerationRequest:  # noqa: A002
    """A one-turn chat request."""
    values: dict[str, object] = {
        "model": model,
        "sampling": Sampling(seed=1),
        "messages": (Message(Role.USER, (TextPart(text),)),),
        "max_tokens": 16,
        "key_name": "alice",
    }
    return GenerationRequest(id=id, dialect=Dialect.CHAT, **{**values, **more})  # type: ignore[arg-type]

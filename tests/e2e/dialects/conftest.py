"""Two real nodes for a whole run: one with both small models, one without any that has to forward."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import trio

from acceptance.cluster import GEMMA, SMOL, wait_view
from acceptance.nodes import Node, fleet
from tests.e2e.dialects.places import Place


@pytest.fixture(scope="session")
def two_nodes() -> Iterator[tuple[Node, Node]]:
    """The entry and the worker, kept by a thread of their own."""
    nodes: list[Node] = []
    up, stop = threading.Event(), threading.Event()

    async def keep() -> None:
        try:
            async with fleet() as group:
                entry = await group.start_ready("entry", "none", seeds="")
                worker = await group.start_ready("worker", f"{SMOL},{GEMMA}")
                await wait_view([entry, worker], {"entry", "worker"}, 60)
                nodes.extend((entry, worker))
                up.set()
                await trio.to_thread.run_sync(stop.wait)
        finally:
            up.set()

    thread = threading.Thread(target=trio.run, args=(keep,), daemon=True)
    thread.start()
    up.wait()
    assert nodes, "the nodes did not start"
    try:
        yield nodes[0], nodes[1]
    finally:
        stop.set()
        thread.join(60)


@pytest.fixture(params=["forwarded", "direct"])
def place(request: pytest.FixtureRequest, two_nodes: tuple[Node, Node]) -> Place:
    """The entry that must forward, then the node with the models itself."""
    entry, worker = two_nodes
    return Place(entry if request.param == "forwarded" else worker, worker)


@pytest.fixture(params=[SMOL, GEMMA])
def model(request: pytest.FixtureRequest) -> str:
    """Each of the two models."""
    return str(request.param)

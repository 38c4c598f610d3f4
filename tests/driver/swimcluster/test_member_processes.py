"""Whoever waits for what a member process tells sleeps until it has told something more."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from member_processes import Node, View

pytestmark = pytest.mark.autojump


def line(name: str, at: float) -> bytes:
    return json.dumps({"name": name, "port": 1, "refused": 0, "at": at, "view": {name: {}}}).encode() + b"\n"


async def told() -> AsyncIterator[bytes]:
    for at in range(3):
        yield line("a", at)
        await trio.sleep(1)
    await trio.sleep_forever()


async def test_a_claim_is_looked_at_once_for_each_line_and_no_line_wakes_a_sleeper() -> None:
    process: Any = SimpleNamespace(stdout=told())
    node, looks = Node(process), 0
    node.is_put_to_sleep = True

    def never(view: View) -> bool:
        nonlocal looks
        looks += 1
        assert looks < 10, "it does not wait"
        return False

    async with trio.open_nursery() as nursery:
        await nursery.start(node.read)
        with pytest.raises(AssertionError, match="not seen within 60"):
            await node.sees(never, within_s=60)
        nursery.cancel_scope.cancel()
    assert looks <= 1 + len(node.history) == 4
    assert node.is_put_to_sleep

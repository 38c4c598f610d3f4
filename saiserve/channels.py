"""Passing things on between tasks."""

from __future__ import annotations

from typing import TypeVar

import trio

T = TypeVar("T")


async def put(channel: trio.MemorySendChannel[T], item: T) -> None:
    """Send without giving way to other tasks while there is room; a stream's every token passes through here.

    Callers must wait elsewhere, as those do that pass on what they receive.

    Raises:
        trio.BrokenResourceError: nobody reads any more.
    """
    try:
        channel.send_nowait(item)
    except trio.WouldBlock:
        await channel.send(item)

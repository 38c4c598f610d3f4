"""Passing things on between tasks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, TypeVar

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


def received(receive_nowait: Callable[[], T]) -> list[T]:
    """Return what has come, without waiting for anything."""
    items: list[T] = []
    with suppress(trio.WouldBlock, trio.EndOfChannel):
        while True:
            items.append(receive_nowait())
    return items


def nothing() -> NoReturn:
    """Stand in for `receive_nowait` where what has come cannot be told.

    Raises:
        trio.WouldBlock: always.
    """
    raise trio.WouldBlock

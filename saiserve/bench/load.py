"""Ways of sending work: all at once, conversation by conversation, or as arrivals come."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from saiserve.bench.client import Client, Reply
from saiserve.bench.prompts import Messages, text


@dataclass(frozen=True)
class Burst:
    """What came of requests sent together."""

    replies: tuple[Reply, ...]
    elapsed_s: float

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of all by the time the last one ended."""
        return sum(reply.tokens for reply in self.replies) / self.elapsed_s

    @property
    def first_s(self) -> list[float]:
        """Times to first token."""
        return [reply.first_s for reply in self.replies]

    @property
    def gaps(self) -> list[float]:
        """All times between pieces."""
        return [gap for reply in self.replies for gap in reply.gaps]


async def at_once(client: Client, chats: Sequence[Messages], tokens: int, **extra: Any) -> Burst:
    """Send all together."""

    def one(chat: Messages) -> Callable[[], Awaitable[Reply]]:
        return lambda: client.chat(chat, tokens, **extra)

    return await _gather([(0.0, one(chat)) for chat in chats])


async def arriving(client: Client, arrivals: Sequence[tuple[float, Messages, int]]) -> Burst:
    """Send each chat at its time in seconds, whatever became of the others."""

    def one(chat: Messages, tokens: int) -> Callable[[], Awaitable[Reply]]:
        return lambda: client.chat(chat, tokens)

    return await _gather([(at, one(chat, tokens)) for at, chat, tokens in arrivals])


async def _gather(work: Sequence[tuple[float, Callable[[], Awaitable[Reply]]]]) -> Burst:
    replies: list[Reply | None] = [None] * len(work)

    async def run(number: int, at: float, make: Callable[[], Awaitable[Reply]]) -> None:
        await trio.sleep(max(0.0, at - (time.perf_counter() - started)))
        replies[number] = await make()

    started = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for number, (at, make) in enumerate(work):
            nursery.start_soon(run, number, at, make)
    return Burst(tuple(reply for reply in replies if reply is not None), time.perf_counter() - started)


@dataclass(frozen=True)
class Talk:
    """One conversation as it went: each turn's messages as sent, and its reply."""

    turns: tuple[tuple[Messages, Reply], ...]


async def converse(
    client: Client, talks: int, turns: int, words: int, tokens: int, *seed: object
) -> tuple[float, list[Talk]]:
    """Conversations side by side, each asking its next question as soon as it is answered; seconds and talks."""
    done: dict[int, Talk] = {}

    async def talk(number: int) -> None:
        messages: Messages = []
        history: list[tuple[Messages, Reply]] = []
        for turn in range(turns):
            messages = [*messages, {"role": "user", "content": text(words, number, turn, *seed)}]
            reply = await client.chat(messages, tokens)
            history.append((messages, reply))
            messages = [*messages, {"role": "assistant", "content": reply.text}]
        done[number] = Talk(tuple(history))

    started = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for number in range(talks):
            nursery.start_soon(talk, number)
    return time.perf_counter() - started, [done[number] for number in range(talks)]

"""Asks an engine and gathers what it says."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import trio

from saiserve.engines.engine import Engine
from saiserve.engines.messages import Accepted, EngineReply, Finished, Generate, Prompt, Refused, Sampling, Tokens

_serial = itertools.count()


@dataclass
class Heard:
    """One request's replies."""

    replies: list[EngineReply] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return [token for one in self.replies if isinstance(one, Tokens) for token in one.ids]

    @property
    def text(self) -> str:
        return b"".join(one.data for one in self.replies if isinstance(one, Tokens)).decode("utf-8", "replace")

    @property
    def accepted(self) -> Accepted:
        assert isinstance(self.replies[0], Accepted), self.replies
        return self.replies[0]

    @property
    def finished(self) -> Finished:
        assert isinstance(self.replies[-1], Finished), self.replies[-1]
        return self.replies[-1]

    @property
    def refused(self) -> Refused:
        (only,) = self.replies
        assert isinstance(only, Refused), only
        return only


def request(prompt: str | Prompt = "Say hello.", **options: Any) -> Generate:
    """A generate with a fresh id; greedy unless `sampling` is given."""
    if isinstance(prompt, str):
        prompt = Prompt(messages=({"role": "user", "content": prompt},))
    sampling = options.pop("sampling", Sampling(seed=1, temperature=0))
    options.setdefault("max_tokens", 16)
    return Generate(f"e2e-{next(_serial)}", "model", prompt, sampling, **options)


async def ask(
    engine: Engine, prompt: str | Prompt = "Say hello.", *, heard: Heard | None = None, **options: Any
) -> Heard:
    """Ask and hear it to the end."""
    heard = Heard() if heard is None else heard
    async with engine.generate(request(prompt, **options)) as replies:
        async for reply in replies:
            heard.replies.append(reply)
    return heard


async def until(condition: Any, *, timeout_s: float = 120.0) -> None:
    """Wait for something another process does."""
    with trio.fail_after(timeout_s):
        while not condition():
            await trio.sleep(0.02)

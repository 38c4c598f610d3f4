"""A worker without its socket: requests in, steps by hand, everything it says by request."""

from __future__ import annotations

import itertools
import time
from typing import Any

from saiserve.engines.llamacpp.worker import Worker
from saiserve.engines.messages import (
    Accepted,
    Counted,
    Embedded,
    Finished,
    Generate,
    Prompt,
    Refused,
    Sampling,
    Tokens,
    is_terminal,
)

STEPS_MAX = 30_000


class Desk:
    """A worker with its clock and everything it has said, by request."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.now = time.monotonic_ns()
        self.said: dict[str, list[Any]] = {}
        self._serial = itertools.count()

    def ask(self, prompt: Prompt | str = "hello there", **options: Any) -> str:
        """Send a generate; returns its id."""
        request_id = f"r{next(self._serial)}"
        if isinstance(prompt, str):
            prompt = Prompt(messages=({"role": "user", "content": prompt},))
        sampling = options.pop("sampling", Sampling(seed=3, temperature=0))
        model = options.pop("model", "tiny")
        self.worker.handle(Generate(request_id, model, prompt, sampling, **options), self.now)
        self.collect()
        return request_id

    def collect(self) -> None:
        for message in self.worker.take_messages():
            self.said.setdefault(getattr(message, "id", ""), []).append(message)

    def step(self) -> bool:
        self.now += 1_000_000
        worked = self.worker.step(self.now)
        self.collect()
        return worked

    def finish(self, *request_ids: str) -> None:
        for _ in range(STEPS_MAX):
            if all(self.is_over(one) for one in request_ids):
                return
            if not self.step():
                time.sleep(0.001)  # a constraint is compiling on its thread
        raise AssertionError("no end")

    def is_over(self, request_id: str) -> bool:
        said = self.said.get(request_id, [])
        return any(isinstance(one, (Counted, Embedded)) or is_terminal(one) for one in said)

    def answer(self, prompt: Prompt | str = "hello there", **options: Any) -> tuple[list[int], bytes, Finished]:
        request_id = self.ask(prompt, **options)
        self.finish(request_id)
        return self.result(request_id)

    def result(self, request_id: str) -> tuple[list[int], bytes, Finished]:
        said = self.said[request_id]
        assert isinstance(said[0], Accepted), said
        assert isinstance(said[-1], Finished), said[-1]
        assert sum(map(is_terminal, said)) == 1
        tokens = [one for one in said if isinstance(one, Tokens)]
        return [i for one in tokens for i in one.ids], b"".join(one.data for one in tokens), said[-1]

    def refusal(self, prompt: Prompt | str = "hello there", **options: Any) -> Refused:
        request_id = self.ask(prompt, **options)
        self.finish(request_id)
        (refused,) = self.said[request_id]
        assert isinstance(refused, Refused)
        return refused


def sampled(**options: Any) -> Sampling:
    """Values under which draws differ from the greedy ones."""
    return Sampling(**{"seed": 11, "temperature": 1.3, **options})

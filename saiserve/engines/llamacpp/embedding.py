"""Embeddings beside generation: one input at a time, its vectors averaged here, run in the scheduler's gaps.

llama.cpp's own pooling covers only the last physical batch, so the context pools nothing and numpy does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from saiserve.engines.llamacpp.binding import LlamaContext
from saiserve.engines.messages import Embed, Embedded

Vectors = NDArray[np.float32]

POOLINGS = ("mean", "last", "cls")
INPUTS_MAX = 2_048
QUEUE_MAX = 64
"""Embedding requests waiting; the next is refused."""


@dataclass(slots=True)
class Pending:
    """A request with the vectors made so far."""

    request: Embed
    inputs: deque[tuple[int, ...]]
    prompt_tokens: int
    vectors: list[bytes] = field(default_factory=list)

    @property
    def answer(self) -> Embedded:
        """The finished answer."""
        return Embedded(self.request.id, tuple(self.vectors), self.prompt_tokens)


class EmbeddingQueue:
    """Requests in order of arrival."""

    def __init__(self, context: LlamaContext) -> None:
        self._context = context
        self._waiting: deque[Pending] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: Embed, inputs: list[tuple[int, ...]]) -> None:
        """Queue a checked request: at least one input, none empty."""
        self._waiting.append(Pending(request, deque(inputs), sum(map(len, inputs))))

    def cancel(self, request_id: str) -> None:
        """Forget a request."""
        self._waiting = deque(pending for pending in self._waiting if pending.request.id != request_id)

    def next_tokens(self) -> int:
        """Cells the next input needs, 0 when none waits."""
        return len(self._waiting[0].inputs[0]) if self._waiting else 0

    def run(self, sequence: int) -> Embedded | None:
        """Compute the next input in an empty sequence and empty it again; the answer when it was the last one."""
        pending = self._waiting[0]
        try:
            pooled = pool(pending.request.pooling, self._chunks(sequence, pending.inputs[0]))
        finally:
            self._context.remove(sequence, -1, -1)
        if pooled is None:
            return None
        pending.inputs.popleft()
        pending.vectors.append(pooled.astype("<f4").tobytes())
        if pending.inputs:
            return None
        self._waiting.popleft()
        return pending.answer

    def _chunks(self, sequence: int, tokens: tuple[int, ...]) -> Iterator[Vectors | None]:
        size = min(self._context.outputs_max, self._context.batch_max)
        for start in range(0, len(tokens), size):
            yield self._context.embed(sequence, tokens[start : start + size], start)


def pool(pooling: str, chunks: Iterator[Vectors | None]) -> Vectors | None:
    """One vector from the tokens' vectors; None when a chunk found no room."""
    total: NDArray[np.float64] | None = None
    count = 0
    first: Vectors | None = None
    last: Vectors | None = None
    for vectors in chunks:
        if vectors is None:
            return None
        summed = vectors.sum(axis=0, dtype=np.float64)
        total = summed if total is None else total + summed
        count += len(vectors)
        first = vectors[0] if first is None else first
        last = vectors[-1]
    if total is None:
        return None
    if pooling == "mean":
        return (total / count).astype(np.float32)
    return last if pooling == "last" else first

"""Embeddings beside generation: one input at a time, a chunk per gap between steps, the vectors averaged here.

llama.cpp's own pooling covers only the last physical batch, so the context pools nothing and numpy does.
"""

from __future__ import annotations

from collections import deque
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
    """A request with the vectors made so far and the sums of the input in the works."""

    request: Embed
    inputs: deque[tuple[int, ...]]
    prompt_tokens: int
    vectors: list[bytes] = field(default_factory=list)
    pool: Pool | None = None


class Pool:
    """One vector out of the tokens' vectors, piece by piece."""

    def __init__(self, pooling: str) -> None:
        self._pooling = pooling
        self._total: NDArray[np.float64] | None = None
        self._chosen: Vectors | None = None
        self.count = 0
        """Tokens taken."""

    def take(self, vectors: Vectors) -> None:
        """The next tokens' vectors, at least one."""
        self.count += len(vectors)
        if self._pooling == "mean":
            summed = vectors.sum(axis=0, dtype=np.float64)
            self._total = summed if self._total is None else self._total + summed
        elif self._pooling == "last":
            self._chosen = vectors[-1]
        elif self._chosen is None:
            self._chosen = vectors[0]

    def result(self) -> bytes:
        """Little-endian float32 bytes; something must have been taken."""
        vector = self._chosen if self._total is None else self._total / self.count
        assert vector is not None
        return vector.astype("<f4").tobytes()


class EmbeddingQueue:
    """Requests in order of arrival; at most `chunk_max` tokens are computed at a time."""

    def __init__(self, context: LlamaContext) -> None:
        self._context = context
        self._waiting: deque[Pending] = deque()
        self.chunk_max = min(context.outputs_max, context.batch_max)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: Embed, inputs: list[tuple[int, ...]]) -> None:
        """Queue a checked request: at least one input, none empty."""
        self._waiting.append(Pending(request, deque(inputs), sum(map(len, inputs))))

    def cancel(self, request_id: str) -> None:
        """Forget a request."""
        if self._waiting and self._waiting[0].request.id == request_id:
            self._context.embed_end()
        self._waiting = deque(pending for pending in self._waiting if pending.request.id != request_id)

    def next_cells(self) -> int:
        """Cells the input in turn still needs, 0 when none waits."""
        if not self._waiting:
            return 0
        first = self._waiting[0]
        return len(first.inputs[0]) - (first.pool.count if first.pool else 0)

    def run(self) -> Embedded | None:
        """Compute the next chunk; the answer when it was a request's last. An input without room begins again."""
        pending = self._waiting[0]
        tokens = pending.inputs[0]
        pool = pending.pool = pending.pool or Pool(pending.request.pooling)
        vectors = self._context.embed(tokens[pool.count : pool.count + self.chunk_max], pool.count)
        if vectors is None:
            self._context.embed_end()
            pending.pool = None
            return None
        pool.take(vectors)
        if pool.count < len(tokens):
            return None
        self._context.embed_end()
        pending.vectors.append(pool.result())
        pending.inputs.popleft()
        pending.pool = None
        if pending.inputs:
            return None
        self._waiting.popleft()
        return Embedded(pending.request.id, tuple(pending.vectors), pending.prompt_tokens)

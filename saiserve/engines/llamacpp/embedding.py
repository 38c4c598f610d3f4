"""Embeddings beside generation: one input at a time, a chunk per gap between steps (decision 0156)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from saiserve.engines.llamacpp.binding import LlamaContext
from saiserve.engines.llamacpp.pooling import Pool, Vectors
from saiserve.engines.llamacpp.sampler import NotANumberError
from saiserve.engines.messages import Embed, Embedded, Progress

QUEUE_MAX = 64
"""Embedding requests waiting; the next is refused."""


@dataclass(slots=True)
class Pending:
    """A request with the vectors made so far and the sums of the input in the works."""

    request: Embed
    pooling: str
    inputs: deque[tuple[int, ...]]
    prompt_tokens: int
    size: int
    """Numbers in a vector."""
    vectors: list[bytes] = field(default_factory=list)
    pool: Pool | None = None
    done: int = 0
    """Tokens of the first input computed."""
    probation: int = 0
    """Not 0: vectors of any of its inputs were no numbers once, and are computed again on a clean cache."""
    is_apart: bool = False
    """A batch shared with others failed: from here on it is computed by itself."""

    def restart(self) -> None:
        """The first input begins, or begins again."""
        self.pool, self.done = None, 0

    def take(self, vectors: Vectors, tokens: int) -> bool:
        """The next `tokens` of the first input are computed; whether they were its last."""
        self.pool = self.pool or Pool(self.pooling)
        self.pool.take(vectors)
        self.done += tokens
        if self.done < len(self.inputs[0]):
            return False
        self.vectors.append(self.pool.result(self.done))
        self.inputs.popleft()
        self.restart()
        return True

    def sign(self) -> Progress:
        """That it is alive; of its tokens only those of the first input are told."""
        return Progress(self.request.id, self.done)

    def answer(self) -> Embedded:
        """The reply, once no input is left."""
        return Embedded(self.request.id, tuple(self.vectors), self.prompt_tokens, self.size)


class EmbeddingQueue:
    """Requests in order of arrival; at most `chunk_max` tokens are computed at a time."""

    def __init__(self, context: LlamaContext) -> None:
        self._context = context
        self._size = context.model.embedding_size
        self._waiting: deque[Pending] = deque()
        self._has_moved = False
        self.chunk_max = min(context.outputs_max, context.batch_max)

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: Embed, pooling: str, inputs: list[tuple[int, ...]]) -> None:
        """Queue a checked request: at least one input, none empty."""
        self._waiting.append(Pending(request, pooling, deque(inputs), sum(map(len, inputs)), self._size))

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
        return len(first.inputs[0]) - first.done

    @property
    def next(self) -> Pending:
        """The request in turn; one must be waiting."""
        return self._waiting[0]

    def signs(self) -> list[Progress]:
        """Signs of life of all that wait, if anything was computed since they were asked for last."""
        has_moved, self._has_moved = self._has_moved, False
        return [pending.sign() for pending in self._waiting] if has_moved else []

    def start_over(self) -> None:
        """What was computed of the first input is gone."""
        if self._waiting:
            self._waiting[0].restart()

    def run(self) -> Embedded | None:
        """Compute the next chunk; the answer when it was a request's last. An input without room begins again.

        Raises:
            NotANumberError: the vectors are none; the input begins again unless the request is cancelled.
        """
        pending = self._waiting[0]
        piece = pending.inputs[0][pending.done : pending.done + self.chunk_max]
        vectors = self._context.embed(piece, pending.done)
        self._has_moved |= vectors is not None
        if vectors is None or not np.isfinite(vectors).all():
            self._context.embed_end()
            pending.restart()
            if vectors is None:
                return None
            raise NotANumberError("the model's vectors are not numbers")
        if not pending.take(vectors, len(piece)):
            return None
        self._context.embed_end()
        if pending.inputs:
            return None
        self._waiting.popleft()
        return pending.answer()

"""A `llama_batch` that lives as long as its context, filled through numpy views instead of field by field."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from saiserve.engines.llamacpp.kv import Row

Logits = NDArray[np.float32]
"""A vector of the model's: logits, or what stands for a token."""


class BatchArrays:
    """One `llama_batch` for the context's life, written through numpy views."""

    def __init__(self, capacity: int, *, width: int = 0) -> None:
        """With a `width`, rows are vectors of so many numbers instead of tokens."""
        self._batch = llama_cpp.llama_batch_init(capacity, width, 1)
        shape = (capacity,)
        if width:
            self._vectors = np.ctypeslib.as_array(self._batch.embd, shape=(capacity, width))
        else:
            self._tokens = np.ctypeslib.as_array(self._batch.token, shape=shape)
        self._positions = np.ctypeslib.as_array(self._batch.pos, shape=shape)
        self._outputs = np.ctypeslib.as_array(self._batch.logits, shape=shape)
        np.ctypeslib.as_array(self._batch.n_seq_id, shape=shape)[:] = 1
        self._sequences = [self._batch.seq_id[index] for index in range(capacity)]

    def fill(
        self,
        rows: Sequence[Row],
        *,
        sequence: int | None = None,
        vector: Callable[[int], Logits | None] | None = None,
    ) -> llama_cpp.llama_batch:
        """The batch of these rows; all of one `sequence` when it is given, their vectors by `vector` if they are any."""
        count = len(rows)
        if vector is None:
            self._tokens[:count] = [row.token for row in rows]
        else:
            self._vectors[:count] = [vector(row.token) for row in rows]
        self._positions[:count] = [row.position for row in rows]
        self._outputs[:count] = [row.wants_logits for row in rows]
        for pointer, row in zip(self._sequences, rows, strict=False):
            pointer[0] = row.sequence if sequence is None else sequence
        self._batch.n_tokens = count
        return self._batch

    def close(self) -> None:
        """Free the batch."""
        llama_cpp.llama_batch_free(self._batch)

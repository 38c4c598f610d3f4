"""A llama.cpp context of a model made for vectors or ranks: no answers, no shared cache, all tokens are outputs.

Encoders look both ways, so a whole input is one physical batch, and several short inputs share one. Decoders look back
only: an input is computed in pieces, which keeps the buffers small.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import llama_cpp
import numpy as np

from saiserve.engines.llamacpp.batch_arrays import BatchArrays
from saiserve.engines.llamacpp.kv import Row
from saiserve.engines.llamacpp.native import failure_reason
from saiserve.engines.llamacpp.pooling import Vectors
from saiserve.engines.llamacpp.weights import LlamaModel, LoadError

SEQUENCES_MAX = 32
"""Inputs in one batch."""
PIECE_TOKENS_MAX = 256
"""Tokens of a decoder's input computed at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorSettings:
    """Sizes of one context."""

    tokens_max: int
    """Longest input."""
    threads: int
    is_encoder: bool
    ranks: bool
    flash_attention: bool = True


class VectorContext:
    """Computes token vectors, or scores when the model ranks. Not thread-safe."""

    def __init__(self, model: LlamaModel, settings: VectorSettings) -> None:
        """Reserve memory.

        Raises:
            LoadError: llama.cpp could not make the context.
        """
        self.model = model
        self.tokens_max = settings.tokens_max
        self.ranks = settings.ranks
        self.rows_max = settings.tokens_max if settings.is_encoder else min(PIECE_TOKENS_MAX, settings.tokens_max)
        """Tokens in one call of `compute`."""
        self.inputs_max = SEQUENCES_MAX if settings.is_encoder else 1
        """Inputs in one call of `compute`; with one, an input may come in pieces."""
        self._handle = llama_cpp.llama_init_from_model(model.handle, self._params(settings))
        if not self._handle:
            raise LoadError(f"llama.cpp could not make a context of {settings.tokens_max} tokens: {failure_reason()}")
        self._memory = llama_cpp.llama_get_memory(self._handle)
        self._rows = BatchArrays(self.rows_max)
        self._is_spoilt = False
        """Whether what it computed since the last `end` is no number, so that cells may hold none."""
        self.size = int(llama_cpp.llama_model_n_cls_out(model.handle)) if self.ranks else model.embedding_size
        """Numbers in a vector, or scores of a document."""

    def _params(self, settings: VectorSettings) -> llama_cpp.llama_context_params:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = settings.tokens_max
        params.n_batch = params.n_ubatch = self.rows_max
        params.n_seq_max = self.inputs_max
        params.n_outputs_max = max(self.rows_max, self.inputs_max)
        params.n_threads = params.n_threads_batch = settings.threads
        params.embeddings = True
        params.kv_unified = True
        params.no_perf = True
        params.flash_attn_type = (
            llama_cpp.LLAMA_FLASH_ATTN_TYPE_AUTO
            if settings.flash_attention
            else llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        params.pooling_type = llama_cpp.LLAMA_POOLING_TYPE_RANK if settings.ranks else llama_cpp.LLAMA_POOLING_TYPE_NONE
        return params

    def compute(self, pieces: Sequence[tuple[Sequence[int], int]]) -> list[Vectors] | None:
        """Vectors for each piece (tokens, position of the first): (tokens, size), or (1, scores) of a ranking model.

        None when llama.cpp failed; nothing is kept then.

        Raises:
            ValueError: more tokens or inputs than fit one call, or an unknown token.
        """
        rows = tuple(
            Row(sequence, start + offset, token, True)
            for sequence, (tokens, start) in enumerate(pieces)
            for offset, token in enumerate(tokens)
        )
        if not 0 < len(rows) <= self.rows_max or len(pieces) > self.inputs_max:
            raise ValueError(f"{len(rows)} tokens of {len(pieces)} inputs; {self.rows_max} of {self.inputs_max} fit")
        if not all(0 <= row.token < self.model.vocabulary_size for row in rows):
            raise ValueError("a token is not in the vocabulary")
        run = llama_cpp.llama_decode if self.model.has_decoder else llama_cpp.llama_encode
        if run(self._handle, self._rows.fill(rows)) != 0:
            self.end()
            return None
        vectors = self._outputs([len(tokens) for tokens, _ in pieces])
        self._is_spoilt |= not all(bool(np.isfinite(one).all()) for one in vectors)
        return vectors

    def _outputs(self, lengths: Sequence[int]) -> list[Vectors]:
        """What the last batch made of each of its pieces."""
        if self.ranks:
            return [self._score(sequence) for sequence in range(len(lengths))]
        vectors: list[Vectors] = []
        first = 0
        for length in lengths:
            vectors.append(np.stack([self._vector(first + offset) for offset in range(length)]))
            first += length
        return vectors

    def _vector(self, row: int) -> Vectors:
        pointer = llama_cpp.llama_get_embeddings_ith(self._handle, row)
        return np.ctypeslib.as_array(pointer, shape=(self.size,)).copy()

    def _score(self, sequence: int) -> Vectors:
        pointer = llama_cpp.llama_get_embeddings_seq(self._handle, sequence)
        return np.ctypeslib.as_array(pointer, shape=(self.size,)).copy()[np.newaxis]

    def end(self) -> None:
        """The inputs are complete: forget them, and what is no number so that it reaches none of the next."""
        if self._memory:
            llama_cpp.llama_memory_clear(self._memory, self._is_spoilt)
        self._is_spoilt = False

    def measure(self, tokens: int) -> float:
        """Tokens per second of one batch, after one that warms up.

        Raises:
            LoadError: the model cannot compute.
        """
        elapsed_s = 0.0
        for _ in range(2):
            began = time.perf_counter()
            if self.compute([([0] * tokens, 0)]) is None:
                raise LoadError(f"the model cannot compute {tokens} tokens: {failure_reason()}")
            elapsed_s = time.perf_counter() - began
            self.end()
        return tokens / max(elapsed_s, 1e-9)

    def close(self) -> None:
        """Free the context."""
        if self._handle is not None:
            llama_cpp.llama_free(self._handle)
            self._handle = None
            self._rows.close()

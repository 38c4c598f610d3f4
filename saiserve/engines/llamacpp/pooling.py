"""Token vectors to the vector of an input, piece by piece.

llama.cpp's own pooling covers only the last physical batch, so the contexts pool nothing and numpy does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]


class Pool:
    """One input's result: `mean`, `cls` (the first), `last`, `rank` (the last score), or `none` (every token's)."""

    def __init__(self, pooling: str) -> None:
        self._pooling = pooling
        self._total: NDArray[np.float64] | None = None
        self._chosen: Vectors | None = None
        self._all: list[Vectors] = []

    def take(self, vectors: Vectors) -> None:
        """The next tokens' vectors, at least one."""
        if self._pooling == "mean":
            summed = vectors.sum(axis=0, dtype=np.float64)
            self._total = summed if self._total is None else self._total + summed
        elif self._pooling == "none":
            self._all.append(vectors)
        elif self._pooling != "cls":
            self._chosen = vectors[-1]
        elif self._chosen is None:
            self._chosen = vectors[0]

    def result(self, count: int) -> bytes:
        """Little-endian float32 bytes after `count` tokens; something must have been taken."""
        if self._pooling == "none":
            return np.concatenate(self._all).astype("<f4").tobytes()
        vector = self._chosen if self._total is None else self._total / count
        assert vector is not None
        return vector.astype("<f4").tobytes()

"""Logits at the ends of the last prompts: the same prompt again draws from the very same ones, and computes nothing.

Computing a prompt's last token again, alone instead of among its neighbours, rounds differently (decision 0150).
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from saiserve.engines.llamacpp.batch_arrays import Logits

BYTES_MAX = 16 * 1024 * 1024
"""Of logits kept: 16 prompts of a vocabulary of 262,144, 80 of one of 49,152."""


def end_key(tokens: Sequence[int], isolation: str) -> bytes:
    """What stands for the end of these tokens among those that may share prefixes; never empty."""
    digest = hashlib.blake2b(array("i", tokens).tobytes(), digest_size=16)
    digest.update(isolation.encode("utf-8", "surrogatepass"))
    return digest.digest()


class PromptEnds:
    """Logits by `end_key`, the latest used ones."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: dict[bytes, Logits] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._kept

    def keep(self, key: bytes, logits: Logits) -> None:
        """Keep a copy; the least lately used go when there are too many."""
        self._forget(key)
        self._kept[key] = logits.copy()
        self._bytes += logits.nbytes
        while self._bytes > self._bytes_max:
            self._forget(next(iter(self._kept)))

    def take(self, key: bytes) -> Logits:
        """A copy, to be changed by whoever draws from it. KeyError when it is not kept."""
        logits = self._kept[key] = self._kept.pop(key)
        return logits.copy()

    def clear(self) -> None:
        """Keep nothing."""
        self._kept.clear()
        self._bytes = 0

    def _forget(self, key: bytes) -> None:
        gone = self._kept.pop(key, None)
        self._bytes -= gone.nbytes if gone is not None else 0

"""Random streams forked by label, so that one more draw in one place changes nothing in another."""

from __future__ import annotations

import hashlib
import random

SEED_BYTES = 16


def fork(seed: int, *labels: str | int) -> random.Random:
    """A stream of its own for (seed, labels): the same on every machine, interpreter and PYTHONHASHSEED.

    >>> fork(7, "loss", "n01").random() == fork(7, "loss", "n01").random()
    True
    """
    text = "/".join([str(seed), *map(str, labels)])
    digest = hashlib.blake2b(text.encode(), digest_size=SEED_BYTES).digest()
    return random.Random(int.from_bytes(digest, "big"))

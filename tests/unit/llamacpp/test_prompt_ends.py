"""Logits at the ends of prompts: what is kept, and what goes."""

from __future__ import annotations

import numpy as np

from saiserve.engines.llamacpp.prompt_ends import PromptEnds

LOGITS = np.zeros(4, np.float32)


def test_the_least_lately_used_go_when_there_are_too_many() -> None:
    ends = PromptEnds(bytes_max=2 * LOGITS.nbytes)
    for key in (b"a", b"b", b"b"):
        ends.keep(key, LOGITS)
    ends.take(b"a")
    ends.keep(b"c", LOGITS)
    assert [key in ends for key in (b"a", b"b", b"c")] == [True, False, True]


def test_once_cleared_there_is_room_for_as_many_as_before() -> None:
    ends = PromptEnds(bytes_max=2 * LOGITS.nbytes)
    for keys in ((b"a", b"b"), (b"c", b"d")):
        for key in keys:
            ends.keep(key, LOGITS)
        assert all(key in ends for key in keys)
        ends.clear()
        assert not any(key in ends for key in keys)


def test_what_is_kept_and_what_is_taken_are_copies() -> None:
    ends, logits = PromptEnds(), LOGITS.copy()
    ends.keep(b"a", logits)
    logits[:] = 1
    ends.take(b"a")[:] = 2
    assert not ends.take(b"a").any()

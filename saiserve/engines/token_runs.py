"""Runs of tokens in one message: joined for a reader who is late, and taken apart again where each token counts."""

from __future__ import annotations

from itertools import accumulate, pairwise

from saiserve.engines.messages import Tokens


def merged(first: Tokens, second: Tokens) -> Tokens:
    """Two runs of tokens as one, which still says what bytes are whose if both did."""
    logprobs = None
    if first.logprobs is not None and second.logprobs is not None:
        logprobs = first.logprobs + second.logprobs
    sizes = (_sizes(first), _sizes(second))
    known = sizes[0] + sizes[1] if all(sizes) else ()
    return Tokens(first.id, first.ids + second.ids, first.data + second.data, logprobs, known)


def singly(message: Tokens) -> list[Tokens]:
    """The tokens of a run one by one; the run as it is where it does not say what bytes are whose."""
    sizes = _sizes(message)
    if len(message.ids) == 1 or len(sizes) != len(message.ids) or sum(sizes) != len(message.data):
        return [message]
    entries = [(entry,) for entry in message.logprobs] if message.logprobs else [None] * len(sizes)
    pieces = [message.data[start:end] for start, end in pairwise(accumulate(sizes, initial=0))]
    return [
        Tokens(message.id, (token,), piece, entry)
        for token, piece, entry in zip(message.ids, pieces, entries, strict=True)
    ]


def _sizes(message: Tokens) -> tuple[int, ...]:
    return message.sizes or ((len(message.data),) if len(message.ids) == 1 else ())

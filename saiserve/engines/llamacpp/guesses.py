"""A lone stream's guesses: which are computed with its last token, and which turned out right. Part of the scheduler."""

from __future__ import annotations

from collections import Counter

from saiserve.engines.llamacpp.lookup import Lookup
from saiserve.engines.llamacpp.prefix_cache import PrefixCache
from saiserve.engines.llamacpp.stream import Stream


class Guesses:
    """Drafts by prompt lookup (decision 0151)."""

    def __init__(self, cache: PrefixCache, *, is_on: bool, batch_max: int, counts: Counter[str]) -> None:
        self._cache = cache
        self._is_on = is_on
        self._batch_max = batch_max
        self._counts = counts

    def draft(self, now: int, decoding: list[Stream]) -> tuple[int, ...]:
        """Guesses of what follows a lone stream's last token."""
        if len(decoding) != 1 or not self._is_on:
            return ()
        (stream,) = decoding
        stream.lookup = stream.lookup or Lookup()
        most = min(stream.job.max_tokens - stream.drawn - 1, self._batch_max - 1)
        draft = stream.lookup.propose(stream.tokens, most)
        if not draft or not self._cache.room.make(now, 1 + len(draft)):
            return ()
        self._counts["drafted"] += len(draft)
        return draft

    def compare(self, stream: Stream, token: int) -> None:
        """A draft's next token is the one drawn, so that its logits count too, or the rest was for nothing."""
        assert stream.held is not None
        assert stream.lookup is not None
        right = token == stream.draft[0]
        if right:
            stream.draft = stream.draft[1:]
            self._cache.confirm(stream.held, 1)
            self._counts.update(("draft_hits", "decode_tokens"))
        if not right or not stream.draft:
            count = stream.drafted - len(stream.draft)
            stream.lookup.judge(len(stream.tokens), stream.drafted, count)
            self.retract(stream)

    def retract(self, stream: Stream) -> None:
        """What was not drawn is taken back."""
        if stream.draft:
            assert stream.held is not None
            self._cache.retract(stream.held)
            stream.draft = ()

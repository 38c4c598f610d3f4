"""Which log-probabilities belong to the answer's content: those of tokens with a character in it.

Theory: every character of the output is undecided until the parsers say what it is. What they give out as text are
pieces of the undecided characters, in order; the rest (reasoning, marks, calls, newlines around them) is gone once they
hold it no longer. So a piece can be found again, and with it the tokens that it came from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from saiserve.chat.call_pieces import Piece
from saiserve.engines.messages import TokenLogprob


class ContentLogprobs:
    """One choice's. Positions count characters of the output."""

    def __init__(self) -> None:
        self._undecided = ""
        self._start = 0
        """Position of the first undecided character."""
        self._covered = 0
        """Where the last token ended."""
        self._entries: deque[tuple[int, int, TokenLogprob]] = deque()
        """(first character, character after the last, entry) of tokens not given out and not dropped."""

    def add(self, text: str, logprobs: Sequence[TokenLogprob] | None) -> None:
        """Take in the next text, and the tokens that end with it."""
        self._undecided += text
        if logprobs:
            end = self._start + len(self._undecided)
            self._entries += ((self._covered, end, entry) for entry in logprobs)
            self._covered = end

    def skip(self, kept: int) -> None:
        """All but the last `kept` undecided characters are no content."""
        self._decide(len(self._undecided) - kept)

    def settle(self, pieces: Sequence[Piece], kept: int) -> list[tuple[TokenLogprob, ...]]:
        """All but the last `kept` undecided characters became these pieces; return the entries of each one."""
        decided = max(0, len(self._undecided) - kept)
        if not self._entries:
            self._decide(decided)
            return [()] * len(pieces)
        places = _places(self._undecided[:decided], pieces)
        found = [
            self._take(self._start + at, self._start + at + len(piece)) if isinstance(piece, str) else ()
            for at, piece in zip(places, pieces, strict=True)
        ]
        self._decide(decided)
        return found

    def _take(self, start: int, end: int) -> tuple[TokenLogprob, ...]:
        """Entries of the tokens with a character between these positions; those before are dropped."""
        taken: list[TokenLogprob] = []
        while self._entries and self._entries[0][0] < end:
            _, stop, entry = self._entries.popleft()
            if stop > start:
                taken.append(entry)
        return tuple(taken)

    def _decide(self, count: int) -> None:
        if count <= 0:
            return
        self._undecided = self._undecided[count:]
        self._start += count
        while self._entries and self._entries[0][1] <= self._start:
            self._entries.popleft()


def _places(text: str, pieces: Sequence[Piece]) -> list[int]:
    """Where in `text` each piece of text begins: before the first call from the left, behind the last from the right."""
    places = [0] * len(pieces)
    calls = [index for index, piece in enumerate(pieces) if not isinstance(piece, str)]
    right = len(text)
    behind = calls[-1] if calls else len(pieces)
    for index in range(len(pieces) - 1, behind, -1):
        piece = pieces[index]
        assert isinstance(piece, str)
        right = max(0, text.rfind(piece, 0, right))
        places[index] = right
    left = 0
    for index, piece in enumerate(pieces[:behind]):
        if isinstance(piece, str):
            places[index] = max(left, text.find(piece, left, right))
            left = places[index] + len(piece)
    return places

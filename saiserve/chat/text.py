"""Tokens' bytes to text that can be shown: whole characters only, and nothing that may turn out to be a stop string.

Both machines give the same text however their input is cut, so a streamed answer equals an unstreamed one.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable


class Utf8Assembler:
    """Joins the bytes of tokens into text, holding back a character whose bytes have not all come.

    Bytes that are not UTF-8 become U+FFFD, one for each maximal ill-formed part (Unicode §3.9, as browsers do).
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> str:
        """Text that is complete now; may be empty."""
        return self._decoder.decode(data)

    def finish(self) -> str:
        """What was held back, as U+FFFD; the assembler is empty afterwards."""
        return self._decoder.decode(b"", final=True)

    @property
    def pending(self) -> bytes:
        """Bytes of a character not complete yet, at most three."""
        return self._decoder.getstate()[0]


class StopMatcher:
    """Watches text for stop strings and holds back what may be the beginning of one (vLLM and llama.cpp do the same).

    The stop string whose last character comes first ends the answer; of two that end together the longer one does.
    The cost is a few table steps for each character and stop string (Knuth, Morris, Pratt), whatever their lengths.
    """

    def __init__(self, stops: Iterable[str] = ()) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._borders = tuple(_borders(stop) for stop in self._stops)
        self._matched = [0] * len(self._stops)
        self._held = ""
        self.found: str | None = None
        """The stop string that ended the answer, None so far."""

    @property
    def held(self) -> str:
        """Text not given out yet, because it may be the beginning of a stop string."""
        return self._held

    def feed(self, text: str) -> str:
        """Text that is safe to show. Once `found` is set, this and everything after it is empty or cut."""
        if self.found is not None or not text:
            return ""
        if not self._stops:
            return text
        offset = len(self._held)
        joined = self._held + text
        for end, character in enumerate(text, start=offset + 1):
            stop = self._step(character)
            if stop is not None:
                self.found, self._held = stop, ""
                return joined[: end - len(stop)]
        keep = max(self._matched)
        safe = len(joined) - keep
        self._held = joined[safe:]
        return joined[:safe]

    def finish(self) -> str:
        """The held text, which is no stop string after all; the matcher holds nothing afterwards."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._stops)
        return held

    def _step(self, character: str) -> str | None:
        found: str | None = None
        for index, stop in enumerate(self._stops):
            borders, state = self._borders[index], self._matched[index]
            while state and stop[state] != character:
                state = borders[state - 1]
            if stop[state] == character:
                state += 1
            if state == len(stop):
                if found is None or len(stop) > len(found):
                    found = stop
                state = borders[state - 1]
            self._matched[index] = state
        return found


def _borders(stop: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix (the KMP failure table)."""
    table = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = table[length - 1]
        if stop[index] == stop[length]:
            length += 1
        table[index] = length
    return table

"""Whose turn it is when running streams use different LoRA adapters: a batch is computed with one set of weights. Pure.

Adapters take turns by steps, in a ring over those that have something to compute, so none waits longer than the others'
turns. With one adapter in use nothing is ever withheld.
"""

from __future__ import annotations

from collections.abc import Sequence

from saiserve.engines.llamacpp.stream import Stream

TURN_STEPS = 4
"""Steps of one adapter before the next: a change of weights costs a rebuilt graph, a long turn makes others wait."""


class AdapterTurns:
    """The ring."""

    def __init__(self) -> None:
        self._current = ""
        self._steps = 0

    def pick(self, streams: Sequence[Stream]) -> Sequence[Stream]:
        """The streams that may share the next batch; asking again changes nothing until `planned`."""
        waiting = {stream.job.adapter for stream in streams if stream.is_decoding or stream.prefill_left > 0}
        if not waiting:
            return streams
        if self._current not in waiting or (self._steps >= TURN_STEPS and len(waiting) > 1):
            ring = sorted(waiting)
            self._current = next((name for name in ring if name > self._current), ring[0])
            self._steps = 0
        if len(waiting) == 1:
            return [stream for stream in streams if stream.job.adapter in waiting]
        return [stream for stream in streams if stream.job.adapter == self._current]

    def planned(self) -> None:
        """A step of the streams last picked will be computed."""
        self._steps += 1

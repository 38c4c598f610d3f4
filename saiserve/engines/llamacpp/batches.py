"""Which streams share the next batch and with how many rows each, as far as cells allow. Part of the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from saiserve.engines.llamacpp.adapter_turns import AdapterTurns
from saiserve.engines.llamacpp.batch import Pace, allot_prefill, compose
from saiserve.engines.llamacpp.guesses import Guesses
from saiserve.engines.llamacpp.job import Step
from saiserve.engines.llamacpp.rates import Rates
from saiserve.engines.llamacpp.room import Room
from saiserve.engines.llamacpp.scheduler_config import SchedulerConfig
from saiserve.engines.llamacpp.stream import Stream


class Batches:
    """Composes batches. `streams` and `running` are the scheduler's own; `give_way` ends or requeues one that runs."""

    def __init__(
        self,
        config: SchedulerConfig,
        rates: Rates,
        room: Room,
        guesses: Guesses,
        *,
        streams: Mapping[str, Stream],
        running: Mapping[int, Stream],
        give_way: Callable[[int], None],
    ) -> None:
        self.read_last = False
        """Whether the last step was a prompt's own while streams ran."""
        self._apart = config.apart
        self._pace = Pace(config, rates)
        self._turns = AdapterTurns()
        self._room = room
        self._guesses = guesses
        self._streams = streams
        self._running = running
        self._give_way = give_way
        self._suspects: list[str] = []
        """Jobs of a batch that the model refused, to be run alone; the last one first."""

    def next(self, now: int) -> Step | None:
        """The next batch, made to fit the cells there are; None when there is nothing to compute."""
        while True:
            eligible = self._eligible()
            streams = self._turns.pick(eligible)
            running = decoding = [stream for stream in streams if stream.is_decoding]
            prefilling = [stream for stream in streams if stream.prefill_left > 0]
            if not decoding and not prefilling:
                return None
            if self._apart and decoding and prefilling:
                decoding, prefilling = (decoding, []) if self.read_last else ([], prefilling)
            allotted: list[tuple[Stream, int]] = []
            if prefilling:
                prefilling = self._pace.order(prefilling)
                beside = sum(stream.is_decoding for stream in eligible)
                allotted = allot_prefill(prefilling, self._pace.rows(beside, len(prefilling)))
            wanted = len(decoding) + sum(count for _, count in allotted)
            if not self._room.make(now, wanted):
                allotted = allot_prefill(prefilling, self._room.cells - len(decoding))
            if not allotted:  # no cell for a prompt: the running ones go on
                decoding = running
            if len(decoding) <= self._room.cells and (decoding or allotted):
                self.read_last = len(decoding) < len(running)
                may_guess = not (allotted or self._suspects)
                return compose(decoding, allotted, self._guesses.draft(now, decoding) if may_guess else ())
            self._give_way(now)

    def _eligible(self) -> list[Stream]:
        """Streams that may compute: all, or one suspect alone after a batch was rejected."""
        while self._suspects:
            stream = self._streams.get(self._suspects[-1])
            if stream is not None and stream.held is not None and stream.held.ready < len(stream.tokens):
                return [stream]
            self._suspects.pop()
        return list(self._running.values())

    def planned(self) -> None:
        """The last batch will be computed."""
        self._turns.planned()

    def computed(self) -> None:
        """It was: a suspect that was alone in it is none."""
        if self._suspects:
            self._suspects.pop()

    def suspect(self, job_ids: Iterable[str]) -> None:
        """The model refused a batch of these jobs: each is run alone next."""
        self._suspects = list(job_ids)

    def clear(self, job_id: str) -> None:
        """A job has ended: it is no suspect any more."""
        self._suspects = [suspect for suspect in self._suspects if suspect != job_id]

"""A KV cache that knows which token is in which cell, loses what llama.cpp loses silently, and is loud about misuse.

Models of what llama.cpp does, one class per memory:

    _Cells      attention cells: shared by copy, all-or-nothing placing. With a window, a cell that only one sequence
                owns and that its next token will not look at may be taken by anybody (find_slot), from the last place on
                even while empty cells exist.
    _States     recurrent states: one per sequence, copied whole whatever the range, cut only to nothing.

FULL has one _Cells; WINDOW two (full layers and windowed layers); RECURRENT is the hybrid: cells and states.
A row is computed only if every position it looks at is there: otherwise `WrongPrefixError`, for the real thing would
answer with wrong logits and say nothing.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Iterable
from itertools import chain

from saiserve.engines.llamacpp.kv import DecodeOutcome, Family, KvCache, Row
from saiserve.engines.llamacpp.saved_state import SavedState

IDS_MAX = 256
"""llama.cpp aborts the process beyond."""


class MisuseError(AssertionError):
    """The real cache would abort the process, corrupt memory or refuse the batch."""


class WrongPrefixError(AssertionError):
    """The real cache would compute wrong logits without a word."""


class _Cells:
    def __init__(self, total: int, window: int) -> None:
        self.total = total
        self.window = window
        self.position = [-1] * total
        self.token = [-1] * total
        self.owners: list[set[int]] = [set() for _ in range(total)]
        self.of: dict[int, dict[int, int]] = defaultdict(dict)
        """sequence → position → cell"""
        self.head = 0
        self.used = 0

    def span(self, sequence: int) -> tuple[int, int]:
        cells = self.of.get(sequence)
        return (min(cells), max(cells)) if cells else (-1, -1)

    def copy(self, source: int, destination: int, start: int, end: int) -> None:
        for position, cell in list(self.of.get(source, {}).items()):
            if start <= position < end and position not in self.of[destination]:
                self.of[destination][position] = cell
                self.owners[cell].add(destination)

    def remove(self, sequence: int, start: int, end: int) -> None:
        for position, cell in list(self.of.get(sequence, {}).items()):
            if start <= position < end:
                self._disown(sequence, position, cell)

    def _disown(self, sequence: int, position: int, cell: int) -> None:
        del self.of[sequence][position]
        self.owners[cell].discard(sequence)
        if not self.owners[cell]:
            self.used -= 1
            self.head = min(self.head, cell)

    def _may_take(self, cell: int, last: dict[int, int]) -> bool:
        owners = self.owners[cell]
        if not owners:
            return True
        if not self.window or len(owners) > 1:
            return False
        (owner,) = owners
        return last[owner] + 1 - self.position[cell] >= self.window

    def find(self, count: int) -> list[int] | None:
        """Cells for `count` tokens from `head` on, None if there are not enough."""
        if not self.window and self.total - self.used < count:
            return None
        last = {sequence: max(cells) for sequence, cells in self.of.items() if cells} if self.window else {}
        found: list[int] = []
        for cell in chain(range(self.head, self.total), range(self.head)):
            if len(found) == count:
                break
            if self._may_take(cell, last):
                found.append(cell)
        return found if len(found) == count else None

    def put(self, cell: int, sequence: int, position: int, token: int) -> None:
        self.used += not self.owners[cell]
        for owner in list(self.owners[cell]):
            del self.of[owner][self.position[cell]]  # silently lost
        self.position[cell], self.token[cell], self.owners[cell] = position, token, {sequence}
        self.of[sequence][position] = cell
        self.head = (cell + 1) % self.total

    def tokens(self, sequence: int) -> dict[int, int]:
        return {position: self.token[cell] for position, cell in self.of.get(sequence, {}).items()}


class _States:
    """Sequence → all tokens it has seen, as the recurrent state would know them."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[int, ...]] = {}

    def span(self, sequence: int) -> tuple[int, int]:
        seen = self.seen.get(sequence, ())
        return (len(seen) - 1, len(seen) - 1)


class FakeKv:
    """See the module. `decoded` counts rows computed, `calls` the operations."""

    def __init__(self, family: Family, *, cells: int, sequences: int, window: int = 0, batch_max: int = 64) -> None:
        if (window > 0) != (family is Family.WINDOW):
            raise MisuseError("a window belongs to WINDOW, and only there")
        self._family = family
        self._sequences = sequences
        self._window = window
        self._batch_max = batch_max
        self.full = _Cells(cells, 0)
        self.windowed = _Cells(cells, window) if window else None
        self.states = _States() if family is Family.RECURRENT else None
        self.decoded = 0
        self.calls: dict[str, int] = defaultdict(int)
        self.no_room_next = 0
        """Pretend so many times that the cache is fuller than anybody counted."""
        self.reject_token: int | None = None
        """Refuse batches with this token."""

    @property
    def family(self) -> Family:
        return self._family

    @property
    def cells_total(self) -> int:
        return self.full.total

    @property
    def sequences_max(self) -> int:
        return self._sequences

    @property
    def window(self) -> int:
        return self._window

    @property
    def cells_used(self) -> int:
        """The truth that the ledger must match."""
        return self.full.used

    @property
    def sequences_used(self) -> set[int]:
        """Ids that hold anything, twins included."""
        held = {sequence for cells in self._memories() for sequence, owned in cells.of.items() if owned}
        return held | (set(self.states.seen) if self.states is not None else set())

    def _memories(self) -> Iterable[_Cells]:
        return [self.full] if self.windowed is None else [self.full, self.windowed]

    def _check_id(self, sequence: int) -> None:
        if not 0 <= sequence < min(IDS_MAX, 2 * self._sequences):
            raise MisuseError(f"sequence id {sequence} is out of range")

    def rewind(self) -> None:
        self.calls["rewind"] += 1
        if self.sequences_used:
            raise MisuseError("what is held would be lost")
        for cells in self._memories():
            cells.head = 0

    def clear(self) -> None:
        self.calls["clear"] += 1
        for cells in self._memories():
            cells.__init__(cells.total, cells.window)  # type: ignore[misc]
        if self.states is not None:
            self.states.seen.clear()

    def copy(self, source: int, destination: int, start: int, end: int) -> None:
        self._check_id(source)
        self._check_id(destination)
        self.calls["copy"] += 1
        if source == destination:
            raise MisuseError("copy onto itself")
        end = end if end >= 0 else 1 << 60
        if self.family is Family.RECURRENT and self.states is not None:
            if destination >= self._sequences:
                raise MisuseError("a twin of a recurrent sequence leaks: remove is refused")
            if source in self.states.seen:
                self.states.seen[destination] = self.states.seen[source]
        for cells in self._memories():
            cells.copy(source, destination, start, end)

    def remove(self, sequence: int, start: int, end: int) -> bool:
        self._check_id(sequence)
        self.calls["remove"] += 1
        everything = start <= 0 and end < 0
        end = end if end >= 0 else 1 << 60
        if self.states is not None and sequence in self.states.seen:
            if everything:
                del self.states.seen[sequence]
            elif start < len(self.states.seen[sequence]):
                return False
        for cells in self._memories():
            cells.remove(sequence, start, end)
        return True

    def span(self, sequence: int) -> tuple[int, int]:
        self._check_id(sequence)
        self.calls["span"] += 1
        if self.windowed is not None:
            return self.windowed.span(sequence)
        if self.states is None:
            return self.full.span(sequence)
        of_cells, of_state = self.full.span(sequence), self.states.span(sequence)
        return (max(of_cells[0], of_state[0]), min(of_cells[1], of_state[1]))

    def save(self, sequence: int, *, partial: bool) -> bytes:
        self._check_id(sequence)
        self.calls["save"] += 1
        if partial and self.family is Family.FULL:
            raise MisuseError("partial state of a full-attention cache is the whole of it")
        windowed = None
        if self.windowed is not None:
            kept = self.windowed.tokens(sequence)
            last = max(kept, default=-1)
            windowed = {position: token for position, token in kept.items() if position > last - self._window}
        seen = self.states.seen.get(sequence) if self.states is not None else None
        return pickle.dumps((partial, None if partial else self.full.tokens(sequence), windowed, seen))

    def restore(self, sequence: int, blob: SavedState, *, partial: bool) -> bool:
        self._check_id(sequence)
        self.calls["restore"] += 1
        was_partial, full, windowed, seen = pickle.loads(blob)
        if was_partial != partial:
            raise MisuseError("state saved with another flag")
        if not partial:
            self.remove(sequence, 0, -1)
            if not self._put_all(self.full, sequence, full):
                return False
        if self.windowed is not None and windowed is not None:
            self.windowed.remove(sequence, 0, 1 << 60)
            if not self._put_all(self.windowed, sequence, windowed):
                self.remove(sequence, 0, -1)
                return False
        if self.states is not None and seen is not None:
            self.states.seen[sequence] = seen
        return True

    def _put_all(self, cells: _Cells, sequence: int, tokens: dict[int, int]) -> bool:
        found = cells.find(len(tokens))
        if found is None:
            return False
        for cell, (position, token) in zip(found, sorted(tokens.items()), strict=True):
            cells.put(cell, sequence, position, token)
        return True

    def decode(self, rows: tuple[Row, ...]) -> DecodeOutcome:
        self.calls["decode"] += 1
        if not 0 < len(rows) <= self._batch_max:
            raise MisuseError(f"{len(rows)} rows in a batch of {self._batch_max}: the process aborts")
        if self.no_room_next:
            self.no_room_next -= 1
            return DecodeOutcome.NO_ROOM
        self._check_positions(rows)
        if any(row.token == self.reject_token for row in rows):
            return DecodeOutcome.REJECTED
        found = [cells.find(len(rows)) for cells in self._memories()]
        if any(cells is None for cells in found):
            return DecodeOutcome.NO_ROOM
        for index, row in enumerate(rows):
            for cells, places in zip(self._memories(), found, strict=True):
                assert places is not None
                cells.put(places[index], row.sequence, row.position, row.token)
        for row in rows:
            self._compute(row)
        self.decoded += len(rows)
        return DecodeOutcome.DONE

    def _check_positions(self, rows: tuple[Row, ...]) -> None:
        following: dict[int, int] = {}
        for row in rows:
            if not 0 <= row.sequence < self._sequences:
                raise MisuseError(f"sequence {row.sequence} in a batch of {self._sequences} sequences")
            expected = following.get(row.sequence, self.full.span(row.sequence)[1] + 1)
            if row.position != expected:
                raise MisuseError(f"sequence {row.sequence}: position {row.position}, expected {expected}")
            following[row.sequence] = row.position + 1

    def _compute(self, row: Row) -> None:
        """Fail if anything that this row looks at is missing or another sequence's."""
        held = self.full.of[row.sequence]
        if len([position for position in held if position < row.position]) != row.position:
            raise WrongPrefixError(f"sequence {row.sequence} has holes below {row.position}")
        if self.windowed is not None:
            seen = self.windowed.tokens(row.sequence)
            for position in range(max(0, row.position - self._window + 1), row.position):
                if seen.get(position) != self.full.token[held[position]]:
                    raise WrongPrefixError(f"sequence {row.sequence} lost window cell {position} before {row.position}")
        if self.states is not None:
            before = self.states.seen.get(row.sequence, ())
            cells = self.full.tokens(row.sequence)
            if before != tuple(cells[position] for position in range(row.position)):
                raise WrongPrefixError(f"sequence {row.sequence}: state of {len(before)} ids at {row.position}")
            self.states.seen[row.sequence] = (*before, row.token)

    def context(self, sequence: int) -> tuple[int, ...]:
        """The ids in the cells of a sequence, in order."""
        tokens = self.full.tokens(sequence)
        return tuple(tokens[position] for position in sorted(tokens))


def _is_a_cache(kv: FakeKv) -> KvCache:
    return kv

"""Counts KV cells exactly: which are used, and which only idle sequences hold. llama.cpp has no call for it.

Sequences that share a prefix share its cells, so the cells form a tree of runs; a sequence is a path from the root to
the run where it ends. Two sequences that computed the same tokens apart hold two runs: this tree is about cells, the
one about tokens is prefix_tree.py.
"""

from __future__ import annotations

from collections.abc import Iterator


class _Run:
    """Consecutive cells with the same owners."""

    __slots__ = ("active", "children", "length", "owners", "parent", "tips")

    def __init__(self, parent: _Run | None, length: int) -> None:
        self.parent = parent
        self.length = length
        self.owners = 0
        """Sequences that pass through or end here."""
        self.active = 0
        """Those of them that are not idle."""
        self.tips: set[int] = set()
        """Sequences that end here."""
        self.children: set[_Run] = set()


class CellLedger:
    """Exact cell counts under fork, extend, truncate and drop. Unknown sequences are empty and active."""

    def __init__(self) -> None:
        self._root = _Run(None, 0)
        self._tip: dict[int, _Run] = {}
        self._idle: set[int] = set()
        self.used = 0
        """Cells held by any sequence."""
        self.idle = 0
        """Cells held by idle sequences only."""

    def length(self, sequence: int) -> int:
        """Cells of one sequence, shared ones included."""
        return sum(run.length for run in self._path(sequence))

    def unique(self, sequence: int) -> int:
        """Cells that would come free if this sequence were dropped."""
        total = 0
        for run in self._path(sequence):
            if run.owners > 1:
                break
            total += run.length
        return total

    def fork(self, source: int, destination: int, cut: int) -> None:
        """Let an empty `destination` share the first `cut` cells of `source`."""
        assert destination not in self._tip, f"sequence {destination} is not empty"
        if cut:
            self._move_tip(destination, self._run_ending_at(source, cut))

    def extend(self, sequence: int, count: int) -> None:
        """Add new cells at the end of a sequence."""
        if count == 0:
            return
        tip = self._tip.get(sequence)
        if tip is not None and tip.owners == 1:
            tip.length += count
            self.used += count
            self.idle += count if sequence in self._idle else 0
        else:
            run = _Run(tip or self._root, count)
            assert run.parent is not None
            run.parent.children.add(run)
            self._move_tip(sequence, run)

    def truncate(self, sequence: int, cut: int) -> None:
        """Keep only the first `cut` cells of a sequence."""
        if cut < self.length(sequence):
            self._move_tip(sequence, self._run_ending_at(sequence, cut) if cut else None)

    def drop(self, sequence: int) -> None:
        """Forget a sequence and free the cells only it held."""
        self._move_tip(sequence, None)
        self._idle.discard(sequence)

    def set_idle(self, sequence: int, idle: bool) -> None:
        """Say whether a sequence is only kept for reuse."""
        if (sequence in self._idle) == idle:
            return
        for run in self._path(sequence):
            self._count(run, 0, -1 if idle else 1)
        (self._idle.add if idle else self._idle.discard)(sequence)

    def _path(self, sequence: int) -> Iterator[_Run]:
        """Runs of a sequence from its end to the start."""
        run = self._tip.get(sequence)
        while run is not None and run is not self._root:
            yield run
            run = run.parent

    def _run_ending_at(self, sequence: int, cut: int) -> _Run:
        """The run of a sequence that ends after `cut` cells, made by a split if need be."""
        end = self.length(sequence)
        assert 0 < cut <= end, f"sequence {sequence} has {end} cells, not {cut}"
        for run in self._path(sequence):
            start = end - run.length
            if start < cut:
                return self._split(run, cut - start) if cut < end else run
            end = start
        raise AssertionError("runs do not reach the start")

    def _split(self, run: _Run, at: int) -> _Run:
        """Cut a run in two and return the upper part; `run` stays the lower one, so that tips need no change."""
        assert run.parent is not None
        upper = _Run(run.parent, at)
        upper.owners, upper.active = run.owners, run.active
        run.parent.children.discard(run)
        run.parent.children.add(upper)
        upper.children.add(run)
        run.parent = upper
        run.length -= at
        return upper

    def _move_tip(self, sequence: int, tip: _Run | None) -> None:
        """Let a sequence end at `tip` (None: nowhere), free what nobody owns now and join runs cut for nothing."""
        active = 0 if sequence in self._idle else 1
        run = tip
        while run is not None and run is not self._root:
            self._count(run, 1, active)
            run = run.parent
        old = self._tip.pop(sequence, None)
        if tip is not None:
            self._tip[sequence] = tip
            tip.tips.add(sequence)
        if old is None:
            return
        if old is not tip:
            old.tips.discard(sequence)
        run = old
        while run is not None and run is not self._root:
            parent = run.parent
            assert parent is not None
            self._count(run, -1, -active)
            if run.owners == 0:
                parent.children.discard(run)
            else:
                self._join(run)
            run = parent

    def _join(self, run: _Run) -> None:
        """Merge a run into its only child when no sequence ends between them."""
        if run.tips or len(run.children) != 1 or run.parent is None:
            return
        (child,) = run.children
        child.length += run.length
        child.parent = run.parent
        run.parent.children.discard(run)
        run.parent.children.add(child)

    def _count(self, run: _Run, owners: int, active: int) -> None:
        """Change a run's owner counts and the totals with them."""
        held, was_idle = run.owners > 0, run.owners > 0 and run.active == 0
        run.owners += owners
        run.active += active
        self.used += run.length * ((run.owners > 0) - held)
        self.idle += run.length * ((run.owners > 0 and run.active == 0) - was_idle)

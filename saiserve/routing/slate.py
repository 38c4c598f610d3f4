"""The candidates of one request on their way through the chain.

A slate is immutable and knows four moves: drop (`keep`), refine bands (`split`), order inside bands (`order`) and
`refuse`. There is no move that brings a candidate back or lets one overtake a better band, so that what an earlier
strategy decided stands: correctness, then balance, then efficiency.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from saiserve.routing.candidate import Candidate, Placement, RoutingRequest
from saiserve.routing.decision import Dropped, Ranked, Refusal

Reason = str | Callable[[Candidate], str]
"""A phrase, or a function that writes one for a candidate."""


@dataclass(frozen=True, slots=True)
class Slate:
    """`ranked` is always sorted by band; inside a band, earlier is better.

    Build one with `Slate.of`; derive others by its methods only.
    """

    ranked: tuple[Ranked, ...]
    dropped: tuple[Dropped, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    refusal: Refusal | None = None
    by: str = "route"
    """The strategy at work, recorded with each drop; the chain sets it."""

    @staticmethod
    def of(candidates: Iterable[Candidate], request: RoutingRequest) -> Slate:
        """The slate before any strategy: one band, shuffled by a keyed hash so that no order is built in.

        Upstream targets the route does not name are dropped here, whatever the chain, and so are second entries of an
        id. The result does not depend on the order of `candidates`.
        """
        given = tuple(candidates)
        if len({c.id for c in given}) < len(given):
            given = tuple(sorted(given, key=repr))
        seen: dict[str, Candidate] = {}
        dropped = []
        for candidate in sorted(given, key=lambda c: c.id):
            if candidate.id in seen:
                dropped.append(Dropped(candidate, "route", "a second entry of this id"))
            elif candidate.placement is Placement.UPSTREAM and candidate.node not in request.upstreams:
                dropped.append(Dropped(candidate, "route", "the route does not name this upstream"))
            else:
                seen[candidate.id] = candidate
        shuffled = sorted(seen.values(), key=lambda c: (request.draw(f"slate:{c.id}"), c.id))
        return Slate(ranked=tuple(Ranked(c) for c in shuffled), dropped=tuple(dropped))

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Those still in, best first."""
        return tuple(r.candidate for r in self.ranked)

    @property
    def bands(self) -> Iterator[tuple[Candidate, ...]]:
        """Those still in, band by band, best first."""
        for _, group in groupby(self.ranked, key=lambda r: r.band):
            yield tuple(r.candidate for r in group)

    def under(self, name: str) -> Slate:
        """The same slate, with `name` as the strategy at work."""
        return replace(self, by=name)

    def keep(self, test: Callable[[Candidate], bool], reason: Reason) -> Slate:
        """Drop those that fail `test`; `reason` says what is wrong with them."""
        stays = tuple(r for r in self.ranked if test(r.candidate))
        if len(stays) == len(self.ranked):
            return self
        ids = {r.candidate.id for r in stays}
        goes = tuple(
            Dropped(r.candidate, self.by, _phrase(reason, r.candidate) or "dropped without a word")
            for r in self.ranked
            if r.candidate.id not in ids
        )
        return replace(self, ranked=stays, dropped=self.dropped + goes)

    def split(self, key: Callable[[Candidate], float], reason: Reason = "") -> Slate:
        """Refine each band by `key`, smaller first. Candidates of different bands never change places."""
        keys = {r.candidate.id: (r.band, _number(key(r.candidate))) for r in self.ranked}
        index = {pair: number for number, pair in enumerate(sorted(set(keys.values())))}
        split = (
            Ranked(r.candidate, index[keys[r.candidate.id]], r.cost, self._reasons(r, reason)) for r in self.ranked
        )
        return replace(self, ranked=tuple(sorted(split, key=lambda r: r.band)))

    def order(self, key: Callable[[Candidate], float], reason: Reason = "") -> Slate:
        """Sort inside bands by `key`, smaller first; equals keep the order they had. `cost` becomes the key."""
        costed = (Ranked(r.candidate, r.band, _number(key(r.candidate)), self._reasons(r, reason)) for r in self.ranked)
        return replace(self, ranked=tuple(sorted(costed, key=lambda r: (r.band, r.cost))))

    def label(self, name: str, value: str) -> Slate:
        """Record something about the decision; a later value replaces an earlier one."""
        return replace(self, labels=(*((n, v) for n, v in self.labels if n != name), (name, value)))

    def refuse(self, refusal: Refusal) -> Slate:
        """Nobody may serve this. All candidates are dropped with the refusal's message; the first refusal stands."""
        if self.refusal is not None:
            return self
        return replace(self.keep(lambda _: False, refusal.message), refusal=refusal)

    def _reasons(self, ranked: Ranked, reason: Reason) -> tuple[str, ...]:
        phrase = _phrase(reason, ranked.candidate)
        return (*ranked.reasons, f"{self.by}: {phrase}") if phrase else ranked.reasons


def is_lawful(before: Slate, after: Slate) -> bool:
    """Whether a strategy kept the laws: nobody came back or was lost without a reason, and bands were only refined."""
    was = {r.candidate.id: r for r in before.ranked}
    now = {r.candidate.id: r for r in after.ranked}
    reasons = {d.candidate.id for d in after.dropped if d.reason}
    if len(now) != len(after.ranked) or any(not _is_same(was.get(key), ranked) for key, ranked in now.items()):
        return False
    if after.dropped[: len(before.dropped)] != before.dropped or not (was.keys() - now.keys()) <= reasons:
        return False
    bands = [(was[r.candidate.id].band, r.band) for r in after.ranked]
    in_order = all(a[1] <= b[1] for a, b in pairwise(bands))
    refined = all(a[0] <= b[0] and (a[0] == b[0] or a[1] < b[1]) for a, b in pairwise(bands))
    return in_order and refined and (before.refusal is None or after.refusal == before.refusal)


def _is_same(before: Ranked | None, after: Ranked) -> bool:
    # Identity first: comparing candidates field by field is the dearest part of a decision.
    return before is not None and (before.candidate is after.candidate or before.candidate == after.candidate)


def _phrase(reason: Reason, candidate: Candidate) -> str:
    return reason if isinstance(reason, str) else reason(candidate)


def _number(value: float) -> float:
    """NaN sorts last, so that no input can make the order depend on chance."""
    return math.inf if math.isnan(value) else value

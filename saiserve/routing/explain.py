"""A decision in words: one line for the log, one value for a response header, a table for people.

Names in a decision come from clients, peers and configuration, so everything is escaped: a line stays one line of
printable ASCII, whatever a model is called.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from saiserve.routing.candidate import Candidate, RoutingRequest
from saiserve.routing.decision import Decision

LINE_CHARACTERS_MAX = 1_000
HEADER_CHARACTERS_MAX = 500
NAME_CHARACTERS_MAX = 80


def log_line(request: RoutingRequest, decision: Decision, *, entry: str = "", served: Candidate | None = None) -> str:
    """One line that says where a request went and why; printable ASCII, at most 1,000 characters.

    Args:
        entry: this node's name.
        served: who answered in the end, where that is known; the first attempt otherwise.
    """
    place = served or decision.first
    fields = {"route": request.id, "entry": entry, "model": request.model}
    if place is not None:
        fields |= {"node": place.node, "placement": str(place.placement)}
        if place.model != request.model:
            fields["served_model"] = place.model
        fields["why"] = why(decision, place)
        others = [r.candidate.node for r in decision.attempts if r.candidate.id != place.id]
        fields |= {"others": ",".join(map(_name, others[:5])) + ("+" if len(others) > 5 else "")} if others else {}
    if decision.refusal is not None:
        fields |= {"refused": decision.refusal.kind.value, "why": decision.refusal.message}
    if decision.dropped:
        fields["dropped"] = "; ".join(f"{_name(d.candidate.node)}: {d.reason}" for d in decision.dropped[:5])
    fields |= {name: value for name, value in decision.labels if name not in fields}
    return _cut(" ".join(f"{_key(k)}={_value(v)}" for k, v in fields.items() if v), LINE_CHARACTERS_MAX)


def header_text(decision: Decision, *, served: Candidate | None = None) -> str:
    """The same, short, as a header field value (RFC 9110 §5.5): `node=…; model=…; why="…"`."""
    place = served or decision.first
    if place is None:
        kind = decision.refusal.kind.value if decision.refusal is not None else "unknown"
        return f"refused={_value(kind)}"
    fields = {"node": place.node, "model": place.model, **dict(decision.labels), "why": why(decision, place)}
    return _cut("; ".join(f"{_key(k)}={_value(v)}" for k, v in fields.items()), HEADER_CHARACTERS_MAX)


def why(decision: Decision, place: Candidate) -> str:
    """The phrases of the strategies that placed a candidate, in order."""
    reasons = next((r.reasons for r in decision.attempts if r.candidate.id == place.id), ())
    return " | ".join(reasons) or "not in the decision"


def attempts_text(attempts: Iterable[str]) -> str:
    """Attempts in order, for the log: those alike in a row as one with their number, `a(refused) x26 -> b(done)`."""
    runs = ((text, sum(1 for _ in run)) for text, run in groupby(attempts))
    return " -> ".join(text if times == 1 else f"{text} x{times}" for text, times in runs) or "none"


def table(decision: Decision) -> str:
    """All candidates with band, cost and reasons, for people and tests."""
    rows = [
        f"{number}. {_name(r.candidate.id)}  band {r.band}  cost {r.cost:.3f}  {'; '.join(r.reasons)}"
        for number, r in enumerate(decision.attempts, start=1)
    ]
    rows += [f"-  {_name(d.candidate.id)}  dropped by {d.by}: {d.reason}" for d in decision.dropped]
    rows += [f"!  {decision.refusal.kind.value}: {decision.refusal.message}"] if decision.refusal is not None else []
    return "\n".join(_ascii(row) for row in rows)


def _value(text: str) -> str:
    """Bare when it is a plain word, quoted otherwise."""
    plain = _ascii(text)
    if plain and all(c.isalnum() or c in "-._:/@,+" for c in plain):
        return plain
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _key(text: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in text)[:NAME_CHARACTERS_MAX]


def _name(text: str) -> str:
    return _cut(_ascii(text), NAME_CHARACTERS_MAX)


def _ascii(text: str) -> str:
    """Printable ASCII; all else as escapes."""
    return "".join(c if " " <= c <= "~" else c.encode("unicode_escape").decode() for c in text)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."

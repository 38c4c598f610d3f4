"""What this node knows of the whole fleet, and the slate it makes of it for a request.

Pure: members, replies and the time come in, candidates and pictures go out. One task owns a view; nothing here awaits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from saiserve.engines.messages import Load
from saiserve.fleet.facts import (
    FactsError,
    ModelFact,
    ModelState,
    NodeFacts,
    NodeVitals,
    decode_metadata,
    decode_vitals,
)
from saiserve.fleet.held import HeldPrefixes
from saiserve.fleet.load_ledger import LOCAL_LAG_S, REPLY_LAG_S, SECOND, VITALS_LAG_S, LoadLedger
from saiserve.fleet.picture import LoadOf, member_state
from saiserve.fleet.record import NodeRecord
from saiserve.routing.candidate import Candidate, Placement, Residence, RoutingRequest
from saiserve.routing.homes import Holder, home_order
from saiserve.routing.prefix import Mark
from swimcluster.member import Member


@dataclass(frozen=True, slots=True)
class UpstreamModel:
    """A model of an upstream target that routes may name."""

    target: str
    model: str
    context_tokens: int = 0
    tags: frozenset[str] = frozenset()
    lanes: int = 64
    price_in: float = 0.0
    price_out: float = 0.0
    resting: bool = False
    """Its keys or the target itself rest after failures."""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model some member holds, for listings."""

    id: str
    ready: tuple[str, ...]
    """Nodes that can serve it now."""
    nodes: tuple[str, ...]
    """All nodes that hold it, down ones included."""
    context_tokens: int = 0
    tags: frozenset[str] = frozenset()
    lanes: int = 0
    """Streams that the ready nodes serve at once, together; 0 = unknown."""
    state: str = "unavailable"
    """ready, loading, loadable or unavailable: the best of all places."""
    template_ways: int = 0
    """As `ModelFact.template_ways`, of the best place that knows it."""


_BEST = (Residence.READY, Residence.ARRIVING, Residence.LOADING, Residence.LOADABLE, Residence.UNAVAILABLE)
_SHOWN = ("ready", "loading", "loading", "loadable", "unavailable")
"""What clients are shown of each of these."""


def _ways_of_best(held: Sequence[tuple[NodeRecord, ModelFact]]) -> int:
    """What the best place that knows the template says of it; the first of equals; 0 when none knows."""
    best_first = sorted(held, key=lambda one: _BEST.index(one[0].residence(one[1])[0]))
    return next((fact.template_ways for _, fact in best_first if fact.template_ways), 0)


class _Place(NamedTuple):
    """What a candidate has to do with one request."""

    id: str
    held: Mapping[str, int]
    home_rank: int | None


class FleetView:
    """The fleet as this node sees it. `now` is int nanoseconds of one clock, the same in every call."""

    def __init__(self, local_name: str) -> None:
        self.local_name = local_name
        self._nodes: dict[str, NodeRecord] = {local_name: NodeRecord(local_name, is_local=True)}
        self._upstreams: tuple[UpstreamModel, ...] = ()
        self._ledger = LoadLedger()
        self._held = HeldPrefixes()
        self.held_right = 0
        """Requests whose server had at least half of the tokens it was believed to hold."""
        self.held_wrong = 0
        """Requests whose server had less: its cache moves faster than this node's memory."""

    # What comes in

    def update_local(self, now: int, facts: NodeFacts, vitals: NodeVitals | None = None) -> None:
        """This node's own facts, whole, and what it tells others of its machine. Loads come by `note_load`."""
        node = self._nodes[self.local_name]
        node.advertised = facts
        if vitals is not None:
            node.vitals, node.vitals_at = vitals, now

    def update_members(self, now: int, members: Sequence[Member]) -> None:
        """The members as the cluster sees them now; one that is missing counts as gone.

        Pass departed members too, where they are known, so that leaving and dying can be told apart.
        """
        present = {member.name for member in members}
        for member in members:
            self._take_member(now, member)
        for name, node in list(self._nodes.items()):
            if name not in present and name != self.local_name and node.gone_at is None:
                self._mark_gone(now, node)
            if node.gone_at is not None and now - node.gone_at > node.retention:
                self._forget(name)
                del self._nodes[name]

    def learn_facts(self, node: str, facts: NodeFacts) -> None:
        """Full facts fetched from a member whose metadata was truncated."""
        known = self._nodes.get(node)
        if known is not None and facts.version >= known.advertised.version:
            known.full = facts

    def set_upstreams(self, upstreams: Iterable[UpstreamModel]) -> None:
        """Replace the upstream targets; routes name those they allow."""
        self._upstreams = tuple(upstreams)

    def note_load(self, now: int, node: str, model: str, load: Load) -> None:
        """A load in a reply of a node, this one included. Call it after `note_finished` for a final reply."""
        lag_s = LOCAL_LAG_S if node == self.local_name else REPLY_LAG_S
        self._ledger.report(now, candidate_id(node, model), load, lag_s=lag_s)

    def note_started(self, now: int, candidate: str, tokens: int, attempt: str) -> None:
        """An attempt is about to be sent to a candidate.

        Args:
            tokens: prompt tokens it will probably compute: estimate less what is held.
            attempt: unique id; every started attempt must be finished, cancelled ones too.
        """
        self._ledger.started(now, candidate, tokens, attempt)

    def note_finished(self, now: int, attempt: str) -> None:
        """An attempt ended, well or badly; safe to say twice."""
        self._ledger.finished(now, attempt)

    def note_held(self, now: int, marks: tuple[Mark, ...], candidate: str, cached_tokens: int = 0) -> None:
        """A candidate accepted a request with these marks and so holds them from now on.

        `cached_tokens` is what it had of them before, by its own count: the truth that beliefs are counted against
        (`held_right`, `held_wrong`). A prompt it was already known to have whole tells nothing and is not counted, so
        that a second word about one request does no harm.
        """
        believed = self._held.tokens(now, marks).get(candidate, 0)
        if marks and 0 < believed < marks[-1][1]:
            self.held_right += cached_tokens * 2 >= believed
            self.held_wrong += cached_tokens * 2 < believed
        self._held.note(now, marks, candidate)

    def note_miss(self, marks: tuple[Mark, ...], candidate: str, cached_tokens: int = 0) -> None:
        """A candidate turned out not to hold these marks deeper than `cached_tokens`."""
        self._held.miss(marks, candidate, cached_tokens)

    # What goes out

    @property
    def in_flight(self) -> int:
        """Own attempts not finished yet."""
        return self._ledger.in_flight

    def wants_facts(self) -> tuple[str, ...]:
        """Live members whose metadata was cut short and whose full facts of that version are not known."""
        return tuple(
            name
            for name, node in sorted(self._nodes.items())
            if name != self.local_name and node.gone_at is None and node.facts.truncated
        )

    def facts(self, node: str) -> NodeFacts | None:
        """The best facts known of a node; None for unknown nodes."""
        known = self._nodes.get(node)
        return None if known is None else known.facts

    def is_gone(self, node: str) -> bool:
        """Whether a member is dead or has left, or was never heard of; this node itself never is."""
        known = self._nodes.get(node)
        return known is None or known.gone_at is not None

    def candidates(self, now: int, request: RoutingRequest) -> tuple[Candidate, ...]:
        """Every place that has to do with the models the request may use, the hopeless ones included."""
        held = self._held.tokens(now, request.marks)
        wanted = tuple(dict.fromkeys((*request.wanted, *request.fallbacks)))
        found: list[Candidate] = []
        for model in wanted:
            ranks = self._home_ranks(request, model)
            for name, node in sorted(self._nodes.items()):
                fact = node.fact(model)
                if fact is not None:
                    place = _Place(candidate_id(name, model), held, ranks.get(name))
                    found.append(self._candidate(now, place, node, fact))
            found.extend(self._upstream(now, u, held) for u in self._upstreams if u.model == model)
        return tuple(found)

    def known_models(self) -> tuple[KnownModel, ...]:
        """All models that some member holds or lately held, by id."""
        held: dict[str, list[tuple[str, NodeRecord, ModelFact]]] = {}
        for name, node in sorted(self._nodes.items()):
            for fact in node.facts.models:
                held.setdefault(fact.id, []).append((name, node, fact))
        return tuple(
            KnownModel(
                id=model,
                ready=tuple(n for n, node, fact in entries if node.residence(fact)[0] is Residence.READY),
                nodes=tuple(n for n, _, _ in entries),
                context_tokens=max(fact.context for _, _, fact in entries),
                tags=frozenset[str]().union(*(fact.tags for _, _, fact in entries)),
                lanes=sum(
                    fact.lanes or node.facts.lanes
                    for _, node, fact in entries
                    if node.residence(fact)[0] is Residence.READY
                ),
                state=_SHOWN[min(_BEST.index(node.residence(fact)[0]) for _, node, fact in entries)],
                template_ways=_ways_of_best([(node, fact) for _, node, fact in entries]),
            )
            for model, entries in sorted(held.items())
        )

    def is_held(self, model: str) -> bool:
        """Whether some member holds a model, or lately held it."""
        return any(node.fact(model) is not None for node in self._nodes.values())

    def model_called(self, name: str) -> str:
        """The id of a model some member holds that is written like `name`, or in another case; else `name`."""
        held = {fact.id for node in self._nodes.values() for fact in node.facts.models}
        if name in held:
            return name
        return min((model for model in held if model.casefold() == name.casefold()), default=name)

    def state(self, now: int) -> dict[str, Any]:
        """The picture for `/cluster/state`: every member, and this node's own opinion of the way to it."""
        return {
            "node": self.local_name,
            "members": [
                member_state(now, name, node, self._load_of(now, name)) for name, node in sorted(self._nodes.items())
            ],
        }

    # Inside

    def _take_member(self, now: int, member: Member) -> None:
        node = self._nodes.get(member.name)
        if node is None:
            node = self._nodes[member.name] = NodeRecord(member.name, is_local=member.name == self.local_name)
        if node.member is not None and node.member.instance != member.instance:
            self._forget(member.name)
            node.vitals = None
        previous, node.member = node.member, member
        if member.name == self.local_name:
            return
        if member.state.is_gone:
            self._mark_gone(now, node)
        else:
            node.gone_at = None
        if previous is None or previous.metadata != member.metadata:
            _take_metadata(node, member.metadata)
        if member.vitals and (previous is None or previous.vitals != member.vitals or node.vitals is None):
            self._take_vitals(now, node, member)

    def _take_vitals(self, now: int, node: NodeRecord, member: Member) -> None:
        try:
            vitals = decode_vitals(member.vitals)
        except FactsError as error:
            node.fault = str(error)
            return
        arrived_at = now - int((member.vitals_age_s or 0.0) * SECOND)
        node.vitals, node.vitals_at = vitals, arrived_at
        facts = node.facts
        if vitals.facts_version != facts.version:
            return
        for fact, slot in zip(facts.models, vitals.slots, strict=False):
            load = Load(
                lanes=slot.lanes,
                busy=slot.busy,
                queued=slot.queued,
                queued_tokens=slot.queued_tokens,
                prefill_rate=float(slot.prefill_rate),
                decode_rate=slot.decode_rate_x10 / 10,
            )
            self._ledger.report(arrived_at, candidate_id(member.name, fact.id), load, lag_s=VITALS_LAG_S)

    def _mark_gone(self, now: int, node: NodeRecord) -> None:
        if node.gone_at is None:
            node.gone_at = now

    def _forget(self, name: str) -> None:
        """Drop what was learnt about a node's engines: it is another life, or none."""
        node = self._nodes[name]
        ids = {candidate_id(name, fact.id) for fact in node.facts.models}
        self._ledger.forget(ids)
        self._held.forget(ids)
        node.full = None

    def _load_of(self, now: int, name: str) -> LoadOf:
        return lambda model: self._ledger.effective(now, candidate_id(name, model))

    def _home_ranks(self, request: RoutingRequest, model: str) -> dict[str, int]:
        holders = []
        for name, node in self._nodes.items():
            fact = node.fact(model)
            if fact is None or fact.state is not ModelState.READY or node.facts.draining or node.gone_at is not None:
                continue
            holders.append(Holder(name, fact.lanes or node.facts.lanes))
        order = home_order(request.scaffold, request.opening, holders)
        return {name: rank for rank, name in enumerate(order)}

    def _candidate(self, now: int, place: _Place, node: NodeRecord, fact: ModelFact) -> Candidate:
        facts, load = node.facts, self._ledger.effective(now, place.id)
        residence, note = node.residence(fact)
        lag = node.lag(now, load)
        return Candidate(
            id=place.id,
            node=node.name,
            model=fact.id,
            placement=Placement.LOCAL if node.is_local else Placement.PEER,
            residence=residence,
            reachable=node.is_reachable,
            draining=facts.draining,
            digest=fact.digest,
            tags=fact.tags,
            context_tokens=fact.context,
            lanes=max(1, load.lanes or fact.lanes or facts.lanes),
            busy=load.busy,
            queued_tokens=load.queued_tokens,
            prefill_rate=load.prefill_rate,
            decode_rate=load.decode_rate,
            lagging=bool(lag),
            held_tokens=place.held.get(place.id, 0),
            home_rank=place.home_rank,
            load_age_s=0.0 if node.is_local else load.age_s,
            note=note or lag,
        )

    def _upstream(self, now: int, upstream: UpstreamModel, held: Mapping[str, int]) -> Candidate:
        identity = candidate_id(f"upstream:{upstream.target}", upstream.model)
        load = self._ledger.effective(now, identity)
        return Candidate(
            id=identity,
            node=upstream.target,
            model=upstream.model,
            placement=Placement.UPSTREAM,
            residence=Residence.UNAVAILABLE if upstream.resting else Residence.READY,
            reachable=True,
            tags=upstream.tags,
            context_tokens=upstream.context_tokens,
            lanes=upstream.lanes,
            busy=load.busy,
            held_tokens=held.get(identity, 0),
            price_in=upstream.price_in,
            price_out=upstream.price_out,
            note="resting" if upstream.resting else "",
        )


def _take_metadata(node: NodeRecord, metadata: bytes) -> None:
    try:
        node.advertised, node.fault = decode_metadata(metadata), ""
    except FactsError as error:
        node.fault = str(error)


def candidate_id(node: str, model: str) -> str:
    """The id of a model at a node, unique in a slate."""
    return f"{model}@{node}"

"""One node: its models, its view of the fleet, its dispatcher and its place in the cluster, tied together.

Facts flow one way: residents and host readings make this node's facts and vitals, membership carries them, the fleet
view collects everybody's, routing reads the view. Nothing here decides anything.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio
from blake3 import blake3

from saiserve.chat.request import GenerationRequest
from saiserve.config import Settings
from saiserve.dispatch.clock import clock_ns
from saiserve.dispatch.dispatcher import Dispatcher
from saiserve.dispatch.suspects import Suspects
from saiserve.engines.engine import HopError
from saiserve.engines.spoken import Source
from saiserve.engines.upstream.pool import Upstreams
from saiserve.fleet.facts import (
    FactsError,
    NodeFacts,
    NodeVitals,
    SlotVitals,
    decode_full,
    encode_full,
    encode_metadata,
    encode_vitals,
)
from saiserve.fleet.news import News
from saiserve.fleet.view import FleetView
from saiserve.host import HostMeter, LoopLag
from saiserve.models.catalog import Catalog, CatalogEntry
from saiserve.models.served import on_demand_models
from saiserve.models.store import store_from
from saiserve.peers.client import Peer, PeerClient
from saiserve.residents import Residents
from saiserve.routing.ask import Ask, Reply
from saiserve.routing.candidate import Candidate, Placement, RoutingRequest
from saiserve.routing.chain import Strategy, decide, route
from saiserve.routing.decision import Decision
from saiserve.routing.describe import describe
from saiserve.routing.routes import RouteRule
from saiserve.routing.slate import Slate
from swimcluster.address import Address
from swimcluster.cluster import Cluster
from swimcluster.member import Member

log = logging.getLogger(__name__)

VITALS_S: Final = 1.0
"""How often this node's load is told; the protocol carries at most one value per probe interval."""
LOCAL_LOAD_S: Final = 0.1
"""How often the own engines' load is read for own decisions."""

FACTS_CALL: Final = "facts"
"""The peer call that answers with this node's facts, whole."""
FACTS_S: Final = 5.0
"""Longest wait for another node's facts."""


def mark_salt(settings: Settings) -> bytes:
    """The salt of prefix marks: equal on all nodes, and not a key that rotates."""
    return blake3(settings.cluster_name.encode(), derive_key_context="saiserve 2026 prefix marks").digest()


@dataclass
class Node:
    """Build one, then `run` it. Everything public may be read by handlers at any time."""

    settings: Settings
    catalog: Catalog
    entries: Sequence[CatalogEntry]
    chain: Sequence[Strategy]
    host: HostMeter = field(default_factory=HostMeter)
    lag: LoopLag = field(default_factory=LoopLag)
    draining: bool = False
    cluster: Cluster | None = None
    peers: PeerClient | None = None

    def __post_init__(self) -> None:
        self.suspects = Suspects()
        self.view = FleetView(self.settings.node_name)
        self.salt = mark_salt(self.settings)
        self.news = News(self.view, clock_ns, self._describe)
        on_demand = on_demand_models(self.settings, self.entries, self.catalog)
        self.catalog = self.catalog.with_entries(on_demand)
        store = store_from(self.settings)
        self.residents = Residents(self.settings, self.entries, store, self.suspects, self.publish, on_demand)
        self.upstreams = Upstreams(self.settings.upstreams, clock_ns)
        self.dispatcher = Dispatcher(
            route=self.route,
            places=self.place,
            news=self.news,
            steps=self.steps,
            isolates_keys=self.settings.isolate_keys,
            suspects=self.suspects,
        )
        self._members: dict[str, Member] = {}
        self._facts_version = 0
        self._vitals_counter = 0
        self.publish()

    # Deciding where

    def resolve(self, name: str) -> str:
        """What a client means: a route or an upstream's model of that name, else a model, by this node's catalog or by
        what members hold, in any case."""
        if name in self.settings.routes.rules or self.upstreams.targets_of(name):
            return name
        model = self.catalog.resolve(name)
        if model in self.catalog.entries:
            return model
        base, colon, adapter = model.rpartition(":")
        return self.view.model_called(f"{self.catalog.resolve(base)}:{adapter}" if colon else model)

    def rule(self, name: str) -> RouteRule:
        """What a name may use: its route, or an upstream's model of that name, or the members' model of that name.

        A model that some member holds is never an upstream's, unless a route says so: nothing leaves by its name alone.
        """
        configured = self.settings.routes.rules.get(name)
        if configured is not None:
            return configured
        targets = self.upstreams.targets_of(name)
        if targets and not self.view.is_held(name):
            return RouteRule(name, upstreams=targets, chain=tuple(self.chain))
        return RouteRule(name, chain=tuple(self.chain))

    def is_fitted_later(self, name: str) -> bool:
        """Whether a name is a route's or an upstream's alone, so that only a decision says which model it means."""
        is_given = name in self.settings.routes.rules or bool(self.upstreams.targets_of(name))
        return is_given and not self.view.is_held(name)

    async def route(self, request: GenerationRequest) -> Decision:
        """Decide from what is known now, without asking a model; see `saiserve.dispatch.ports.Route`."""
        return self.decide(self.news.describe(request))

    def steps(self, request: GenerationRequest) -> Generator[Ask, Reply | None, Decision]:
        """The same, asking where a strategy wants to; see `saiserve.dispatch.ports.Steps`."""
        described = self.news.describe(request)
        return route(self.rule(described.model).chain, Slate.of(self._candidates(described), described), described)

    def decide(self, request: RoutingRequest) -> Decision:
        """Run the chain of the request's route over the fleet as it is seen now."""
        return decide(self.rule(request.model).chain, self._candidates(request), request)

    def routing_request(self, request_id: str, name: str, traits: frozenset[str]) -> RoutingRequest:
        """What routing sees of a question without a prompt, by the rules of the name it was put to."""
        rule = self.rule(name)
        return RoutingRequest(
            request_id, name, traits, models=rule.models, fallbacks=rule.fallbacks, upstreams=rule.upstreams
        )

    def _candidates(self, request: RoutingRequest) -> tuple[Candidate, ...]:
        self._read_own_load()
        self.view.set_upstreams(self.upstreams.models())
        return self.view.candidates(clock_ns(), request)

    def place(self, candidate: Candidate, request: GenerationRequest) -> Source | None:
        """The engine behind a candidate; see `saiserve.dispatch.ports.Places`."""
        if candidate.placement is Placement.UPSTREAM:
            return self.upstreams.engine(candidate.node, candidate.model, request, may_relay=not request.is_draft)
        return self.place_named(candidate, request.key_name)

    def place_named(self, candidate: Candidate, key_name: str) -> Source | None:
        """The engine behind a candidate, for a question made with the client key of this name."""
        if candidate.placement is Placement.UPSTREAM:
            return self.upstreams.engine(candidate.node, candidate.model, None)
        if candidate.placement is Placement.LOCAL:
            return self.residents.engine(candidate.model)
        if self.peers is None or self.peer(candidate.node) is None:
            return None
        return self.peers.engine(candidate.node, candidate.model, key_name=key_name)

    def peer(self, name: str) -> Peer | None:
        """Where a live member is; see `saiserve.peers.client.Resolve`."""
        member = self._members.get(name)
        return Peer(name, member.address, member.instance) if member is not None else None

    def _describe(self, request: GenerationRequest) -> RoutingRequest:
        name = self.resolve(request.model)
        rule = self.rule(name)
        return describe(
            request,
            self.salt,
            model=name,
            isolation=request.key_name if self.settings.isolate_keys else "",
            models=rule.models,
            fallbacks=rule.fallbacks,
            upstreams=rule.upstreams,
        )

    # Telling and being told

    @property
    def facts(self) -> NodeFacts:
        """This node's facts, whole."""
        models = self.residents.facts()
        return NodeFacts(
            version=self._facts_version,
            advertise=str(self.settings.cluster_advertise or Address(self.settings.host, self.settings.port)),
            lanes=max(1, self.residents.lanes),
            key_ids=self.cluster.keyring.ids if self.cluster is not None else (),
            draining=self.draining,
            no_engine=not models,
            models=models,
        )

    def publish(self) -> None:
        """Tell the view and the cluster what this node has to say of itself; call after every change of it."""
        self._facts_version += 1
        self.view.update_local(clock_ns() if _in_trio() else 0, self.facts)
        if self.cluster is not None:
            self.cluster.set_metadata(encode_metadata(self.facts))
        if _in_trio():
            self.news.changed_now()

    @property
    def member_names(self) -> tuple[str, ...]:
        """The live members, this node among them."""
        return tuple(self._members)

    def take_members(self, live: Sequence[Member], departed: Sequence[Member]) -> None:
        """Take the cluster's members as they are now."""
        self._members = {member.name: member for member in live}
        self.view.update_members(clock_ns(), (*live, *departed))
        self.news.changed_now()

    async def tell_facts(self, _asker: str, _body: bytes) -> bytes:
        """Answer the peer call for this node's facts, whole; see `saiserve.peers.server.PeerCall`."""
        return encode_full(self.facts)

    async def fetch_facts(self) -> None:
        """Ask members whose facts did not fit their metadata for the whole of them."""
        for name in self.view.wants_facts():
            if self.peers is None:
                return
            try:
                with trio.fail_after(FACTS_S):
                    self.view.learn_facts(name, decode_full(await self.peers.call(name, FACTS_CALL)))
            except (HopError, FactsError, trio.TooSlowError) as error:
                log.warning("the models of %s are not all known: %s", name, error)

    def start_draining(self) -> None:
        """Take no new requests from now on; say so."""
        self.draining = True
        self.publish()

    async def run_vitals(self) -> None:
        """Read load and host for ever, for the own view and for the others."""
        while True:
            vitals = self._vitals()
            self.view.update_local(clock_ns(), self.facts, vitals)
            if self.cluster is not None:
                self.cluster.set_vitals(encode_vitals(vitals))
            await trio.sleep(VITALS_S)

    async def run_load(self) -> None:
        """Keep the own engines' load fresh for ever, and wake those that wait for a lane when it falls."""
        before: dict[str, int] = {}
        while True:
            self._read_own_load()
            free = {model: load.lanes - load.busy - load.queued for model, load in self.residents.loads().items()}
            if any(count > before.get(model, 0) for model, count in free.items()):
                self.news.changed_now()
            before = free
            await trio.sleep(LOCAL_LOAD_S)

    def _read_own_load(self) -> None:
        now = clock_ns()
        for model, load in self.residents.loads().items():
            self.view.note_load(now, self.settings.node_name, model, load)

    def _vitals(self) -> NodeVitals:
        self._vitals_counter += 1
        reading, facts = self.host.read(), self.facts
        loads = self.residents.loads()
        slots = []
        for model in facts.models:
            load = loads.get(model.id)
            slots.append(
                SlotVitals()
                if load is None
                else SlotVitals(
                    lanes=load.lanes,
                    busy=load.busy,
                    queued=load.queued,
                    queued_tokens=load.queued_tokens,
                    prefill_rate=round(load.prefill_rate),
                    decode_rate_x10=round(load.decode_rate * 10),
                )
            )
        return NodeVitals(
            counter=self._vitals_counter,
            facts_version=facts.version,
            cpu_percent=reading.cpu_percent,
            ram_used_mib=reading.ram_used_mib,
            ram_total_mib=reading.ram_total_mib,
            loop_lag_ms=min(65535, round(self.lag.worst_recent() * 1000)),
            slots=tuple(slots),
        )


def _in_trio() -> bool:
    try:
        trio.lowlevel.current_trio_token()
    except RuntimeError:
        return False
    return True

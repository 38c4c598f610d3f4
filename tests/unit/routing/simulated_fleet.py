"""A fleet in virtual time: real views, real chain, real vitals on the wire, engines that only count tokens.

News is late on purpose: each node writes vitals once a second at its own phase and each other node reads them 50 to
450 ms later. A load in a reply is exact, as it is in the server.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from saiserve.chat.request import Dialect, GenerationRequest, Message, Role, TextPart
from saiserve.engines.messages import Load, Sampling
from saiserve.fleet.facts import ModelFact, NodeFacts, NodeVitals, SlotVitals, encode_metadata, encode_vitals
from saiserve.fleet.view import FleetView
from saiserve.routing.candidate import RoutingRequest
from saiserve.routing.chain import decide
from saiserve.routing.default import DEFAULT_CHAIN
from saiserve.routing.describe import describe
from swimcluster.address import Address
from swimcluster.member import Member, MemberState, Reachability

SECOND = 1_000_000_000
MODEL = "small"


def at(seconds: float) -> int:
    return int(seconds * SECOND)


def chat(identity: str, *turns: str, system: str = "") -> GenerationRequest:
    """A chat request; `turns` alternate user and assistant, starting with the user."""
    roles = itertools.cycle((Role.USER, Role.ASSISTANT))
    messages = tuple(Message(role, (TextPart(text),)) for role, text in zip(roles, turns, strict=False))
    head = (Message(Role.SYSTEM, (TextPart(system),)),) if system else ()
    return GenerationRequest(
        id=identity, dialect=Dialect.CHAT, model=MODEL, sampling=Sampling(seed=1), messages=head + messages
    )


@dataclass
class Served:
    """What became of one request."""

    identity: str
    entry: str
    node: str
    prompt_tokens: int
    cached_tokens: int
    sent_at: int
    first_token_at: int = 0
    ended_at: int = 0


@dataclass
class Engine:
    """Lanes, one prefill at a time, and a memory of marks."""

    lanes: int
    prefill_rate: float
    decode_rate: float
    held: set[bytes] = field(default_factory=set)
    running: int = 0
    waiting: list[Callable[[], None]] = field(default_factory=list)
    queued_tokens: int = 0
    prefill_free_at: int = 0

    def load(self) -> Load:
        return Load(
            lanes=self.lanes,
            busy=self.running,
            queued=len(self.waiting),
            queued_tokens=self.queued_tokens,
            prefill_rate=self.prefill_rate,
            decode_rate=self.decode_rate,
        )


class Fleet:
    """Nodes `n0`, `n1`, …, all with one model."""

    def __init__(
        self, nodes: int, *, lanes: int = 4, seed: int = 0, prefill_rate: float = 400.0, decode_rate: float = 40.0
    ) -> None:
        self.now = at(100)
        self.random = Random(seed)
        self.names = [f"n{number}" for number in range(nodes)]
        # Measured rates are never equal, and say little: half to one and a half of the truth.
        self.engines = {
            name: Engine(lanes, prefill_rate * self.random.uniform(0.5, 1.5), decode_rate) for name in self.names
        }
        self.views = {name: FleetView(name) for name in self.names}
        self.facts = NodeFacts(version=1, lanes=lanes, models=(ModelFact(MODEL, b"8bytes.."),))
        self.vitals: dict[tuple[str, str], tuple[bytes, int]] = {}
        self.served: list[Served] = []
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._number = itertools.count()
        for name in self.names:
            self.views[name].update_local(self.now, self.facts)
            self._after(self.random.uniform(0.0, 1.0), lambda name=name: self._write_vitals(name, 1))
        self.run(3.0)

    def ask(self, entry: str, request: GenerationRequest, *, answer_tokens: int = 40) -> Served:
        """Route and start a request at `entry`; its record is complete once it ended."""
        view, seen = self.views[entry], describe(request, b"salt")
        view.note_load(self.now, entry, MODEL, self.engines[entry].load())
        self._tell_members(entry)
        decision = decide(DEFAULT_CHAIN, view.candidates(self.now, seen), seen)
        assert decision.first is not None, decision.refusal
        node = decision.first.node
        record = Served(request.id, entry, node, seen.prompt_tokens, self._cached(node, seen), self.now)
        self.served.append(record)
        view.note_started(self.now, decision.first.id, seen.prompt_tokens - decision.first.held_tokens, request.id)
        self._arrive(record, seen, decision.first.id, answer_tokens)
        return record

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self._run(self.now + at(seconds), lambda: False)

    def finish(self, *records: Served) -> None:
        """Run until these requests have ended."""
        self._run(self.now + at(3600), lambda: all(record.ended_at for record in records))

    def counts(self, records: list[Served]) -> dict[str, int]:
        return {name: sum(record.node == name for record in records) for name in self.names}

    def _arrive(self, record: Served, seen: RoutingRequest, candidate: str, answer_tokens: int) -> None:
        engine = self.engines[record.node]
        missing = seen.prompt_tokens - record.cached_tokens
        engine.queued_tokens += missing
        engine.held.update(digest for digest, _ in seen.marks)

        def begin() -> None:
            engine.running += 1
            begin_at = max(self.now, engine.prefill_free_at)
            engine.prefill_free_at = begin_at + at(missing / engine.prefill_rate)
            self._at(engine.prefill_free_at, prefilled)

        def prefilled() -> None:
            engine.queued_tokens -= missing
            record.first_token_at = self.now
            self._after(answer_tokens / engine.decode_rate, end)

        def end() -> None:
            engine.running -= 1
            record.ended_at = self.now
            if engine.waiting:
                engine.waiting.pop(0)()
            self.views[record.entry].note_finished(self.now, record.identity)
            self.views[record.entry].note_load(self.now, record.node, MODEL, engine.load())

        if engine.running < engine.lanes:
            begin()
        else:
            engine.waiting.append(begin)
        view = self.views[record.entry]
        view.note_held(self.now, seen.marks, candidate, record.cached_tokens)
        view.note_load(self.now, record.node, MODEL, engine.load())

    def _cached(self, node: str, seen: RoutingRequest) -> int:
        held = self.engines[node].held
        return next((tokens for digest, tokens in reversed(seen.marks) if digest in held), 0)

    def _write_vitals(self, name: str, counter: int) -> None:
        load = self.engines[name].load()
        slot = SlotVitals(
            lanes=load.lanes,
            busy=load.busy,
            queued=load.queued,
            queued_tokens=load.queued_tokens,
            prefill_rate=int(load.prefill_rate),
            decode_rate_x10=int(load.decode_rate * 10),
        )
        data = encode_vitals(NodeVitals(counter=counter, facts_version=1, slots=(slot,)))
        for other in self.names:
            if other != name:
                delay = self.random.uniform(0.05, 0.45)
                self._after(delay, lambda other=other: self.vitals.__setitem__((other, name), (data, self.now)))
        self._after(1.0, lambda: self._write_vitals(name, counter + 1))

    def _tell_members(self, viewer: str) -> None:
        metadata = encode_metadata(self.facts)
        members = []
        for number, name in enumerate(self.names):
            vitals, arrived = self.vitals.get((viewer, name), (b"", self.now))
            members.append(
                Member(
                    name=name,
                    address=Address("10.0.0.1", 8000 + number),
                    instance=bytes(8),
                    epoch=1,
                    incarnation=0,
                    state=MemberState.ALIVE,
                    metadata=metadata,
                    vitals=vitals,
                    vitals_age_s=(self.now - arrived) / SECOND if vitals else None,
                    reachability=Reachability.DIRECT,
                    is_local=name == viewer,
                )
            )
        self.views[viewer].update_members(self.now, members)

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        self._at(self.now + at(seconds), call)

    def _at(self, when: int, call: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._number), call))

    def _run(self, until: int, stop: Callable[[], bool]) -> None:
        while self._events and self._events[0][0] <= until and not stop():
            self.now, _, call = heapq.heappop(self._events)
            call()
        if not stop():
            self.now = until


def converse(
    fleet: Fleet, name: str, entries: Iterator[str], turns: int, *, think_s: float, system: str = ""
) -> list[Served]:
    """One conversation, a turn sent `think_s` after the answer to the last one."""
    said: list[str] = []
    records = []
    for turn in range(turns):
        said.append(f"question {turn} of {name}: please tell me more about it, as briefly as you can manage")
        record = fleet.ask(next(entries), chat(f"{name}-{turn}", *said, system=system))
        fleet.finish(record)
        fleet.run(think_s)
        said.append(f"answer {turn} to {name}: " + "word " * 40)
        records.append(record)
    return records

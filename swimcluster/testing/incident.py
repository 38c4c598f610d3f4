"""A production incident in the simulator: the flight recorders' dumps of several members, run again side by side.

Each member's recorded inputs are given to its machine again (`swimcluster.replay`); nothing is delivered by the
simulated network. What links the dumps is time: every member has a clock of its own, and the frames they sent each
other tell how far apart these are, as NTP does it. So a `Timeline` and the invariants can watch what really happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from swimcluster.dump_file import Dump
from swimcluster.errors import ConfigError
from swimcluster.mac import COUNTER_AT, INSTANCE_AT
from swimcluster.replay import Step, replay, restore
from swimcluster.resigning import ReplayKeyring
from swimcluster.testing.checkers_of_conduct import DeadlinesAhead, NoBlindAccusations, ToldOnce, WithinBudget
from swimcluster.testing.checkers_of_views import (
    AliveToItself,
    Checker,
    EventsTellAll,
    LeftIsNotFailed,
    OneContentPerVersion,
    VersionsRise,
)
from swimcluster.testing.cluster import Place, SimulatedCluster
from swimcluster.testing.invariants import Checks
from swimcluster.testing.network import SECOND
from swimcluster.testing.node import Input, Node
from swimcluster.testing.observer import Observer
from swimcluster.testing.wire import Wire
from swimcluster.testing.world import World
from swimcluster.transmits import Datagram

KINDS: Final = {
    "receive_datagram": "datagram",
    "exchange_received": "request",
    "exchange_replied": "reply",
    "exchange_failed": "failure",
    "send_failed": "failure",
    "advance": "wake",
}
"""What the simulator calls a machine's inputs; all others are calls of its owner."""
_FRAME_ID: Final = slice(INSTANCE_AT.start, COUNTER_AT.stop)
"""Instance and counter in a datagram's header (docs/protocol.md, wire format)."""

Heard = dict[tuple[str, str], int]
"""(sender, receiver) → the least difference of the receiver's clock at arrival and the sender's at sending."""


@dataclass(frozen=True, slots=True)
class Clock:
    """How one member's clock is read in the incident's time."""

    offset_ns: int
    """To be added to the member's clock."""
    uncertainty_ns: int | None
    """Half the round trip the offset was found with; None: by packets in one direction only, or by none."""


class Incident(World):
    """Members' dumps, aligned. `run` plays them to whatever watches.

    Args:
        dumps: one per member, each from `Cluster.write_recording`.

    Raises:
        ConfigError: no dump, or two of one member.
        DecodeError: a dump holds something that is no input of a machine.
    """

    def __init__(self, dumps: Sequence[Dump], *, observers: Iterable[Observer] = ()) -> None:
        super().__init__(seed=0)
        names = [dump.config.name for dump in dumps]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"an incident is made of one dump per member, not of {names}")
        self.dumps = dict(zip(names, dumps, strict=True))
        self.clocks = align(self.dumps)
        begins = [at for name, dump in self.dumps.items() for at in _times(dump, self.clocks[name])[:1]]
        self.began_ns = min(begins, default=0)
        self.faults: list[str] = []
        """In what a replay was not what was recorded."""
        for number, (name, dump) in enumerate(self.dumps.items()):
            machine = restore(dump, dump.segments[0])
            node = Node(name, number, machine.local.address, clock_offset=self.began_ns - self.clocks[name].offset_ns)
            node.machine, node.life = machine, 1
            self.nodes[name] = node
        for observer in observers:
            self.watch(observer)

    def run(self) -> Incident:
        """Play everything, in order of time."""
        for node in self.nodes.values():
            for booted in self._on_booted:
                booted(self, node)
        replays = {name: replay(dump) for name, dump in self.dumps.items()}
        for at, name in self._order():
            self.now = at - self.began_ns
            self._show(self.nodes[name], next(replays[name]))
        return self

    def wire(self) -> Wire:
        """Return what reads the dumps' datagrams, which are signed with substitute keys."""
        segments = [segment for dump in self.dumps.values() for segment in dump.segments]
        ids = dict.fromkeys(key_id for segment in segments for key_id in segment.key_ids)
        config = next(iter(self.dumps.values())).config
        return Wire(config, ReplayKeyring(config.cluster, tuple(ids), is_secret=segments[0].is_secret))

    def _order(self) -> Iterator[tuple[int, str]]:
        times = [(at, name) for name, dump in self.dumps.items() for at in _times(dump, self.clocks[name])]
        return iter(sorted(times, key=lambda one: one[0]))

    def _show(self, node: Node, step: Step) -> None:
        """Let observers see one step as if it had happened in a simulation."""
        self.steps += 1
        self.faults += [f"{node.name}: {fault}" for fault in step.faults]
        node.machine, node.address = step.machine, step.machine.local.address
        kind, arguments = KINDS.get(step.input.call, "call"), step.input.arguments
        if kind not in {"call", "wake"}:
            data = next((one for one in arguments if isinstance(one, bytes)), b"")
            source = arguments[0] if kind in {"datagram", "request"} else None
            for received in self._on_received:
                received(self, node, Input(kind, source, data))
        if kind == "wake":
            for advanced in self._on_advanced:
                advanced(self, node, step.input.now, step.machine.next_deadline())
        for stepped in self._on_stepped:
            stepped(self, node, kind, list(step.transmits), list(step.events))


def _times(dump: Dump, clock: Clock) -> list[int]:
    """When each input came, in the incident's time; never falling, as inputs keep their order."""
    times: list[int] = []
    for segment in dump.segments:
        for item in segment.inputs:
            times.append(max(item.now + clock.offset_ns, times[-1] if times else item.now + clock.offset_ns))
    return times


def align(dumps: dict[str, Dump]) -> dict[str, Clock]:
    """Find the clocks of all members in the first one's time, from the datagrams between them.

    With packets both ways the delay of the fastest each way is taken to be the same, as in NTP; with packets one way the
    fastest is taken to have arrived at once; without any, clocks are taken to be the same one.
    """
    heard = _delays(dumps)
    first, *_ = dumps
    clocks = {first: Clock(0, 0)}
    waiting = [first]
    while waiting:
        known = waiting.pop(0)
        for name in dumps:
            there, back = heard.get((known, name)), heard.get((name, known))
            if name in clocks or (there is None and back is None):
                continue
            if there is not None and back is not None:
                offset, doubt = (back - there) // 2, (there + back) // 2
            else:
                offset, doubt = (back or 0) - (there or 0), None
            before = clocks[known]
            total = None if doubt is None or before.uncertainty_ns is None else before.uncertainty_ns + doubt
            clocks[name] = Clock(before.offset_ns + offset, total)
            waiting.append(name)
    return {name: clocks.get(name, Clock(0, None)) for name in dumps}


def _delays(dumps: dict[str, Dump]) -> Heard:
    sent: dict[bytes, tuple[str, int]] = {}
    for name, dump in dumps.items():
        for step in replay(dump):
            for transmit in step.transmits:
                if isinstance(transmit, Datagram):
                    sent[transmit.data[_FRAME_ID]] = (name, step.input.now)
    heard: Heard = {}
    for name, dump in dumps.items():
        for segment in dump.segments:
            for item in segment.inputs:
                origin = sent.get(item.arguments[1][_FRAME_ID]) if item.call == "receive_datagram" else None
                if origin is not None:
                    sender, at = origin
                    heard[sender, name] = min(item.now - at, heard.get((sender, name), item.now - at))
    return heard


def incident_checks(incident: Incident) -> Checks:
    """Watch an incident with every invariant that holds without knowing the whole cluster."""
    cluster: Any = SimulatedCluster(0, seed=0, world=incident)
    for name in incident.dumps:
        cluster.places[name] = Place(name, ())
    config = next(iter(incident.dumps.values())).config
    longest_s = config.suspicion_mult * config.suspicion_max_mult * config.probe_interval_s
    checkers: list[Checker] = [
        VersionsRise(),
        OneContentPerVersion(),
        AliveToItself(),
        WithinBudget(datagram_bytes=config.datagram_bytes_max, exchange_bytes=config.exchange_bytes_max),
        DeadlinesAhead(),
        LeftIsNotFailed(),
        ToldOnce(),
        EventsTellAll(),
    ]
    if config.hold_accusations:
        checkers.append(NoBlindAccusations(most=3, hold_s=longest_s))
    return Checks(cluster, checkers)


def describe_clock(name: str, clock: Clock) -> str:
    """One line about how a member's clock was found."""
    if clock.uncertainty_ns is None:
        return f"{name}: clock off by about {clock.offset_ns / SECOND:.6f} s, with nothing to check it by"
    return f"{name}: clock off by {clock.offset_ns / SECOND:.6f} s ± {clock.uncertainty_ns / SECOND:.6f} s"

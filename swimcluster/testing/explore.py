"""Every order of events of a very small cluster, to a stated depth: what a search by chance may miss.

A state is a few machines and the messages under way. In each state any message may arrive or be lost, any exchange
may be answered, fail, or be answered too late to matter, and the clock may go on to the next deadline although
messages are still under way (so they are late). All of it is tried, breadth first; equal states are visited once.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from swimcluster.address import Address

HOP_NS = 1_000
"""What the delivery of a message costs, so that no two things happen at one time."""


@dataclass(frozen=True, slots=True)
class Flying:
    """A message under way."""

    kind: str
    """datagram, request, or reply."""
    source: Address
    destination: Address
    data: bytes
    id: int = 0


@dataclass(slots=True)
class State:
    """All there is at one moment."""

    now: int
    machines: dict[Address, Any]
    flying: tuple[Flying, ...] = ()
    path: tuple[str, ...] = ()
    losses: int = 0
    crashes: int = 0


@dataclass(slots=True)
class Exploration:
    """What was found."""

    depth: int
    states: int = 0
    """Different states visited."""
    steps: int = 0
    """Actions tried."""
    merged: int = 0
    """Actions that led to a state seen before."""
    is_complete: bool = True
    """Whether every state up to the depth was visited; false when the limit on states came first."""
    violations: list[str] = field(default_factory=list)


Check = Callable[[State, State], Sequence[str]]
"""Compares the state before an action with the one after it; returns what is wrong."""


def explore(
    machines: dict[Address, Any],
    *,
    now: int,
    depth: int,
    check: Check,
    losses_max: int = 2,
    crashes_max: int = 0,
    flying_max: int = 8,
    states_max: int = 200_000,
) -> Exploration:
    """Try every sequence of at most `depth` actions from the machines' present state.

    Args:
        machines: picklable machines by address; they are copied, not changed.
        now: nanoseconds on all their clocks.
        depth: actions in a row: an arrival, a loss, a failed exchange, a crash, or time going on.
        check: called for each action.
        losses_max: messages that may be lost on one path.
        crashes_max: processes that may end on one path.
        flying_max: beyond so many messages under way the oldest is lost without choice (counted in no path).
        states_max: stop after so many different states.
    """
    start = _freeze(State(now, dict(machines)))
    found = Exploration(depth)
    seen = {_mark(start)}
    queue: deque[tuple[tuple[str, ...], bytes]] = deque([((), start)])
    while queue:
        path, frozen = queue.popleft()
        found.states += 1
        if len(path) == depth:
            continue
        before = _thaw(frozen, path)
        for label in list(_choices(before, losses_max, crashes_max)):
            state = _thaw(frozen, (*path, label))
            _act(state, label, flying_max)
            found.steps += 1
            for fault in check(before, state):
                found.violations.append(f"{fault} after {' · '.join(state.path)}")
            after = _freeze(state)
            if _mark(after) in seen:
                found.merged += 1
            elif len(seen) >= states_max:
                found.is_complete = False
            else:
                seen.add(_mark(after))
                queue.append((state.path, after))
    return found


def _freeze(state: State) -> bytes:
    """All of a state but the way there, as bytes; equal bytes are equal states."""
    return pickle.dumps(replace(state, path=()), protocol=pickle.HIGHEST_PROTOCOL)


def _thaw(frozen: bytes, path: tuple[str, ...]) -> State:
    state: State = pickle.loads(frozen)  # noqa: S301 - our own bytes of a moment ago
    state.path = path
    return state


def _mark(frozen: bytes) -> bytes:
    return hashlib.blake2b(frozen, digest_size=16).digest()


def _choices(state: State, losses_max: int, crashes_max: int) -> Iterator[str]:
    for i, message in enumerate(state.flying):
        if message.destination in state.machines:
            yield f"arrive {i}"
        if state.losses < losses_max:
            yield f"lose {i}"
    if any(machine.next_deadline() is not None for machine in state.machines.values()):
        yield "time"
    if state.crashes < crashes_max:
        for address in state.machines:
            yield f"crash {address}"


def _act(state: State, label: str, flying_max: int) -> None:
    verb, _, what = label.partition(" ")
    state.now += HOP_NS
    if verb == "time":
        deadlines = [d for d in (m.next_deadline() for m in state.machines.values()) if d is not None]
        state.now = max(state.now, min(deadlines))
        for address in list(state.machines):
            machine = state.machines[address]
            deadline = machine.next_deadline()
            if deadline is not None and deadline <= state.now:
                machine.advance(state.now)
                _collect(state, address)
    elif verb == "crash":
        state.crashes += 1
        gone = next(address for address in state.machines if str(address) == what)
        del state.machines[gone]
    else:
        message = state.flying[int(what)]
        state.flying = state.flying[: int(what)] + state.flying[int(what) + 1 :]
        if verb == "arrive":
            _arrive(state, message)
        else:
            state.losses += 1
            _lose(state, message)
    if len(state.flying) > flying_max:
        for message in state.flying[:-flying_max]:
            _lose(state, message)
        state.flying = state.flying[-flying_max:]


def _arrive(state: State, message: Flying) -> None:
    machine = state.machines[message.destination]
    if message.kind == "datagram":
        machine.receive_datagram(state.now, message.source, message.data)
    elif message.kind == "request":
        reply = machine.exchange_received(state.now, message.source, message.data)
        if isinstance(reply, bytes):
            answer = Flying("reply", message.destination, message.source, reply, message.id)
            state.flying = (*state.flying, answer)
    else:
        machine.exchange_replied(state.now, message.id, message.data)
    _collect(state, message.destination)


def _lose(state: State, message: Flying) -> None:
    """A lost part of an exchange is a failed exchange to whoever asked."""
    asker = {"request": message.source, "reply": message.destination}.get(message.kind)
    if asker is not None and asker in state.machines:
        state.machines[asker].exchange_failed(state.now, message.id)
        _collect(state, asker)


def _collect(state: State, address: Address) -> None:
    machine = state.machines[address]
    for item in machine.transmits():
        kind = "request" if hasattr(item, "timeout_ns") else "datagram"
        message = Flying(kind, address, item.destination, item.data, getattr(item, "id", 0))
        state.flying = (*state.flying, message)
    machine.events()

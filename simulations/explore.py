"""Every order of arrivals, losses, failures and timers of two or three members, to a stated depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulations.question import Answer, Parameters, Question, Row
from swimcluster.address import Address
from swimcluster.config import Config
from swimcluster.member import Member
from swimcluster.swim import Swim
from swimcluster.testing.cluster import KEY
from swimcluster.testing.explore import State, explore
from swimcluster.testing.randomness import fork
from swimcluster.transmits import Exchange

BRISK: dict[str, Any] = {
    "probe_interval_s": 1.0,
    "probe_timeout_s": 0.4,
    "gossip_interval_s": 0,
    "push_pull_interval_s": 0,
}
"""Without gossip: its ticks would use up the depth and bring nothing that probes do not."""


def machines(n: int) -> dict[Address, Swim]:
    """`n` machines that have just started; the first is the others' seed."""
    addresses = [Address(f"10.0.0.{i + 1}", 7946) for i in range(n)]
    made = {}
    for i, address in enumerate(addresses):
        config = Config.lan(name=f"n{i}", advertise=address, seeds=[] if i == 0 else addresses[:1], keys=[KEY], **BRISK)
        instance = fork(1, "instance", i).randbytes(8)
        made[address] = Swim(config, now=0, epoch=i + 1, instance=instance, rng=fork(1, "machine", i))
    return made


def joined(n: int) -> tuple[dict[Address, Swim], int]:
    """`n` machines that all know each other, and the time; every message between them arrived at once."""
    made, now = machines(n), 0
    for _ in range(100_000):
        if all(len(machine.members()) == n for machine in made.values()):
            return made, now
        now = max(now + 1_000, min(d for d in (m.next_deadline() for m in made.values()) if d is not None))
        for address, machine in made.items():
            deadline = machine.next_deadline()
            if deadline is not None and deadline <= now:
                machine.advance(now)
                now = _deliver(made, address, now)
    raise RuntimeError("they did not find each other")


def _deliver(made: dict[Address, Swim], start: Address, now: int) -> int:
    waiting = [start]
    while waiting:
        address = waiting.pop(0)
        machine = made[address]
        machine.events()
        for item in machine.transmits():
            now += 1_000
            target = made[item.destination]
            if isinstance(item, Exchange):
                reply = target.exchange_received(now, address, item.data)
                if isinstance(reply, bytes):
                    machine.exchange_replied(now, item.id, reply)
                else:
                    machine.exchange_failed(now, item.id)
                waiting.append(address)
            else:
                target.receive_datagram(now, address, item.data)
            waiting.append(item.destination)
    return now


def check(before: State, after: State) -> Sequence[str]:
    """Versions never fall at an observer, everybody is alive to itself, deadlines lie ahead after time went on."""
    found: list[str] = []
    for address, machine in after.machines.items():
        old = before.machines[address]
        held = {m.name: _version(m) for m in (*old.members(), *old.departed())}
        seen = {m.name: _version(m) for m in (*machine.members(), *machine.departed())}
        fallen = [name for name, version in seen.items() if version < held.get(name, version)]
        found.extend(f"{machine.local.name}: {name} fell to {seen[name]}" for name in fallen)
        if not any(m.is_local for m in machine.members()):
            found.append(f"{machine.local.name} is not in its own view")
        deadline = machine.next_deadline()
        if after.path and after.path[-1] == "time" and deadline is not None and deadline <= after.now:
            found.append(f"{machine.local.name} has a deadline {after.now - deadline} ns ago")
    return found


def _version(member: Member) -> tuple[int, bytes, int, int]:
    return member.epoch, member.instance, member.incarnation, int(member.state)


Case = tuple[str, int, int, int, int]
"""(what, n, depth, losses, crashes)"""


def explored(case: Case, states_max: int) -> Row:
    """One exploration as a row."""
    what, n, depth, losses, crashes = case
    made, now = (machines(n), 0) if what == "joining" else joined(n)
    found = explore(
        dict(made),
        now=now,
        depth=depth,
        check=check,
        losses_max=losses,
        crashes_max=crashes,
        flying_max=6,
        states_max=states_max,
    )
    return {
        "what": what,
        "n": n,
        "depth": depth,
        "losses": losses,
        "crashes": crashes,
        "states": found.states,
        "actions": found.steps,
        "whole": found.is_complete,
        "violations": len(found.violations),
        "first": found.violations[0] if found.violations else "",
        "holds": not found.violations and found.is_complete,
    }


def run(parameters: Parameters) -> Answer:
    """Explore joining and joined pairs and triples."""
    cases: list[Case] = parameters.pick(
        [("joining", 2, 5, 1, 0), ("joined", 2, 5, 1, 1), ("joined", 3, 4, 1, 0)],
        [("joining", 2, 8, 2, 0), ("joined", 2, 8, 2, 1), ("joining", 3, 6, 1, 0), ("joined", 3, 6, 1, 1)],
        [("joining", 2, 10, 3, 1), ("joined", 2, 10, 3, 1), ("joining", 3, 7, 2, 0), ("joined", 3, 8, 2, 1)],
    )
    wanted = [case for case in cases if parameters.members is None or case[1] in parameters.members]
    limit = parameters.pick(20_000, 100_000, 1_000_000)
    answer = Answer(rows=[explored(case, limit) for case in wanted])
    answer.holds = all(row["holds"] for row in answer.rows)
    answer.measured = {
        "states": sum(int(row["states"] or 0) for row in answer.rows),
        "actions": sum(int(row["actions"] or 0) for row in answer.rows),
        "violations": sum(int(row["violations"] or 0) for row in answer.rows),
    }
    answer.notes.append(
        "An action is an arrival, a loss, a failed exchange, the end of a process, or time going on to the next deadline. "
        "Gossip and push/pull are off; depth counts actions from the start, or from when all knew each other."
    )
    return answer


QUESTION = Question(
    "explore",
    "Does any order of events of two or three members break an invariant, up to a stated depth?",
    "no violation in any reachable state, and every state up to the depth was visited",
    run,
)

"""Runs flight recorders' dumps again, step by step: `python -m swimcluster.replay DUMP [DUMP …]`.

The same inputs at the same times give the same machine, so a production incident repeats on a desk, without a
network and without the cluster's keys. Each step is printed with what it made the member do and think; where one
segment of the dump ends and the next begins, the replayed machine is compared with the recorded one. Dumps of several
members are put into the simulator side by side: one timeline, and its invariants watch (`swimcluster.testing.incident`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from swimcluster.checkpoint import load_checkpoint
from swimcluster.config import NS_PER_S
from swimcluster.dump_file import Dump, Input, SegmentRecord, decode_dump
from swimcluster.errors import DecodeError, SwimclusterError
from swimcluster.events import Event
from swimcluster.resigning import ReplayKeyring
from swimcluster.swim import Swim
from swimcluster.transmits import Datagram, Exchange

CALLS: Final = frozenset(
    [
        "advance",
        "broadcast",
        "exchange_failed",
        "exchange_received",
        "exchange_replied",
        "install_key",
        "join",
        "learn_addresses",
        "leave",
        "readvertise",
        "receive_datagram",
        "remove_key",
        "request",
        "respond",
        "send",
        "send_failed",
        "set_metadata",
        "set_vitals",
        "use_key",
    ]
)
"""The machine's inputs and commands; a dump that calls anything else is refused."""


@dataclass(frozen=True, slots=True)
class Step:
    """One input and what followed from it."""

    number: int
    input: Input
    events: tuple[Event, ...]
    transmits: tuple[Datagram | Exchange, ...]
    error: str
    """What the call raised, as it did in production; empty when it returned."""
    machine: Swim
    """The machine right after this step; it changes with the next."""
    faults: tuple[str, ...] = ()
    """In what the replayed machine had differed from the recorded one just before this step; empty: in nothing."""


def replay(dump: Dump) -> Iterator[Step]:
    """Run the inputs again, oldest first, beginning from the first checkpoint.

    Raises:
        DecodeError: the dump holds something that is no input of a machine.
    """
    machine = restore(dump, dump.segments[0])
    number = 0
    for place, segment in enumerate(dump.segments):
        faults = differences(machine, restore(dump, segment)) if place else []
        for item in segment.inputs:
            error = _give(machine, item)
            yield Step(number, item, tuple(machine.events()), tuple(machine.transmits()), error, machine, tuple(faults))
            number += 1
            faults = []


def _give(machine: Swim, item: Input) -> str:
    if item.call not in CALLS:
        raise DecodeError(f"{item.call!r} is no input of a machine")
    try:
        getattr(machine, item.call)(item.now, *item.arguments)
    except SwimclusterError as raised:
        return f"{type(raised).__name__}: {raised}"
    except TypeError as raised:
        raise DecodeError(f"{item.call} was given the wrong arguments: {raised}") from raised
    return ""


def restore(dump: Dump, segment: SegmentRecord) -> Swim:
    """Return the machine as it was at the beginning of a segment, with substitute keys."""
    keyring = ReplayKeyring(dump.config.cluster, segment.key_ids, is_secret=segment.is_secret)
    return load_checkpoint(segment.checkpoint, dump.config, keyring)


def differences(replayed: Swim, recorded: Swim) -> list[str]:
    """Return in what two machines that should be the same differ; empty when the replay is faithful."""
    views = {
        "members": (replayed.members(), recorded.members()),
        "departed": (replayed.departed(), recorded.departed()),
        "join status": (replayed.join_status, recorded.join_status),
        "statistics": (replayed.statistics(), recorded.statistics()),
        "next deadline": (replayed.next_deadline(), recorded.next_deadline()),
        "key ids": (replayed.key_ids(), recorded.key_ids()),
    }
    return [f"{what}: replayed {one}, recorded {other}" for what, (one, other) in views.items() if one != other]


# Text -----------------------------------------------------------------------------------------------------------


def describe_input(item: Input) -> str:
    """Return one line that names the call and shows its arguments, bytes shortened."""
    shown = (f"{len(value)} B" if isinstance(value, bytes) else str(value) for value in item.arguments)
    return f"{item.call}({', '.join(shown)})"


def describe_event(event: Event) -> str:
    """Return one short line for an event."""
    member = getattr(event, "member", None)
    if member is not None:
        claim = f"epoch {member.epoch} incarnation {member.incarnation}"
        return f"{type(event).__name__} {member.name} at {member.address}: {member.state.name} {claim}"
    return str(event)


def describe_step(step: Step, started: int, *, inputs: bool) -> list[str]:
    """Return the lines of one step; without `inputs` only steps that changed the member's mind."""
    at = f"{(step.input.now - started) / NS_PER_S:12.6f} s  #{step.number}"
    lines = [f"{at}  {describe_input(step.input)}"] if inputs or step.events or step.error else []
    if step.error:
        lines.append(f"{'':17}raised {step.error}")
    lines += [f"{'':17}event  {describe_event(event)}" for event in step.events]
    if inputs:
        for item in step.transmits:
            kind = "sends" if isinstance(item, Datagram) else f"exchange {item.id} with"
            lines.append(f"{'':17}{kind}  {item.destination} {len(item.data)} B")
    return lines


def describe_view(machine: Swim) -> list[str]:
    """Return the member's view as lines."""
    everybody = [*machine.members(), *machine.departed()]
    width = max(len(member.name) for member in everybody)
    return [
        f"  {member.name:<{width}}  {member.state.name:<7}  {member.address}  epoch {member.epoch} "
        f"incarnation {member.incarnation}{'  (this node)' if member.is_local else ''}"
        for member in everybody
    ]


def main(arguments: list[str] | None = None) -> int:
    """Print the story of one dump or several; returns the exit code: 0 faithful, 1 it differs or breaks an invariant,
    2 not a dump."""
    parser = argparse.ArgumentParser(
        prog="python -m swimcluster.replay", description="Run flight recorders' dumps again."
    )
    parser.add_argument("dump", type=Path, nargs="+", help="a file written by Cluster.write_recording, one per member")
    parser.add_argument("--inputs", action="store_true", help="show every input and everything sent")
    parser.add_argument("--until", type=int, metavar="N", help="one dump: stop after step N and show the view there")
    parser.add_argument("--step", action="store_true", help="one dump: wait for Enter after each shown step")
    parser.add_argument("--about", metavar="NAME", help="several dumps: only what concerns this member")
    options = parser.parse_args(arguments)
    try:
        dumps = [decode_dump(path.read_bytes()) for path in options.dump]
        if len(dumps) == 1:
            return _tell(dumps[0], inputs=options.inputs, until=options.until, wait=options.step)
        return _tell_incident(dumps, about=options.about, inputs=options.inputs)
    except (OSError, SwimclusterError) as error:
        print(f"{' '.join(map(str, options.dump))}: {error}", file=sys.stderr)
        return 2


def _tell_incident(dumps: list[Dump], *, about: str | None, inputs: bool) -> int:
    # The simulator imports this module; it is needed only here.
    from swimcluster.testing.incident import Incident, describe_clock, incident_checks
    from swimcluster.testing.timeline import Timeline

    incident = Incident(dumps)
    timeline = Timeline(about, inputs=inputs, describe=incident.wire().describe)
    incident.watch(timeline)
    checks = incident_checks(incident)
    incident.run()
    print(*(describe_clock(name, clock) for name, clock in incident.clocks.items()), sep="\n")
    print(timeline.text())
    print(*(f"NOT FAITHFUL  {fault}" for fault in incident.faults), sep="\n", end="")
    print(*(f"INVARIANT  {violation}" for violation in checks.violations), sep="\n", end="")
    return 1 if incident.faults or checks.violations else 0


def _tell(dump: Dump, *, inputs: bool, until: int | None, wait: bool) -> int:
    count = sum(len(segment.inputs) for segment in dump.segments)
    first = next((item.now for segment in dump.segments for item in segment.inputs), 0)
    print(f"{dump.config.name} of cluster {dump.config.cluster!r}: {count} inputs in {len(dump.segments)} segments")
    machine = restore(dump, dump.segments[0])
    faults: list[str] = []
    for step in replay(dump):
        machine = step.machine
        faults += step.faults
        lines = describe_step(step, first, inputs=inputs)
        if lines:
            print("\n".join(lines))
            if wait:
                input()
        if until is not None and step.number >= until:
            break
    print("view at the end:", *describe_view(machine), sep="\n")
    for fault in faults:
        print(f"NOT FAITHFUL  {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

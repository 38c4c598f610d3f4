"""Dumps of several members, each with a clock of its own, run again side by side as they happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swimcluster.dump_file import decode_dump
from swimcluster.errors import ConfigError
from swimcluster.member import MemberState
from swimcluster.recorder import FlightRecorder
from swimcluster.replay import CALLS, main
from swimcluster.swim import Swim
from swimcluster.testing import Incident, SimulatedCluster, Timeline, incident_checks
from swimcluster.testing.network import MILLISECOND

NAMES = ("n000", "n001", "n002")


class Recorded:
    """A machine whose inputs a flight recorder notes first, as the driver lets it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.machine = Swim(*arguments, **options)
        self.recorder = FlightRecorder(self.machine, inputs_max=100_000)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.machine, name)
        if name not in CALLS:
            return found

        def noted(now: int, *given: Any) -> Any:
            self.recorder.note(now, name, given)
            return found(now, *given)

        return noted


def lived_through(*, cut: bool = True) -> tuple[SimulatedCluster, Timeline, list[bytes]]:
    """Three members, of which the last cannot be heard for a while; what was seen live, and everybody's dump."""
    cluster = SimulatedCluster(3, seed=5, preset="local", machine=Recorded)
    cluster.start_all()
    assert cluster.settle(limit_s=20) is not None
    timeline = Timeline("n002")
    for name in NAMES:
        machine = cluster.machine(name)
        machine.recorder = FlightRecorder(machine.machine, inputs_max=100_000)
    cluster.world.watch(timeline)
    if cut:
        number = cluster.world.network.cut(["n002"], None)
        cluster.world.run_for(20)
        cluster.world.network.mend(number)
    cluster.call("n002", "set_metadata", b"back")
    cluster.world.run_for(20)
    assert cluster.settle(limit_s=20) is not None
    return cluster, timeline, [cluster.machine(name).recorder.dump() for name in NAMES]


def test_members_with_clocks_far_apart_tell_one_story_in_the_order_it_happened():
    cluster, live, dumps = lived_through()
    again = Timeline("n002")
    incident = Incident([decode_dump(dump) for dump in dumps], observers=[again])
    checks = incident_checks(incident)
    incident.run()
    assert incident.faults == checks.violations == []
    assert checks.looks > 50
    told = [(node, what) for _, node, what in again.lines if not what.startswith("starts life")]
    assert told == [(node, what) for _, node, what in live.lines]
    assert any("MemberDied n002" in what for _, what in told)
    assert cluster.view("n000")["n002"].state is MemberState.ALIVE


def test_clocks_are_found_within_a_packet_s_way():
    cluster, _, dumps = lived_through(cut=False)
    incident = Incident([decode_dump(dump) for dump in dumps])
    first = cluster.world.nodes["n000"]
    for name in NAMES:
        true = first.clock_offset - cluster.world.nodes[name].clock_offset
        clock = incident.clocks[name]
        assert clock.uncertainty_ns is not None
        assert abs(clock.offset_ns - true) <= clock.uncertainty_ns + 1 < MILLISECOND


def test_the_command_tells_the_story_of_several_dumps(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    _, _, dumps = lived_through()
    paths = [tmp_path / f"{name}.flight" for name in NAMES]
    for path, dump in zip(paths, dumps, strict=True):
        path.write_bytes(dump)
    assert main([*map(str, paths), "--about", "n002"]) == 0
    told = capsys.readouterr().out
    assert "n001: clock off by" in told
    assert "MemberDied n002" in told
    assert "n000  MemberSuspected n001" not in told
    assert main([*map(str, paths), "--inputs"]) == 0
    told = capsys.readouterr().out
    assert "datagram from" in told
    assert "n001: Ping n000" in told
    assert main([str(paths[0]), str(paths[0])]) == 2
    assert "one dump per member" in capsys.readouterr().err


def test_dumps_that_heard_nothing_of_each_other_are_taken_to_share_a_clock():
    _, _, dumps = lived_through(cut=False)
    other = SimulatedCluster(1, seed=6, machine=Recorded, prefix="x")
    other.start_all()
    other.world.run_for(5)
    incident = Incident([decode_dump(dumps[0]), decode_dump(other.machine("x000").recorder.dump())])
    assert incident.clocks["x000"].uncertainty_ns is None
    assert incident.clocks["x000"].offset_ns == 0


def test_an_incident_needs_one_dump_per_member():
    with pytest.raises(ConfigError, match="one dump per member"):
        Incident([])


def test_a_member_heard_in_one_direction_only_is_placed_by_its_fastest_packet() -> None:
    cluster = SimulatedCluster(2, seed=5, preset="local", machine=Recorded)
    cluster.start_all()
    assert cluster.settle(limit_s=20) is not None
    cluster.world.network.cut(["n001"], ["n000"])
    for name in NAMES[:2]:
        machine = cluster.machine(name)
        machine.recorder = FlightRecorder(machine.machine)
    cluster.world.run_for(3)
    dumps = [decode_dump(cluster.machine(name).recorder.dump()) for name in NAMES[:2]]
    nodes = cluster.world.nodes
    clock = Incident(dumps).clocks["n001"]
    assert clock.uncertainty_ns is None
    assert abs(clock.offset_ns - (nodes["n000"].clock_offset - nodes["n001"].clock_offset)) < 2 * MILLISECOND

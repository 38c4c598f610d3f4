"""A deterministic simulator for membership, and for any other machine without I/O; shipped for users' own tests."""

from swimcluster.testing.application import Answers, Ask, Broadcast, Send
from swimcluster.testing.chaos import ChaosRun, chaos, random_schedule
from swimcluster.testing.cluster import SimulatedCluster
from swimcluster.testing.coverage import Coverage
from swimcluster.testing.explore import Exploration, Flying, State, explore
from swimcluster.testing.faults import (
    Crash,
    Cut,
    DiskFull,
    Fault,
    Hold,
    Partition,
    Pause,
    Rebind,
    Replay,
    Schedule,
    SendsFail,
    SlowCpu,
    Suspend,
    Weather,
    describe,
    play,
)
from swimcluster.testing.incident import Incident, incident_checks
from swimcluster.testing.invariants import Checker, Checks, InvariantError, default_checkers
from swimcluster.testing.machine import Datagram, Exchange, ExchangeMachine, Machine
from swimcluster.testing.membership_faults import (
    Leave,
    Readvertise,
    RotateKeys,
    SecondHolder,
    SetMetadata,
    Strangers,
    Twin,
    stop_refused,
)
from swimcluster.testing.network import Burst, Constant, LogNormal, Network, Trouble, Uniform
from swimcluster.testing.node import Node
from swimcluster.testing.observer import Observer
from swimcluster.testing.randomness import fork
from swimcluster.testing.search import Outcome, search
from swimcluster.testing.shrink import shrink
from swimcluster.testing.timeline import Timeline
from swimcluster.testing.wire import Wire
from swimcluster.testing.world import StuckError, World

__all__ = [
    "Answers",
    "Ask",
    "Broadcast",
    "Burst",
    "ChaosRun",
    "Checker",
    "Checks",
    "Constant",
    "Coverage",
    "Crash",
    "Cut",
    "Datagram",
    "DiskFull",
    "Exchange",
    "ExchangeMachine",
    "Exploration",
    "Fault",
    "Flying",
    "Hold",
    "Incident",
    "InvariantError",
    "Leave",
    "LogNormal",
    "Machine",
    "Network",
    "Node",
    "Observer",
    "Outcome",
    "Partition",
    "Pause",
    "Readvertise",
    "Rebind",
    "Replay",
    "RotateKeys",
    "Schedule",
    "SecondHolder",
    "Send",
    "SendsFail",
    "SetMetadata",
    "SimulatedCluster",
    "SlowCpu",
    "State",
    "Strangers",
    "StuckError",
    "Suspend",
    "Timeline",
    "Trouble",
    "Twin",
    "Uniform",
    "Weather",
    "Wire",
    "World",
    "chaos",
    "default_checkers",
    "describe",
    "explore",
    "fork",
    "incident_checks",
    "play",
    "random_schedule",
    "search",
    "shrink",
    "stop_refused",
]

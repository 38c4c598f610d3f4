"""A deterministic simulator for membership, and for any other machine without I/O; shipped for users' own tests."""

from swimcluster.testing.coverage import Coverage
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
from swimcluster.testing.machine import Datagram, Exchange, ExchangeMachine, Machine
from swimcluster.testing.network import Burst, Constant, LogNormal, Network, Trouble, Uniform
from swimcluster.testing.node import Node
from swimcluster.testing.randomness import fork
from swimcluster.testing.search import Outcome, search
from swimcluster.testing.shrink import shrink
from swimcluster.testing.world import Observer, StuckError, World

__all__ = [
    "Burst",
    "Constant",
    "Coverage",
    "Crash",
    "Cut",
    "Datagram",
    "DiskFull",
    "Exchange",
    "ExchangeMachine",
    "Fault",
    "Hold",
    "LogNormal",
    "Machine",
    "Network",
    "Node",
    "Observer",
    "Outcome",
    "Partition",
    "Pause",
    "Rebind",
    "Replay",
    "Schedule",
    "SendsFail",
    "SlowCpu",
    "StuckError",
    "Suspend",
    "Trouble",
    "Uniform",
    "Weather",
    "World",
    "describe",
    "fork",
    "play",
    "search",
    "shrink",
]

"""A whole node in the Prometheus text format, without a metrics library: serve the string at /metrics.

Counters and gauges of the machine come with the help texts of `swimcluster.statistics`; then what the UDP transport
survived, and this node's opinion of each member where that is wanted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Protocol

from swimcluster.member import Member, Reachability
from swimcluster.statistics import Statistics
from swimcluster.statistics import prometheus_text as statistics_text
from swimcluster.transport.udp_datagrams import UdpCounters

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Observed(Protocol):
    """What is read of a cluster: `Cluster`, `ThreadedCluster` and `AsyncioCluster` have it."""

    @property
    def members(self) -> tuple[Member, ...]: ...
    @property
    def departed(self) -> tuple[Member, ...]: ...
    @property
    def isolated(self) -> bool: ...
    @property
    def transport_counters(self) -> object: ...
    def statistics(self) -> Statistics: ...


def prometheus_text(cluster: Observed, *, prefix: str = "swimcluster", per_member: bool = True) -> str:
    """Return the metrics of this node, ending in a newline.

    Args:
        cluster: of `swimcluster.open_cluster` or of `swimcluster.threaded`.
        prefix: first part of every name.
        per_member: whether each member gets samples of its own; turn it off in clusters of thousands.
    """
    text = statistics_text(cluster.statistics(), prefix=prefix)
    text += _samples(f"{prefix}_isolated", "gauge", "1 while this node hears nobody.", [("", int(cluster.isolated))])
    counters = cluster.transport_counters
    if isinstance(counters, UdpCounters):
        for item in fields(counters):
            name = f"{prefix}_transport_{item.name}_total"
            text += _samples(name, "counter", "Survived by the UDP transport.", [("", getattr(counters, item.name))])
    if per_member:
        text += _member_samples(prefix, [*cluster.members, *cluster.departed])
    return text


def _member_samples(prefix: str, members: list[Member]) -> str:
    labels = {member.name: f'{{member="{escape(member.name)}"}}' for member in members}
    others = [member for member in members if not member.is_local]
    states = [(labels[member.name], int(member.state)) for member in members]
    direct = [(labels[member.name], int(member.reachability is Reachability.DIRECT)) for member in others]
    rtts = [(labels[member.name], member.rtt_s) for member in others if member.rtt_s is not None]
    ages = [(labels[member.name], member.vitals_age_s) for member in others if member.vitals_age_s is not None]
    return (
        _samples(f"{prefix}_member_state", "gauge", "0 alive, 1 suspect, 2 dead, 3 left.", states)
        + _samples(f"{prefix}_member_direct", "gauge", "1 when this node reaches the member directly.", direct)
        + _samples(f"{prefix}_member_rtt_seconds", "gauge", "Smoothed round-trip time of direct probes.", rtts)
        + _samples(f"{prefix}_member_vitals_age_seconds", "gauge", "Age of the member's vitals here.", ages)
    )


def _samples(name: str, kind: str, help_text: str, samples: Iterable[tuple[str, float]]) -> str:
    lines = [f"{name}{labels} {value}" for labels, value in samples]
    if not lines:
        return ""
    return "\n".join([f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", *lines]) + "\n"


def escape(label: str) -> str:
    """Return a label's value as the format wants it: backslash, quote and newline escaped."""
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

"""Counters and gauges of one machine, documented where they are defined, and their Prometheus text."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace


def _counter(help_text: str) -> int:
    return field(default=0, metadata={"help": help_text, "type": "counter"})


def _gauge(help_text: str) -> int:
    return field(default=0, metadata={"help": help_text, "type": "gauge"})


@dataclass(slots=True)
class Statistics:
    """What one machine has counted since it was made. `Swim.statistics()` returns a copy."""

    datagrams_sent: int = _counter("Datagrams handed to the transport.")
    bytes_sent: int = _counter("Bytes of datagrams and exchange requests handed to the transport.")
    datagrams_received: int = _counter("Datagrams given to the machine, good or bad.")
    bytes_received: int = _counter("Bytes of datagrams and exchanges given to the machine, good or bad.")
    exchanges_started: int = _counter("Exchange requests handed to the transport.")
    exchanges_failed: int = _counter("Own exchange requests that brought no usable reply.")
    exchanges_answered: int = _counter("Exchange requests of others that got a reply.")
    sends_failed: int = _counter("Datagrams the local transport could not send.")
    dropped_rate: int = _counter("Inputs dropped before any check: their source sent too many.")
    dropped_malformed: int = _counter("Inputs that are not of this protocol, or not well formed.")
    dropped_version: int = _counter("Inputs of another protocol version.")
    dropped_cluster: int = _counter("Inputs of a cluster with another name.")
    dropped_key: int = _counter("Inputs made with a key this node does not hold.")
    dropped_mac: int = _counter("Inputs whose MAC does not verify.")
    dropped_replay: int = _counter("Inputs whose (instance, counter) was seen before or is too old.")
    dropped_own: int = _counter("Inputs that this node itself sent.")
    dropped_implausible: int = _counter("Claims refused for a jump of incarnation or a second address in one life.")
    dropped_full: int = _counter(
        "News refused because a table was at its limit, or one packet held more than a table takes."
    )
    dropped_unknown: int = _counter("Failure reports about members this node does not know.")
    probes: int = _counter("Probes begun.")
    probes_acked_direct: int = _counter("Probes answered directly.")
    probes_acked_relayed: int = _counter("Probes answered only through a relay.")
    probes_acked_exchange: int = _counter("Probes answered only by exchange.")
    probes_failed: int = _counter("Probes that nothing answered.")
    nacks_received: int = _counter("Negative acks from relays.")
    accusations: int = _counter("Suspicions this node raised by its own probes.")
    accusations_held: int = _counter("Accusations held back because the last probes all failed.")
    suspicions: int = _counter("Suspicions begun here, own and heard.")
    confirmations: int = _counter("Further accusers of running suspicions.")
    refutations: int = _counter("Times this node refuted a claim about itself.")
    refuted: int = _counter("Suspicions of others that ended by refutation.")
    deaths_declared: int = _counter("Members this node declared dead after their suspicion ran out.")
    stale_answered: int = _counter("Members told directly what is held against them.")
    introductions: int = _counter("Members asked for their own Alive.")
    verified: int = _counter("Members listed after a first ack.")
    unverified_dropped: int = _counter("Members forgotten because no ack came.")
    name_checks: int = _counter("Holders pinged because a joiner wants their name.")
    name_conflicts: int = _counter("Claims of a second live holder of a name.")
    clock_gaps: int = _counter("Jumps of the clock noticed.")
    events_lost: int = _counter("Events dropped because nobody took them.")
    user_broadcasts_dropped: int = _counter("User broadcasts pushed out of a full queue.")
    members_live: int = _gauge("Live members including this one.")
    members_suspect: int = _gauge("Members suspected now.")
    members_departed: int = _gauge("Dead and left members still remembered.")
    members_unverified: int = _gauge("Members waiting for a first ack.")
    local_health: int = _gauge("Local health score; 0 is healthy.")
    updates_queued: int = _gauge("Membership updates waiting to be spread.")
    broadcasts_queued: int = _gauge("User broadcasts waiting to be spread.")
    exchanges_pending: int = _gauge("Own exchanges without an answer yet.")

    def copy(self) -> Statistics:
        """Return an independent copy."""
        return replace(self)


def prometheus_text(statistics: Statistics, *, prefix: str = "swimcluster") -> str:
    """Return the statistics in the Prometheus text format 0.0.4; counters end in `_total`."""
    lines: list[str] = []
    for item in fields(statistics):
        kind = item.metadata["type"]
        name = f"{prefix}_{item.name}" + ("_total" if kind == "counter" else "")
        lines += [f"# HELP {name} {item.metadata['help']}", f"# TYPE {name} {kind}"]
        lines.append(f"{name} {getattr(statistics, item.name)}")
    return "\n".join(lines) + "\n"

"""How many messages and bytes each member sends, and whether that grows with the group."""

from __future__ import annotations

from typing import Any

from simulations.harness import SWIM_ONLY, Traffic, formed
from simulations.question import Answer, Parameters, Question, Row
from swimcluster.testing.network import SECOND

PERIODS = 40
MESSAGES = (1.9, 2.1)


def memberlist_bytes_per_second(gossip_nodes: int, gossip_interval_s: float, datagram_bytes: int) -> float:
    """memberlist's and serf's estimate of what a member's gossip may cost, both directions, with full packets."""
    return datagram_bytes * gossip_nodes / gossip_interval_s * 2


def load(n: int, seed: int, *, periods: int, settings: dict[str, Any]) -> Row:
    """Messages per member and period, bytes per member and second, of a quiet cluster."""
    cluster = formed(n, seed, **settings)
    cluster.world.run_for(15)
    traffic = Traffic(cluster)
    cluster.world.run_for(periods)
    seconds = (cluster.world.now - traffic.since) / SECOND
    return {
        "n": n,
        "messages/member-period": traffic.datagrams / n / seconds,
        "exchanges/member-period": traffic.exchanges / n / seconds,
        "bytes/member-second": traffic.bytes / n / seconds,
    }


def run(parameters: Parameters) -> Answer:
    """Measure plain SWIM, which has a known load, and the defaults."""
    seed = parameters.seeds_or(1, 1, 1)[0]
    sizes = parameters.members or parameters.pick((8, 16), (8, 32, 64), (8, 32, 128, 256))
    periods = parameters.pick(20, PERIODS, PERIODS)
    answer = Answer(holds=True)
    for n in sizes:
        row: Row = {"protocol": "SWIM only", **load(n, seed, periods=periods, settings=SWIM_ONLY)}
        sent = float(row["messages/member-period"] or 0)
        row |= {"theory": 2.0, "holds": MESSAGES[0] <= sent <= MESSAGES[1]}
        answer.rows.append(row)
        answer.holds &= bool(row["holds"])
        answer.measured[f"messages per member and period, n={n}"] = sent
    ceiling = memberlist_bytes_per_second(3, 0.2, 1400)
    for n in sizes:
        row = {"protocol": "LAN defaults", **load(n, seed, periods=periods, settings={})}
        row |= {"theory": ceiling, "holds": float(row["bytes/member-second"] or 0) <= ceiling}
        answer.rows.append(row)
        answer.holds &= bool(row["holds"])
        answer.measured[f"bytes per member and second, LAN, n={n}"] = row["bytes/member-second"]
    answer.notes.append(
        "SWIM only: one ping and one ack per member and period make 2.0. LAN defaults: theory is memberlist's estimate "
        "of gossip with full packets, an upper bound in bytes; a quiet cluster sends small ones."
    )
    return answer


QUESTION = Question(
    "message_load",
    "How many messages does each member send per period, and does it grow with the group?",
    "SWIM only: 2.0 ± 0.1 messages per member and period at every size; LAN defaults: below memberlist's estimate",
    run,
)

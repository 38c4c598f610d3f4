"""One-way cuts, members that hear little, loss everywhere, old messages once more: do the healthy stay alive?"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from simulations.harness import EventLog, formed
from simulations.question import Answer, Parameters, Question, Row
from swimcluster.address import Address
from swimcluster.member import Member
from swimcluster.testing.cluster import SimulatedCluster
from swimcluster.testing.faults import Replay
from swimcluster.testing.network import SECOND, Network, Recorded, Trouble
from swimcluster.testing.randomness import fork
from swimcluster.testing.search import map_seeds
from swimcluster.testing.wire import Wire

CALM_S = 60.0
SETTLED_S = 60.0
KEPT_MAX = 500_000
"""Messages kept for the replay: all of a run of a hundred members for five minutes, several times over."""
CLAIMS = ("Alive", "Suspect", "Dead", "Left")
"""The messages that change views."""


def one_way_cut(seed: int, *, n: int, seconds: int) -> Row:
    """One per cent of the members (at least one) sends but hears nothing, exchanges included."""
    cluster = formed(n, seed)
    cluster.world.run_for(5)
    bad = fork(seed, "cut").sample(list(cluster.places), max(1, n // 100))
    cluster.world.network.cut(None, bad)
    return _judge("one-way cut", cluster, bad, seconds)


def ingress_loss(seed: int, *, n: int, seconds: int) -> Row:
    """A tenth of the members loses 80 % of what is sent to it."""
    cluster = formed(n, seed)
    cluster.world.run_for(5)
    bad = fork(seed, "ingress").sample(list(cluster.places), max(1, n // 10))
    cluster.world.network.trouble(Trouble(destinations=frozenset(bad), loss=0.8))
    return _judge("80 % ingress loss", cluster, bad, seconds)


def loss_everywhere(seed: int, *, n: int, seconds: int) -> Row:
    """Three packets in ten are lost, everywhere."""
    cluster = formed(n, seed)
    cluster.world.run_for(5)
    cluster.world.network.set_base(loss=0.3)
    return _judge("30 % loss", cluster, [], seconds)


def _judge(what: str, cluster: SimulatedCluster, bad: list[str], seconds: int) -> Row:
    """Deaths of the healthy at the healthy; and whether each bad member stays in one state once it has one."""
    log = EventLog("MemberDied", "MemberJoined", "MemberLeft").watch(cluster)
    cluster.world.run_for(SETTLED_S)
    settled = cluster.world.now
    cluster.world.run_for(seconds)
    healthy = [h for h in log.happenings if h.observer not in bad and h.about not in bad and h.kind == "MemberDied"]
    later = [h for h in log.happenings if h.about in bad and h.observer not in bad and h.at > settled]
    flips = max(
        (sum(h.about == name and h.observer == o for h in later) for name in bad for o in cluster.places), default=0
    )
    return {
        "what": what,
        "n": len(cluster.places),
        "seed": cluster.seed,
        "bad": len(bad),
        "healthy declared dead": len(healthy),
        "flips of a bad one after 60 s": flips,
        "holds": not healthy and (flips <= 1 or what == "80 % ingress loss"),
    }


def replay(seed: int, *, n: int, seconds: int) -> Row:
    """A member dies, one leaves, one moves; then everything ever sent arrives again, and at other doors too."""
    network = Network(seed=seed, record=True, recorded_max=KEPT_MAX)
    cluster = formed(n, seed, network=network)
    world = cluster.world
    world.run_for(10)
    old = world.nodes["n003"].address
    cluster.stop("n001")
    cluster.leave("n002")
    elsewhere = Address("10.200.0.9", 9)
    world.move(world.nodes["n003"], elsewhere)
    cluster.call("n003", "readvertise", elsewhere)
    cluster.call("n000", "set_metadata", b"new")
    world.run_for(seconds)
    before, recorded = _views(cluster), list(network.recorded or ())
    missing = unrecorded(recorded, Wire(cluster.config("n000")), dead="n001", left="n002", moved="n003", old=old)
    # In the order they were sent, and in as long a time: faster, senders' rate limits would keep them out.
    span_s = world.now / SECOND
    for elsewhere_too in (False, True):
        Replay(world.now, None, elsewhere=elsewhere_too, spread_ns=round(span_s * SECOND)).start(world)
        world.run_for(span_s)
    world.run_for(CALM_S)
    after = _views(cluster)
    changed = sum(before[name] != after[name] for name in before)
    replayed = network.counts["replayed"]
    return {
        "what": "replay",
        "n": n,
        "seed": seed,
        "replayed": replayed,
        "kinds missing": ", ".join(missing),
        "views changed": changed,
        "holds": changed == 0 and not missing and replayed >= 2 * len(recorded) and not cluster.differences(),
    }


def unrecorded(
    recorded: Iterable[Recorded], wire: Wire, *, dead: str, left: str, moved: str, old: Address
) -> list[str]:
    """What a record must hold for its replay to mean anything, and this one does not."""
    found: set[str] = set()
    for message in recorded:
        found.add(message.kind)
        packet = wire.packet(message.data) if message.kind == "datagram" else None
        if packet is None:
            continue
        found.update(type(one).__name__ for one in packet.messages)
        if packet.name in (dead, left):
            found.add(f"from {packet.name}")
        if packet.name == moved and packet.address == old:
            found.add(f"from {moved} before its move")
    wanted = ("request", "reply", *CLAIMS, f"from {dead}", f"from {left}", f"from {moved} before its move")
    return [kind for kind in wanted if kind not in found]


def _views(cluster: SimulatedCluster) -> dict[str, list[tuple[Any, ...]]]:
    def facts(member: Member) -> tuple[Any, ...]:
        return (member.name, member.address, member.instance, member.epoch, member.state, member.metadata)

    return {name: [facts(m) for m in cluster.machine(name).members()] for name in cluster.running()}


def run(parameters: Parameters) -> Answer:
    """Each hostility for each seed."""
    n = (parameters.members or (parameters.pick(10, 32, 100),))[0]
    seconds: int = parameters.pick(60, 120, 300) if parameters.ticks is None else parameters.ticks // 10
    seeds = parameters.seeds_or(1, 2, 5)
    answer = Answer()
    for case in (one_way_cut, ingress_loss, loss_everywhere, replay):
        rows: list[Any] = map_seeds(partial(case, n=n, seconds=seconds), seeds, processes=parameters.processes)
        answer.rows += rows
    answer.holds = all(row["holds"] for row in answer.rows)
    answer.measured = {
        "healthy members declared dead": sum(int(row.get("healthy declared dead") or 0) for row in answer.rows),
        "messages replayed": sum(int(row.get("replayed") or 0) for row in answer.rows),
        "views changed by replay": sum(int(row.get("views changed") or 0) for row in answer.rows),
    }
    answer.notes.append(
        "Replayed is everything that was ever sent, once to whom it was sent and once to somebody else."
    )
    return answer


QUESTION = Question(
    "hostile_network",
    "Do healthy members stay alive beside one-way cuts, 80 % ingress loss, 30 % loss everywhere, and replays?",
    "healthy members are never DEAD to healthy ones; each cut member settles in one state; replays of "
    "everything, with every kind of claim and packets of the dead, the leaver and the mover in it, change no view",
    run,
)

"""How fast the simulator is: members for virtual seconds at LAN defaults with MACs, without and with checkers.

Run: python -m benchmarks.simulator [--members 100] [--seconds 60] [--profile]

Bounds: 100 members for 60 virtual seconds take at most 15 s without checkers and at most 60 s with them, on one core.
Processor time is judged, so that a busy machine does not count. Forming the cluster is outside the measurement.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
import time

from simulations.harness import Traffic, formed
from swimcluster.testing.cluster import SimulatedCluster
from swimcluster.testing.invariants import Checks
from swimcluster.testing.network import SECOND

BOUND_S = {"without checkers": 15.0, "with checkers": 60.0}
REFERENCE = (100, 60)


def measure(members: int, seconds: int, *, checkers: bool, profile: bool = False) -> dict[str, float]:
    """Processor and wall seconds, and datagrams, of one run."""
    cluster = formed(members, seed=1)
    checks = Checks(cluster) if checkers else None
    if checks is not None:
        # The cluster formed before anybody looked: let each checker see every process as it is.
        for node in cluster.world.nodes.values():
            checks.booted(cluster.world, node)
    _keep_talking(cluster)
    traffic = Traffic(cluster)
    profiler = cProfile.Profile() if profile else None
    start, cpu = time.perf_counter(), time.process_time()
    if profiler is not None:
        profiler.enable()
    cluster.world.run_for(seconds)
    if profiler is not None:
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(35)
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    if checks is not None and checks.violations:
        raise AssertionError(checks.violations)
    each = 1e6 * cpu / max(1, traffic.datagrams)
    return {"cpu_s": cpu, "wall_s": wall, "datagrams": traffic.datagrams, "us_per_datagram": each}


def _keep_talking(cluster: SimulatedCluster) -> None:
    """Give every member new vitals each second, so that no gossip tick rests: the full load of the defaults."""

    def publish(name: str) -> None:
        cluster.call(name, "set_vitals", b"%d" % cluster.world.now)
        cluster.world.after(SECOND, publish, name)

    for i, name in enumerate(cluster.places):
        cluster.world.after(SECOND * i // len(cluster.places), publish, name)


def main() -> int:
    """Print a line per measurement and one of JSON; 1 when a bound is missed at the reference size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=REFERENCE[0])
    parser.add_argument("--seconds", type=int, default=REFERENCE[1])
    parser.add_argument("--profile", action="store_true", help="say where the time goes")
    arguments = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    holds = True
    for name, checkers in (("without checkers", False), ("with checkers", True)):
        profile = arguments.profile and not checkers
        result = results[name] = measure(arguments.members, arguments.seconds, checkers=checkers, profile=profile)
        print(
            f"{arguments.members} members, {arguments.seconds} virtual s, {name}: {result['cpu_s']:.2f} s of "
            f"processor ({result['wall_s']:.2f} s), {result['datagrams']:.0f} datagrams, {result['us_per_datagram']:.0f} us each"
        )
        if (arguments.members, arguments.seconds) == REFERENCE:
            holds &= result["cpu_s"] <= BOUND_S[name]
    print(json.dumps({"members": arguments.members, "seconds": arguments.seconds, "results": results, "holds": holds}))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())

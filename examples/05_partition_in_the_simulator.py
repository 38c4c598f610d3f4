"""Cut five members in two, watch both sides notice, mend the cut, and read one member's life as a timeline.

Run: python examples/05_partition_in_the_simulator.py
"""

from __future__ import annotations

from swimcluster.testing import Checks, Partition, SimulatedCluster, Timeline, play
from swimcluster.testing.network import SECOND


def main() -> None:
    timeline = Timeline("n004")
    cluster = SimulatedCluster(5, seed=7, observers=[timeline])
    checks = Checks(cluster)
    cluster.start_all()
    print(f"one view after {cluster.settle(limit_s=30)} s")

    end = play(cluster.world, [Partition(at_ns=10 * SECOND, for_ns=60 * SECOND, members=frozenset({"n003", "n004"}))])
    cluster.world.run_until(end - 1)
    for name in cluster.running():
        print(f"{name} sees {', '.join(f'{m.name} {m.state.name.lower()}' for m in cluster.view(name).values())}")

    cluster.world.run_until(end)
    print(f"one view again {cluster.settle(limit_s=120)} s after the cut was mended")
    print(f"invariants violated: {checks.violations or 'none'}; trace digest {cluster.world.digest()}")
    print("\nthe life of n004:")
    print(timeline.text())


if __name__ == "__main__":
    main()

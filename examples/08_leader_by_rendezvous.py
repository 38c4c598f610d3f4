"""Who does the nightly job? Each member answers alone, and all alike: the one that ranks first for the job's name.

This is placement, not a lock: while news of a death travels two members may both, or neither, feel in charge.
"""

from contextlib import AsyncExitStack

import trio

from swimcluster import Address, Cluster, Config, open_cluster
from swimcluster.rendezvous import owner
from swimcluster.transport.memory import MemoryNetwork

JOBS = ["backup", "report", "cleanup"]


def plan(cluster: Cluster) -> dict[str, str]:
    """Return who does what, as this member sees it."""
    return {job: leader.name for job in JOBS if (leader := owner(job, cluster.members)) is not None}


async def main() -> None:
    network = MemoryNetwork(delay_s=0.001)
    async with AsyncExitStack() as stack:
        members: dict[str, Cluster] = {}
        for name in ("amber", "blue", "coral", "denim"):
            transport = await stack.enter_async_context(network.open_transport(Address(name, 7946)))
            config = Config.local(name=name, seeds=["amber:7946"], insecure=True)
            members[name] = await stack.enter_async_context(open_cluster(config, transport=transport))
        for cluster in members.values():
            await cluster.wait_for(lambda found: len(found) == 4)
        print("everybody agrees:", {str(plan(cluster)) for cluster in members.values()})

        leaver = next(name for name in plan(members["amber"]).values() if name != "amber")
        await members.pop(leaver).leave()
        for cluster in members.values():
            await cluster.wait_for(lambda found: len(found) == 3)
        print(f"without {leaver}:", {str(plan(cluster)) for cluster in members.values()})


trio.run(main)

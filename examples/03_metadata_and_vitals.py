"""What members say of themselves: metadata that changes rarely, vitals that change all the time.

Runs three members on an in-memory network; each publishes its free places, and one asks the freest to do something.
"""

import json
from contextlib import AsyncExitStack

import trio

from swimcluster import Address, Cluster, Config, open_cluster
from swimcluster.transport.memory import MemoryNetwork


async def start(stack: AsyncExitStack, network: MemoryNetwork, name: str, free: int) -> Cluster:
    async def work(sender: str, payload: bytes) -> bytes:
        return f"{name} did {payload.decode()} for {sender}".encode()

    transport = await stack.enter_async_context(network.open_transport(Address(name, 7946)))
    config = Config.local(name=name, seeds=["m0:7946"], insecure=True)
    metadata = json.dumps({"role": "worker", "places": 8}).encode()
    opening = open_cluster(config, transport=transport, metadata=metadata, on_request=work)
    cluster = await stack.enter_async_context(opening)
    cluster.set_vitals(free.to_bytes(2, "big"))
    return cluster


async def main() -> None:
    network = MemoryNetwork(delay_s=0.001)
    async with AsyncExitStack() as stack:
        first, *_ = [await start(stack, network, f"m{number}", free) for number, free in enumerate((1, 5, 3))]
        await first.wait_for(lambda members: len(members) == 3 and all(member.vitals for member in members))
        for member in first.members:
            print(member.name, json.loads(member.metadata), "free:", int.from_bytes(member.vitals, "big"))
        freest = max(first.members, key=lambda member: member.vitals)
        print((await first.request(freest.name, b"the dishes")).decode())


trio.run(main)

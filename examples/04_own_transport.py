"""A transport of your own: here one that counts bytes and loses a part of the datagrams, around the UDP one.

Anything with these five methods will do; saiserve carries the protocol inside HTTP requests in the same way.
"""

import random
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import trio

from swimcluster import Address, Config, ExchangeHandler, Transport, open_cluster
from swimcluster.transport.udp import open_udp_transport


class LossyTransport:
    def __init__(self, inner: Transport, loss: float) -> None:
        self.inner = inner
        self.loss = loss
        self.sent = self.lost = self.bytes = 0

    @property
    def local_address(self) -> Address:
        return self.inner.local_address

    async def send(self, destination: Address, data: bytes) -> bool:
        self.sent += 1
        self.bytes += len(data)
        if random.random() < self.loss:
            self.lost += 1
            return True  # a lost datagram is not a failed send
        return await self.inner.send(destination, data)

    async def exchange(self, destination: Address, data: bytes) -> bytes:
        return await self.inner.exchange(destination, data)

    async def receive(self) -> tuple[Address | None, bytes]:
        return await self.inner.receive()

    def serve(self, handler: ExchangeHandler) -> AbstractAsyncContextManager[None]:
        return self.inner.serve(handler)


async def main() -> None:
    async with AsyncExitStack() as stack:
        seeds: list[Address] = []
        clusters = []
        for name in ("a", "b", "c"):
            udp = await stack.enter_async_context(open_udp_transport(Address("127.0.0.1", 0)))
            transport = LossyTransport(udp, loss=0.2)
            config = Config.local(name=name, seeds=seeds, insecure=True)
            clusters.append((await stack.enter_async_context(open_cluster(config, transport=transport)), transport))
            seeds = [udp.local_address]
        for cluster, _ in clusters:
            await cluster.wait_for(lambda members: len(members) == 3)
        await trio.sleep(3)
        for cluster, transport in clusters:
            alive = [member.name for member in cluster.members]
            print(f"{cluster.local.name} sees {alive}: {transport.lost} of {transport.sent} datagrams lost")


trio.run(main)

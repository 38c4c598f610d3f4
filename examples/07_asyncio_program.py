"""The same library in an asyncio program: two members that ask each other, with asyncio's own timeouts."""

import asyncio

from swimcluster import Address, Config, MemberJoined
from swimcluster.threaded import open_asyncio_cluster


async def double(sender: str, payload: bytes) -> bytes:
    await asyncio.sleep(0)  # runs on this program's loop
    return str(2 * int(payload)).encode()


async def main() -> None:
    anywhere = Address("127.0.0.1", 0)
    async with (
        open_asyncio_cluster(Config.local(name="a", bind=anywhere, insecure=True), on_request=double) as a,
        a.subscribe() as events,
    ):
        config = Config.local(name="b", bind=anywhere, seeds=[a.local.address], insecure=True)
        async with open_asyncio_cluster(config) as b:
            async with asyncio.timeout(10):
                async for event in events:
                    if isinstance(event, MemberJoined):
                        print(f"a: {event.member.name} joined")
                        break
            print("b: twice 21 is", (await b.request("a", b"21")).decode())
        async with asyncio.timeout(10):
            await a.wait_for(lambda members: len(members) == 1)
        print("a: alone again, as b said that it leaves")


asyncio.run(main())

"""A member that prints who is alive. In one terminal, then in another:

python examples/02_trio_node.py a 127.0.0.1:7001
python examples/02_trio_node.py b 127.0.0.1:7002 127.0.0.1:7001
"""

import os
import sys

import trio

from swimcluster import Config, open_cluster


async def main(*arguments: str) -> None:
    name, bind, *seeds = arguments
    secret = os.environ.get("CLUSTER_SECRET", "only for trying this out").encode()
    config = Config.lan(name=name, bind=bind, seeds=seeds, keys=[secret])
    async with open_cluster(config) as cluster, cluster.subscribe() as events:
        async for event in events:
            alive = ", ".join(f"{member.name} ({member.state.name.lower()})" for member in cluster.members)
            print(f"{type(event).__name__}: {alive}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: 02_trio_node.py NAME HOST:PORT [SEED ...]")
    try:
        trio.run(main, *sys.argv[1:])
    except KeyboardInterrupt:
        print("left")

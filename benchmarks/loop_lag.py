"""How late a node's event loop runs while its engine decodes at full speed, default settings.

`python -m benchmarks.loop_lag [--streams N] [--seconds S] [--json]`. The bound is 50 ms at the 99th percentile.
"""

from __future__ import annotations

import argparse
import json
import sys

import httpx2
import trio

from acceptance.chat import chat_body, stream_chat
from acceptance.cluster import SMOL
from acceptance.engine import metric
from acceptance.nodes import fleet

BOUND_S = 0.050


async def measure(streams: int, seconds: float) -> dict[str, float]:
    """Keep `streams` streams running for `seconds` and read the node's own measurement."""
    async with fleet() as group:
        node = await group.start_ready("node-a", SMOL, seeds="", environment={"THREADS": "", "LANES": str(streams)})

        async def ask(client: httpx2.AsyncClient, number: int) -> None:
            round_number = 0
            while True:
                round_number += 1
                body = chat_body(SMOL, f"Write about number {number}-{round_number}.", 400, ignore_eos=True)
                await stream_chat(client, body)

        async with node.client() as client:
            before = await metric(node, "saiserve_engine_decode_tokens_total")
            with trio.move_on_after(seconds):
                async with trio.open_nursery() as nursery:
                    for number in range(streams):
                        nursery.start_soon(ask, client, number)
            decoded = await metric(node, "saiserve_engine_decode_tokens_total") - before
            return {
                "streams": streams,
                "tokens_per_s": round(decoded / seconds, 1),
                "lag_p99_ms": round(1000 * await metric(node, "saiserve_loop_lag_p99_seconds"), 2),
                "lag_max_ms": round(1000 * await metric(node, "saiserve_loop_lag_max_seconds"), 2),
            }


def main() -> int:
    """Print one row per number of streams; exit code 1 when a bound does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", action="store_true")
    parsed = parser.parse_args()
    rows = [trio.run(measure, streams, parsed.seconds) for streams in parsed.streams]
    for row in rows:
        print(json.dumps(row) if parsed.json else "  ".join(f"{name} {value:g}" for name, value in row.items()))
    return 0 if all(row["lag_p99_ms"] <= BOUND_S * 1000 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

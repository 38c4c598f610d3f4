"""A burst: many clients at one node in the same moment, and how long a probe of the control endpoints waits meanwhile.

    python -m benchmarks burst [--model sim=simulated:sim?lanes=4] [--clients 200] [--tokens 16]

Prints one JSON object: answers by status, waits until the first byte of an answer (seconds), the slowest answer, and the
slowest reply of each control endpoint, polled every 0.2 s. A client counts as reset when its connection broke.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import h11
import trio

from acceptance.nodes import API_KEY, fleet

CONTROL: Final = ("/health", "/metrics", "/v1/models")
POLL_S: Final = 0.2
DEADLINE_S: Final = 200.0


@dataclass
class Tally:
    """What the clients and the probe saw."""

    statuses: Counter[str] = field(default_factory=Counter)
    first_byte_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)
    control_s: dict[str, list[float]] = field(default_factory=dict)
    """Seconds of every poll, by path."""
    log: str = ""
    """What the node logged."""


async def ask(port: int, method: str, path: str, body: bytes = b"") -> tuple[int, float, float]:
    """One request on its own connection: status, seconds to the first byte of the body, seconds to its end."""
    begun = trio.current_time()
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        machine = h11.Connection(h11.CLIENT)
        headers = [("host", "node"), ("authorization", f"Bearer {API_KEY}"), ("connection", "close")]
        if body:
            headers += [("content-type", "application/json"), ("content-length", str(len(body)))]
        data = machine.send(h11.Request(method=method, target=path, headers=headers)) or b""
        if body:
            data += machine.send(h11.Data(data=body)) or b""
        await stream.send_all(data + (machine.send(h11.EndOfMessage()) or b""))
        status, first = 0, 0.0
        while True:
            event = machine.next_event()
            if event is h11.NEED_DATA:
                machine.receive_data(await stream.receive_some())
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                first = first or trio.current_time() - begun
            elif isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)):
                return status, first, trio.current_time() - begun


async def client(port: int, number: int, tokens: int, model: str, start: trio.Event, tally: Tally) -> None:
    """One client of the burst."""
    message = {"role": "user", "content": f"Tell me a story about the number {number}."}
    body = json.dumps({"model": model, "messages": [message], "max_tokens": tokens, "stream": True}).encode()
    await start.wait()
    try:
        status, first, whole = await ask(port, "POST", "/v1/chat/completions", body)
    except (OSError, h11.RemoteProtocolError):
        tally.statuses["reset"] += 1
        return
    tally.statuses[str(status)] += 1
    if status == 200:
        tally.first_byte_s.append(first)
        tally.whole_s.append(whole)


async def probe(port: int, path: str, tally: Tally) -> None:
    """Poll one control endpoint for ever."""
    while True:
        _, _, seconds = await ask(port, "GET", path)
        tally.control_s.setdefault(path, []).append(seconds)
        await trio.sleep(POLL_S)


async def burst(port: int, model: str, clients: int, tokens: int) -> Tally:
    """All clients at once, with the probes beside them."""
    tally, start = Tally(), trio.Event()
    with trio.move_on_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            for path in CONTROL:
                nursery.start_soon(probe, port, path, tally)
            await trio.sleep(1.0)
            tally.control_s.clear()
            async with trio.open_nursery() as crowd:
                for number in range(clients):
                    crowd.start_soon(client, port, number, tokens, model, start, tally)
                start.set()
            nursery.cancel_scope.cancel()
    return tally


def summary(tally: Tally, clients: int) -> dict[str, Any]:
    """The figures, rounded."""
    waits = sorted(tally.first_byte_s)
    return {
        "clients": clients,
        "statuses": dict(tally.statuses) | {"unanswered": clients - sum(tally.statuses.values())},
        "first_byte_s": {
            "mean": round(statistics.fmean(waits), 2),
            "p50": round(waits[len(waits) // 2], 2),
            "max": round(waits[-1], 2),
        }
        if waits
        else {},
        "slowest_s": round(max(tally.whole_s, default=0.0), 2),
        "control_slowest_s": {path: round(max(polls), 3) for path, polls in sorted(tally.control_s.items())},
    }


async def measure(model: str, clients: int, tokens: int) -> Tally:
    """One node, one burst."""
    async with fleet() as nodes:
        node = await nodes.start_ready("burst", model)
        tally = await burst(node.port, model.partition("=")[0], clients, tokens)
        tally.log = node.log_text()
    return tally


def main() -> int:
    """Start a node, run the burst, print the figures; 0 always, because nothing is bounded here."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="sim=simulated:sim?lanes=4&decode_rate=200")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=16)
    options = parser.parse_args()
    tally = trio.run(measure, options.model, options.clients, options.tokens)
    print(json.dumps(summary(tally, options.clients)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

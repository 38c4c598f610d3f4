"""What an operator reads when nodes do not find each other: who it was, and lines that docs/peers.md explains."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from saiserve.peers.messages import SWIM
from saiserve.peers.server import PeerPort
from saiserve.peers.swim_transport import NO_MEMBERSHIP_WORDS
from swimcluster.address import Address
from swimcluster.event_log import describe
from swimcluster.events import AddressConflict, JoinAttemptFailed, PeerRefused
from swimcluster.mac import VERSION, Hello
from swimcluster.refusals import Refusals
from tests.fakes.swim_bench import Bench, address

PAGE = Path(__file__).parents[3] / "docs" / "peers.md"
ID = b"1234"


class Listener:
    """Notes where exchanges came from."""

    def __init__(self) -> None:
        self.sources: list[Address | None] = []

    async def serve_http(self, kind: bytes, body: bytes, source: Address | None = None) -> bytes | None:
        self.sources.append(source)
        return None

    def body_bytes_max(self, kind: bytes) -> int:
        return 10


@pytest.mark.parametrize(
    ("client", "source"),
    [
        (("10.0.0.9", 5), Address("10.0.0.9", 5)),
        (("::ffff:10.0.0.9", 5), Address("10.0.0.9", 5)),
        (("2001:db8::9", 5, 0, 0), Address("2001:db8::9", 5)),
        (None, None),
    ],
)
async def test_membership_is_told_the_host_that_an_exchange_came_from(client: Any, source: Address | None) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"x", "more_body": False}

    async def send(_message: Any) -> None:
        pass

    listener = Listener()
    port = PeerPort(send, verifier=None, engine=lambda _model: None, swim=listener)  # type: ignore[arg-type]
    scope = {"type": "http", "path": SWIM, "method": "POST", "headers": [(b"x-sai-swim", b"exchange")]}
    await port(scope | {"client": client}, receive, send)
    assert listener.sources == [source]


def refusal(said: Hello | str) -> str:
    """The line about a node that says this of itself, or of which the carrier says this."""
    bench = Bench()
    a, *_ = bench.cluster(2)
    refusals = Refusals(a.core)
    tell = refusals.by_seed if isinstance(said, Hello) else refusals.by_stranger
    tell(bench.now, address(9), said)  # type: ignore[arg-type]
    (told,) = [event for event in a.events() if isinstance(event, PeerRefused)]
    return describe(told)


def test_each_line_about_a_node_that_is_not_let_in_is_explained() -> None:
    lines = [
        refusal(Hello(VERSION, "default", (ID,))),
        refusal(Hello(VERSION, "blue", (ID,))),
        refusal(Hello(VERSION + 1, "", ())),
        refusal(NO_MEMBERSHIP_WORDS),
        describe(AddressConflict("b", address(2), "a")),
        describe(JoinAttemptFailed((address(9),), 1.0)),
    ]
    rows = re.findall(r"^\| `(.+?)`", PAGE.read_text(), re.MULTILINE)
    explained = [re.compile(".*" + ".+".join(map(re.escape, row.strip("… ").split("…")))) for row in rows]
    assert [sum(bool(row.match(line)) for row in explained) for line in lines] == [1] * len(lines), lines

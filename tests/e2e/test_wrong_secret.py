"""Nodes of another secret, of none, or of another cluster at the doors of real nodes: nobody lets them in, members go on
undisturbed, and each side's log says what to change."""

from __future__ import annotations

import base64
import math
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
import trio
from membership_views import LOG_LINES_PER_MINUTE, again_if_still, counted, metrics, unchanged, view

from acceptance.cluster import UNHURRIED_S, wait_view
from acceptance.nodes import CLUSTER_SECRET, Fleet, Node, fleet, plain_client
from acceptance.served import post_served
from saiserve.membership import membership_key
from swimcluster.keyring import Keyring
from swimcluster.line_budget import LINES_PER_WINDOW, WINDOW_S
from swimcluster.mac import HELLO_MAGIC, FrameKind, encode_hello, seal
from tests.fakes.relay import Relay, inject

OTHER_SECRET = "a-secret/of+another=cluster-0123456789"
VIEW_S, RETRY_S, SETTLE_S = UNHURRIED_S, UNHURRIED_S, UNHURRIED_S
DIALS_MIN = 9
"""Three rounds over three seeds."""
UNDER_WAY_MAX = 4
"""Requests that one side has counted and the other not yet; more seeds are not dialled at one time."""
STRANGER = "127.0.0.9"
BATCH, BATCHES = 50, 8

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Mistake:
    """What a node was given wrong, and what its operator and those of the members are to read."""

    wrong: dict[str, str]
    counter: str
    words: str
    mend: str


SECRET = Mistake({"CLUSTER_SECRET": OTHER_SECRET}, "dropped_key", "its key ids are", "give both one secret in common")
NAME = Mistake({"CLUSTER_NAME": "another"}, "dropped_cluster", "it is of cluster", "set the same name")


async def three(group: Fleet, transport: str) -> list[Node]:
    """Nodes a, b, c with a model each, in one view."""
    nodes: list[Node] = []
    for name in "abc":
        environment = {"CLUSTER_TRANSPORT": transport}
        seeds = nodes[0].address if nodes else ""
        nodes.append(await group.start_ready(name, f"simulated:of-{name}", seeds=seeds, environment=environment))
    await wait_view(nodes, set("abc"), VIEW_S)
    return nodes


async def status(node: Node, model: str) -> int:
    """What a node answers when asked for a model."""
    async with node.client() as client:
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        return int((await post_served(client, "/v1/chat/completions", body)).status_code)


async def dialled(stranger: Node, members: list[Node], mistake: Mistake) -> tuple[int, int, int]:
    """Requests that a stranger began, that members refused, and refusals that it read, once these are some rounds.

    All were refused but those under way and those without an answer in time, which a slow machine makes.
    """
    began = refused = read = 0
    with trio.move_on_after(SETTLE_S):
        while read < DIALS_MIN:
            await trio.sleep(0.2)
            read = await counted(stranger, mistake.counter)
    assert read >= DIALS_MIN, read
    refused = sum([await counted(node, mistake.counter) for node in members])
    began, failed = [await counted(stranger, name) for name in ("exchanges_started", "exchanges_failed")]
    assert read <= refused, (read, refused)
    assert began - failed <= UNDER_WAY_MAX, (began, failed)
    return began, refused, read


async def outputs(node: Node) -> bytes:
    """Everything a node tells anybody: log, metrics, views, command line and what it keeps on disk."""
    kept = [path.read_bytes() for path in Path(node.environment["STATE_DIR"]).rglob("*") if path.is_file()]
    command = Path(f"/proc/{node.process.pid}/cmdline").read_bytes()
    shown = f"{node.log_text()}{await metrics(node)}{await node.state()}"
    return b"".join([shown.encode(), command, *kept])


def spellings(secret: str) -> list[bytes]:
    """A secret, what is derived of it, and how either may have been written."""
    raw = secret.encode()
    key = membership_key(secret)
    plain = [raw, raw.hex().encode(), base64.b64encode(raw), base64.urlsafe_b64encode(raw), quote(secret, "").encode()]
    return [*plain, key, key.hex().encode(), base64.b64encode(key)]


def told_about(node: Node, words: str) -> list[str]:
    """Who is at fault, in the lines of a node's log that have these words."""
    return re.findall(rf"swimcluster: (\S+): {re.escape(words)}", node.log_text())


@pytest.mark.parametrize(("mistake", "transport"), [(SECRET, "tcp"), (SECRET, "udp"), (NAME, "tcp")])
@again_if_still
async def test_a_node_with_another_secret_or_name_is_let_in_by_nobody_and_by_all_once_mended(
    mistake: Mistake, transport: str
) -> None:
    async with fleet() as group:
        members = await three(group, transport)
        a, seeds = members[0], ",".join(node.address for node in members)
        began = trio.current_time()
        async with unchanged(*members):
            wrong = {"CLUSTER_TRANSPORT": transport, **mistake.wrong}
            stranger = group.start("d", "simulated:of-d", seeds=seeds, environment=wrong)
            await stranger.wait_ready()
            assert [await status(stranger, model) for model in ("of-d", "of-a")] == [200, 404]
            assert [await status(a, model) for model in ("of-d", "of-b", "of-c")] == [404, 200, 200]
            counts = await dialled(stranger, members, mistake)
            assert set(await view(stranger)) == {"d"}
        minutes = math.ceil((trio.current_time() - began) / 60)
        for node in members:
            (who, *_) = told_about(node, mistake.words)
            assert who.startswith("127.0.0.1:"), who
        tellings = [len(told_about(node, mistake.words)) for node in members]
        assert max(tellings) <= minutes + 1
        told = told_about(stranger, mistake.words)
        assert set(told) == {node.address for node in members}
        assert max(told.count(who) for who in told) <= minutes + 1
        assert mistake.mend in stranger.log_text()
        assert mistake.mend in a.log_text()
        assert stranger.log_text().count("\n") < LOG_LINES_PER_MINUTE * minutes / 4
        for node in (*members, stranger):
            said = await outputs(node)
            assert [s for secret in (CLUSTER_SECRET, OTHER_SECRET) for s in spellings(secret) if s in said] == []
        print(
            f"dials, refusals made, refusals read: {counts}; lines at members {tellings}, at the stranger {len(told)}"
        )
        assert await stranger.stop() == 0, stranger.log_text()[-6000:]
        mended = {"CLUSTER_TRANSPORT": transport}
        d = await group.start_ready("d", "simulated:of-d", port=stranger.port, seeds=seeds, environment=mended)
        took = await wait_view([*members, d], set("abcd"), RETRY_S)
        with trio.fail_after(RETRY_S):
            while await status(a, "of-d") != 200:
                await trio.sleep(0.2)
        print(f"with what was wrong mended in every view {took:.1f} s after it was ready")


def forged(keyring: Keyring, kind: FrameKind, numbers: range, cluster: str = "default") -> list[bytes]:
    """Datagrams or requests as a node with this keyring would sign them."""
    hello = encode_hello(HELLO_MAGIC, cluster, keyring.ids()) if kind is FrameKind.REQUEST else b""
    return [hello + seal(keyring, kind, b"stranger", number, bytes(200), binding=hello) for number in numbers]


async def post(node: Node, kind: str, messages: list[bytes]) -> set[int]:
    """Send membership messages to a node's port; the statuses that came."""
    async with plain_client(60, base_url=node.url) as client:
        sent = [await client.post("/cluster/swim", content=m, headers={"x-sai-swim": kind}) for m in messages]
        return {reply.status_code for reply in sent}


async def arrived(node: Node, wanted: int) -> None:
    """Wait until a node has counted so many messages as made with another key or for another cluster."""
    with trio.fail_after(SETTLE_S):
        while await counted(node, "dropped_key", "dropped_cluster") < wanted:
            await trio.sleep(0.1)


@pytest.mark.parametrize("keys", [(membership_key(OTHER_SECRET),), ()], ids=["another secret", "no secret"])
@pytest.mark.parametrize("transport", ["tcp", "udp"])
@again_if_still
async def test_each_packet_of_a_stranger_is_counted_and_few_are_logged(keys: tuple[bytes, ...], transport: str) -> None:
    async with fleet() as group:
        members = await three(group, transport)
        a, keyring, sent = members[0], Keyring("default", keys), 0
        lines, began = a.log_text().count("\n"), trio.current_time()
        async with unchanged(*members):
            for batch in range(BATCHES):
                numbers = range(batch * BATCH, (batch + 1) * BATCH)
                datagrams = forged(keyring, FrameKind.DATAGRAM, numbers)
                if transport == "udp":
                    await inject(Relay(a.port, a.port), datagrams, per_s=1000, source=STRANGER)
                else:
                    assert await post(a, "datagram", datagrams) == {204}
                # A refusal names what differs; that the names are others each time must not make the log longer.
                named = forged(Keyring(f"c{batch}", keys), FrameKind.REQUEST, numbers, cluster=f"c{batch}")
                assert await post(a, "exchange", [*forged(keyring, FrameKind.REQUEST, numbers), *named]) == {200}
                sent += 3 * BATCH
                await arrived(a, sent)
                assert await status(a, "of-b") == 200
        assert await counted(a, "dropped_key", "dropped_cluster") == sent
        assert await counted(a, "dropped_rate", "dropped_malformed", "dropped_replay", "dropped_mac") == 0
        new = a.log_text().count("\n") - lines
        windows = 2 + int((trio.current_time() - began) / WINDOW_S)
        print(f"{sent} packets counted, {new} lines logged in {windows} windows at most")
        assert new <= windows * LINES_PER_WINDOW


async def test_a_node_without_a_secret_is_refused_at_its_start_and_a_box_without_one_is_named_by_who_dials_it() -> None:
    async with fleet() as group:
        box = await group.start_ready("box", "simulated:of-box", seeds="", environment={"CLUSTER_SECRET": ""})
        member = group.start("a", "simulated:of-a", seeds=box.address)
        await member.wait_ready()
        assert await status(member, "of-a") == await status(box, "of-box") == 200
        assert set(await view(member)) == {"a"}
        said = f"{box.address}: it takes no membership"
        with trio.fail_after(SETTLE_S):
            while said not in member.log_text():
                await trio.sleep(0.1)
        assert "CLUSTER_SECRET" in next(line for line in member.log_text().splitlines() if said in line)
        stranger = group.start("d", "simulated:of-d", seeds=member.address, environment={"CLUSTER_SECRET": ""})
        with trio.fail_after(SETTLE_S):
            assert await trio.to_thread.run_sync(stranger.process.wait) == 2
        assert "CLUSTER_SEED is set but CLUSTER_SECRET is not" in stranger.log_text()
        assert len(stranger.log_text().splitlines()) == 1

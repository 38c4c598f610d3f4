"""The client of one node against the server of another, over real sockets."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
import trio
from loopback import KEYS, Served, generate, http_server, not_found, served

from saiserve.engines.engine import HopError
from saiserve.engines.messages import (
    Accepted,
    Count,
    Counted,
    Embed,
    Embedded,
    EngineReply,
    Finished,
    Generate,
    Progress,
    Prompt,
    RefusalReason,
    Refused,
    Tokens,
)
from saiserve.engines.simulated import Fault, FaultKind, SimulatedEngine, SimulatedSettings
from saiserve.peers import reply
from saiserve.peers.client import Peer, PeerClient
from saiserve.peers.connections import Connections
from saiserve.peers.messages import COUNT, GENERATE, PeerCount
from saiserve.peers.wire import HEADER_NAME, PeerKeys, RequestSigner
from swimcluster.address import Address
from tests.fakes.patience import WAIT_S

FAST = SimulatedSettings(decode_rate=5_000.0, prefill_rate=1e6)
SLOW = SimulatedSettings(decode_rate=50.0, lanes=1)


async def ask(node: Served, request: Generate) -> list[EngineReply]:
    async with node.client.engine("b", "simulated", key_name="someone").generate(request) as messages:
        return [message async for message in messages]


async def collect(client: PeerClient, got: list[EngineReply], on_tokens: Callable[[], None] = lambda: None) -> None:
    async with client.engine("b", "simulated").generate(generate()) as messages:
        async for message in messages:
            got.append(message)
            if isinstance(message, Tokens):
                on_tokens()


async def ask_directly(request: Generate) -> list[EngineReply]:
    async with SimulatedEngine(FAST).generate(request) as messages:
        return [message async for message in messages]


async def test_an_answer_through_another_node_is_the_same_message_for_message() -> None:
    async with served(FAST) as node:
        over_there, here = await ask(node, generate()), await ask_directly(generate())
        assert isinstance(over_there.pop(0), Progress)
        assert [type(m) for m in over_there] == [type(m) for m in here]
        assert [m for m in over_there if isinstance(m, Tokens)] == [m for m in here if isinstance(m, Tokens)]
        assert isinstance(over_there[0], Accepted)
        assert isinstance(over_there[-1], Finished)


async def test_whole_answers_keep_their_connection_for_the_next() -> None:
    async with served(FAST) as node:
        for number in range(5):
            await ask(node, generate(id=f"r{number}"))
        assert (node.connections.open, node.connections.idle) == (0, 1)


async def test_many_at_once_are_all_answered() -> None:
    async with served(SimulatedSettings(decode_rate=2_000.0, lanes=16)) as node:
        ends: list[EngineReply] = []

        async def one(number: int) -> None:
            ends.append((await ask(node, generate(f"Question {number}", id=f"r{number}")))[-1])

        async with trio.open_nursery() as nursery:
            for number in range(24):
                nursery.start_soon(one, number)
        assert [type(end) for end in ends] == [Finished] * 24
        assert node.connections.open == 0
        with trio.fail_after(WAIT_S):
            while node.port.active:
                await trio.sleep(0.01)


async def test_counting_and_vectors_come_through() -> None:
    async with served(FAST) as node:
        engine = node.client.engine("b", "simulated")
        counted = await engine.count(Count("c", "simulated", Prompt(text="eight by"), want_tokens=True))
        assert isinstance(counted, Counted)
        assert counted.tokens == 2
        many = tuple(f"text {number}" for number in range(20_000))
        embedded = await engine.embed(Embed("e", "simulated", many))
        assert isinstance(embedded, Embedded)
        assert len(embedded.vectors) == 20_000
        missing = await node.client.engine("b", "other").count(Count("c", "other", Prompt(text="x")))
        assert isinstance(missing, Refused)
        assert missing.reason is RefusalReason.NO_MODEL


async def test_vectors_that_take_long_are_heard_of_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply, "SIGN_S", 0.05)
    words = tuple("one two three four five six seven eight" for _ in range(20))
    heard = 0
    told = trio.Event()

    def hear() -> None:
        nonlocal heard
        heard += 1
        if heard == 2:
            told.set()

    async with served(SimulatedSettings(prefill_rate=1e6)) as node:
        make = node.engine.embed

        async def until_heard_twice(request: Embed, hear: Callable[[], None]) -> Embedded | Refused:
            while not told.is_set():
                hear()
                await trio.sleep(0.01)
            return await make(request, hear)

        engine = node.client.engine("b", "simulated")
        with monkeypatch.context() as slow, trio.fail_after(WAIT_S):
            slow.setattr(node.engine, "embed", until_heard_twice)
            embedded = await engine.embed(Embed("e", "simulated", words), hear)
        assert isinstance(embedded, Embedded)
        assert embedded == await SimulatedEngine(FAST).embed(Embed("e", "simulated", words))
        assert heard >= 3, "two signs ahead of the answer"
        assert node.connections.idle == 1, "it was whole"
        monkeypatch.setattr(reply, "SIGN_S", WAIT_S)  # for as long as this process may stand still
        heard = 0
        await engine.embed(Embed("f", "simulated", words), hear)
        assert heard == 1, "nothing ahead of one that is made at once"


async def test_vectors_that_break_off_after_a_sign_are_a_broken_hop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply, "SIGN_S", 0.05)
    heard = trio.Event()

    async with served(SimulatedSettings(prefill_rate=1.0)) as node:

        async def breaking(_request: Embed, hear: Callable[[], None]) -> Embedded:
            hear()
            await heard.wait()
            raise HopError("the engine process ended", sent=True)

        monkeypatch.setattr(node.engine, "embed", breaking)
        with pytest.raises(HopError), trio.fail_after(WAIT_S):
            await node.client.engine("b", "simulated").embed(Embed("e", "simulated", ("one",)), heard.set)
    assert heard.is_set()


async def test_calls_by_name_are_answered_and_unknown_ones_are_not() -> None:
    async def facts(source: str, body: bytes) -> bytes:
        return source.encode() + b":" + body

    async with served(FAST, calls={"facts": facts}) as node:
        assert await node.client.call("b", "facts", b"v1") == b"a:v1"
        with pytest.raises(HopError, match="404"):
            await node.client.call("b", "nothing")


async def test_a_draining_node_and_an_absent_model_refuse() -> None:
    async with served(FAST, is_draining=lambda: True) as node:
        (refused,) = await ask(node, generate())
        assert isinstance(refused, Refused)
        assert refused.reason is RefusalReason.DRAINING
    async with served(FAST) as node:
        (refused,) = await ask(node, Generate("x", "other", Prompt(text="x"), generate().sampling))
        assert isinstance(refused, Refused)
        assert refused.reason is RefusalReason.NO_MODEL


@pytest.mark.parametrize("where", ["connecting", "queued", "prefill", "streaming"])
async def test_leaving_frees_the_lane_over_there(where: str) -> None:
    rates = {"prefill": {"prefill_rate": 0.1}, "queued": {"decode_rate": 0.1}}.get(where, {})  # for minutes
    settings = SimulatedSettings(lanes=1, **{"decode_rate": 50.0, "prefill_rate": 1e6, **rates})
    async with served(settings) as node:
        async with trio.open_nursery() as nursery:
            if where == "queued":
                nursery.start_soon(ask, node, generate("first", id="first"))
                while node.engine.load.busy == 0:
                    await trio.sleep(0.01)
            async with node.client.engine("b", "simulated").generate(generate(id="leaver")) as messages:
                if where != "connecting":
                    await leave_at(where, messages)
            with trio.fail_after(WAIT_S):
                while node.engine.load.queued or (node.engine.load.busy and where != "queued") or node.port.active > 1:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        assert where in ("streaming", "prefill") or all(g.id != "leaver" for g in node.engine.started)
        with trio.fail_after(WAIT_S):
            while node.port.active or node.engine.load.busy:
                await trio.sleep(0.01)
        made = node.engine.generated
        await trio.sleep(0.1)
        assert node.engine.generated == made


async def leave_at(where: str, messages: object) -> None:
    wanted = Tokens if where == "streaming" else Accepted
    async for message in messages:  # type: ignore[attr-defined]
        if isinstance(message, wanted):
            return


async def test_a_server_that_dies_in_mid_stream_is_a_cut_and_not_an_end() -> None:
    async with served(SLOW) as node:
        got: list[EngineReply] = []
        with pytest.raises(HopError) as caught:
            await collect(node.client, got, on_tokens=node.stop)
        assert caught.value.sent
        assert not isinstance(got[-1], Finished)


async def test_an_engine_that_breaks_off_over_there_is_a_cut_and_not_an_end() -> None:
    faults = (Fault(FaultKind.CUT, at_token=5),)
    async with served(SimulatedSettings(decode_rate=5_000.0, faults=faults)) as node:
        with pytest.raises(HopError, match="cut"):
            await ask(node, generate())


async def test_a_dead_address_is_a_failure_that_was_never_sent() -> None:
    async with served(FAST) as node:
        node.stop()
        client = PeerClient(
            RequestSigner(KEYS, "a", b"asking01"),
            Connections(connect_s=WAIT_S),
            lambda _: Peer("b", Address("127.0.0.1", 1), b"x" * 8),
        )
        with pytest.raises(HopError) as caught:
            async with client.engine("b", "simulated").generate(generate()):
                pass
        assert not caught.value.sent


async def test_a_kept_connection_the_server_closed_is_replaced_without_a_fault() -> None:
    async with served(FAST) as node:
        await ask(node, generate())
        (host,) = node.connections._hosts.values()
        wire = host.idle[0]
        wire.stream.socket.shutdown(trio.socket.SHUT_WR)
        await ask(node, generate(id="r2"))
        assert node.engine.started[-1].id == "r2"


@pytest.mark.parametrize(
    ("keys", "instance", "words"),
    [
        (PeerKeys(["another secret altogether"]), b"serving1", "does not hold"),
        (PeerKeys(["a cluster secret for tests"], "other"), b"serving1", "does not hold"),
        (KEYS, b"earlier1", "another process"),
    ],
)
async def test_requests_that_are_not_ours_are_refused_with_the_reason(
    keys: PeerKeys, instance: bytes, words: str
) -> None:
    async with served(FAST, keys=keys, instance=instance) as node:
        with pytest.raises(HopError, match=words):
            await ask(node, generate())
        assert node.port.refused == 1
        assert node.engine.started == []


async def raw(address: Address, path: str, headers: list[tuple[bytes, bytes]], body: bytes) -> tuple[int, bytes]:
    connections = Connections(connect_s=WAIT_S)
    async with connections.link(address) as link:
        head = await link.request("POST", path, headers, body)
        answer = await link.body(1 << 20)
    await connections.aclose()
    return head.status, answer


async def test_a_recorded_request_cannot_be_played_again_nor_altered() -> None:
    async with served(FAST) as node:
        body = msgspec.msgpack.encode(PeerCount(Count("c", "simulated", Prompt(text="x"))))
        signed = RequestSigner(KEYS, "a", b"asking02").sign("POST", COUNT, body, b"serving1")
        header = [(HEADER_NAME, signed.header)]
        assert (await raw(node.address, COUNT, header, body))[0] == 200
        assert (await raw(node.address, COUNT, header, body))[0] == 401
        assert (await raw(node.address, GENERATE, header, body))[0] == 401
        assert (await raw(node.address, COUNT, header, body + b"x"))[0] == 401
        assert (await raw(node.address, COUNT, [], body))[0] == 401


async def test_signed_nonsense_is_a_bad_request_and_harms_nothing() -> None:
    async with served(FAST) as node:
        for body in (b"", b"\xc1", b"\x91" * 5_000, b"{}"):
            signed = RequestSigner(KEYS, "a", bytes(8)).sign("POST", GENERATE, body, b"serving1")
            node.port._verifier = type(node.port._verifier)(KEYS, b"serving1")  # type: ignore[union-attr,misc]
            assert (await raw(node.address, GENERATE, [(HEADER_NAME, signed.header)], body))[0] == 400
        await ask(node, generate())


async def test_everything_else_is_the_applications() -> None:
    async with served(FAST) as node:
        assert (await raw(node.address, "/v1/models", [], b""))[1] == b"the application"
        assert (await raw(node.address, "/cluster/swim", [], b""))[0] == 404


async def test_a_reply_forged_on_the_way_is_refused_at_the_first_wrong_byte() -> None:
    async with served(FAST) as node, http_server(Tamper(node.port)) as (address, _):
        peer = Peer("b", address, b"serving1")
        client = PeerClient(RequestSigner(KEYS, "a", b"asking03"), Connections(connect_s=WAIT_S), lambda _: peer)
        got: list[EngineReply] = []
        with pytest.raises(HopError, match="authentic"):
            await collect(client, got)
        assert len(got) == Tamper.AT


class Tamper:
    """Flips one bit of the eighth piece of a reply."""

    AT = 7

    def __init__(self, app: object) -> None:
        self._app = app

    async def __call__(self, scope: dict[str, object], receive: object, send: object) -> None:
        pieces = 0

        async def flip(event: dict[str, object]) -> None:
            nonlocal pieces
            if event["type"] == "http.response.body" and event.get("body"):
                if pieces == self.AT:
                    body = bytearray(event["body"])  # type: ignore[call-overload]
                    body[10] ^= 1
                    event = {**event, "body": bytes(body)}
                pieces += 1
            await send(event)  # type: ignore[operator]

        if scope["type"] == "lifespan":
            await not_found(scope, receive, send)
        else:
            await self._app(scope, receive, flip)  # type: ignore[operator]

"""The answering side: cluster paths of the node's own port, handled ahead of the application (docs/peers.md).

An ASGI layer around the application. `/cluster/swim` carries membership, which signs its own messages; requests under
`/cluster/peer/` are served here or refused, never sent on to a third node.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol

import msgspec
import trio

from saiserve import limits
from saiserve.engines.engine import Engine, Heard, HopError
from saiserve.engines.messages import (
    Count,
    Embed,
    EngineReply,
    RefusalReason,
    Refused,
    is_terminal,
)
from saiserve.peers.asgi import (
    App,
    Receive,
    Scope,
    Send,
    answer_bytes,
    answer_text,
    cancel_when_gone,
    header,
    opening,
    read_body,
    source_of,
)
from saiserve.peers.messages import COUNT, EMBED, GENERATE, PREFIX, SWIM, PeerCount, PeerEmbed, PeerGenerate
from saiserve.peers.reply import SealedReply
from saiserve.peers.wire import HEADER_NAME, FrameSealer, PeerRequest, RequestVerifier, WireError
from swimcluster.address import Address
from swimcluster.nursery import open_plain_nursery

log = logging.getLogger(__name__)

PeerCall = Callable[[str, bytes], Awaitable[bytes]]
"""Takes (name of the asking node, body) and returns the one answer."""

_BODY_S = 30.0
"""Longest wait for the rest of a request's body."""
_SWIM_BODY_S = 5.0
_LOG_EVERY_S = 1.0

_encoder = msgspec.msgpack.Encoder()


class SwimPort(Protocol):
    """Where membership's bytes go; `SwimTransport` is one."""

    async def serve_http(self, kind: bytes, body: bytes, source: Address | None = None) -> bytes | None:
        """Take one POST of the host `source`; the reply's body, None to answer without one."""
        ...

    def body_bytes_max(self, kind: bytes) -> int:
        """Longest body of this kind taken."""
        ...


class PeerPort:
    """An ASGI application that answers cluster paths itself and hands everything else to `app`.

    Args:
        verifier: checks signatures; None on a node without a cluster secret, where every peer path is refused.
        engine: the local, guarded engine of a model id, None when it is not here.
        swim: the membership transport, None when membership has a transport of its own.
        is_draining: whether new work is refused.
        is_clustered: whether a verifier will come, once this node is a member.
        calls: further questions by name: `PeerClient.call(node, name)` reaches `calls[name]`.
    """

    def __init__(
        self,
        app: App,
        *,
        verifier: RequestVerifier | None,
        engine: Callable[[str], Engine | None],
        swim: SwimPort | None = None,
        is_draining: Callable[[], bool] = lambda: False,
        is_clustered: bool = False,
        calls: Mapping[str, PeerCall] | None = None,
    ) -> None:
        self._app = app
        self._verifier = verifier
        self._engine = engine
        self._swim = swim
        self._is_draining = is_draining
        self._is_clustered = is_clustered
        self._calls = dict(calls or {})
        self._warnings = _Warnings()
        self.active = 0
        """Peer requests being served."""
        self.active_swim = 0
        """Membership messages being taken."""
        self._long_swim = 0
        self.refused = 0
        """Requests that were not authentic, since the start."""

    def open(self, verifier: RequestVerifier) -> None:
        """Begin to answer peers: a process knows which life of its name it is once it is a member."""
        self._verifier = verifier

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One ASGI connection."""
        path = scope.get("path", "") if scope["type"] == "http" else ""
        if path == SWIM:
            await self._answer_swim(scope, receive, send)
        elif path.startswith(PREFIX):
            await self._answer_peer(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _answer_swim(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._swim is None or scope["method"] != "POST":
            await answer_text(send, 404, "membership does not come this way")
            return
        if self.active_swim >= limits.PEER_SWIM_MAX:
            await answer_text(send, 503, "too many membership messages")
            return
        kind = header(scope, b"x-sai-swim")
        self.active_swim += 1
        try:
            body = await self._read_swim(receive, self._swim.body_bytes_max(kind))
            if body is None:
                await answer_text(send, 413, "too long, too slow, or too many long ones at once")
                return
            reply = await self._swim.serve_http(kind, body, source_of(scope))
        finally:
            self.active_swim -= 1
        await answer_bytes(send, 204 if reply is None else 200, reply or b"")

    async def _read_swim(self, receive: Receive, bytes_max: int) -> bytes | None:
        """Read a message of somebody unknown; of long ones only a few are held at once."""
        is_long = False

        def admits(length: int) -> bool:
            nonlocal is_long
            if length > limits.PEER_SWIM_LONG_BYTES and not is_long:
                if self._long_swim >= limits.PEER_SWIM_LONG_MAX:
                    return False
                is_long = True
                self._long_swim += 1
            return length <= bytes_max

        try:
            return await read_body(receive, admits, _SWIM_BODY_S)
        finally:
            self._long_swim -= is_long

    async def _answer_peer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._verifier is None and self._is_clustered:
            await answer_text(send, 503, "this node is still joining its cluster")
            return
        if self._verifier is None or scope["method"] != "POST":
            await answer_text(send, 404, "this node talks to no peers: it has no CLUSTER_SECRET")
            return
        if self.active >= limits.PEER_REQUESTS_MAX:
            await answer_text(send, 503, "too many peer requests")
            return
        self.active += 1
        try:
            path = scope["path"]
            request = self._verifier.check("POST", path, header(scope, HEADER_NAME))
            body = await read_body(receive, lambda length: length <= limits.BODY_BYTES_MAX, _BODY_S)
            if body is None:
                await answer_text(send, 413, "the body is too long or did not come")
                return
            self._verifier.admit(request, body)
            async with open_plain_nursery() as nursery:
                nursery.start_soon(cancel_when_gone, receive, nursery.cancel_scope)
                await self._serve(path, request, body, send)
                nursery.cancel_scope.cancel()
        except WireError as error:
            self.refused += 1
            source = source_of(scope)
            self._warnings.warn(f"refused a peer request of {source.host if source else 'an unknown address'}: {error}")
            await answer_text(send, 401, str(error))
        finally:
            self.active -= 1

    async def _serve(self, path: str, request: PeerRequest, body: bytes, send: Send) -> None:
        sealer = FrameSealer(request.frame_key, request.mac)
        reply = SealedReply(sealer, send)
        try:
            if path == GENERATE:
                await self._generate(msgspec.msgpack.decode(body, type=PeerGenerate), sealer, send)
                return
            if path == COUNT:
                answer = await self._count(msgspec.msgpack.decode(body, type=PeerCount))
            elif path == EMBED:
                asked = msgspec.msgpack.decode(body, type=PeerEmbed)
                answer = await reply.while_heard(partial(self._embed, asked))
            else:
                call = self._calls.get(path.removeprefix(PREFIX))
                if call is None:
                    await answer_text(send, 404, "no such call")
                    return
                answer = await call(request.source, body)
        except (msgspec.DecodeError, RecursionError) as error:
            await answer_text(send, 400, f"not a message of this protocol: {error}")
            return
        except HopError as error:
            await reply.break_off(str(error))
            return
        await reply.end(answer)

    async def _count(self, asked: PeerCount) -> bytes:
        engine = self._engine(asked.count.model)
        return _encoder.encode(_absent(asked.count) if engine is None else await engine.count(asked.count))

    async def _embed(self, asked: PeerEmbed, heard: Heard) -> bytes:
        engine = self._engine(asked.embed.model)
        return _encoder.encode(_absent(asked.embed) if engine is None else await engine.embed(asked.embed, heard))

    async def _generate(self, asked: PeerGenerate, sealer: FrameSealer, send: Send) -> None:
        request = asked.generate
        engine = self._engine(request.model)
        if self._is_draining() or engine is None:
            reason = RefusalReason.NO_MODEL if engine is None else RefusalReason.DRAINING
            detail = "this node is about to stop" if engine is not None else f"{request.model} is not here"
            await answer_bytes(send, 200, sealer.last(_encoder.encode(Refused(request.id, reason, detail))))
            return
        await send(opening(200, [(b"content-type", b"application/octet-stream")]))
        try:
            async with engine.generate(request) as messages:
                async for message in messages:
                    await self._pass_on(message, sealer, send)
                    if is_terminal(message):
                        return
        except (HopError, WireError) as error:
            log.info("attempt %s broke here: %s", request.id, error)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pass_on(self, message: EngineReply, sealer: FrameSealer, send: Send) -> None:
        payload = _encoder.encode(message)
        is_last = is_terminal(message)
        frame = sealer.last(payload) if is_last else sealer.data(payload)
        await send({"type": "http.response.body", "body": frame, "more_body": not is_last})


def _absent(asked: Count | Embed) -> Refused:
    return Refused(asked.id, RefusalReason.NO_MODEL, f"{asked.model} is not here")


class _Warnings:
    """One line a second at most, and how many were left out."""

    def __init__(self) -> None:
        self._next = 0.0
        self._left_out = 0

    def warn(self, text: str) -> None:
        now = trio.current_time()
        if now < self._next:
            self._left_out += 1
            return
        more = f" ({self._left_out} more)" if self._left_out else ""
        self._next, self._left_out = now + _LOG_EVERY_S, 0
        log.warning("%s%s", text, more)

"""The asking side: another node's engine as an `Engine`, and plain calls. Every fault of the way is a `HopError`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from saiserve import limits
from saiserve.engines.engine import Heard, HopError, unheard
from saiserve.engines.messages import (
    Count,
    Counted,
    Embed,
    Embedded,
    EngineAnswer,
    EngineReply,
    Generate,
    Load,
    Refused,
)
from saiserve.peers.connections import Connections, Link, LinkError
from saiserve.peers.messages import COUNT, EMBED, GENERATE, PREFIX, PeerCount, PeerEmbed, PeerGenerate
from saiserve.peers.wire import HEADER_NAME, FrameOpener, RequestSigner, WireError
from swimcluster.address import Address

_ERROR_BYTES_MAX = 4_096

_encoder = msgspec.msgpack.Encoder()
_replies: msgspec.msgpack.Decoder[EngineReply] = msgspec.msgpack.Decoder(EngineReply)
_answers: msgspec.msgpack.Decoder[EngineAnswer] = msgspec.msgpack.Decoder(EngineAnswer)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a member is now, and which life of it."""

    name: str
    address: Address
    instance: bytes


Resolve = Callable[[str], Peer | None]
"""A member's name to the peer; None when it is not known or has gone."""


class PeerClient:
    """Asks other nodes. One per node.

    Args:
        resolve: the member behind a name, from the membership as it is now.
    """

    def __init__(self, signer: RequestSigner, connections: Connections, resolve: Resolve) -> None:
        self._signer = signer
        self._connections = connections
        self._resolve = resolve

    def engine(self, node: str, model: str, *, key_name: str = "") -> PeerEngine:
        """The engine of a model at a member, for one client's request."""
        return PeerEngine(self, node, model, key_name=key_name)

    async def call(self, node: str, name: str, body: bytes = b"", heard: Heard = unheard) -> bytes:
        """Ask a member for one answer to the call `name` (say, `facts`); see `PeerPort`. Cancel to give up.

        `heard` is called for each frame, those that say nothing but that the answer is being made too.

        Raises:
            HopError: no authentic answer came.
        """
        answer = bytearray()
        async with self.reply(node, PREFIX + name, body) as payloads:
            async for payload in payloads:
                heard()
                answer += payload
                if len(answer) > limits.BODY_BYTES_MAX:
                    raise HopError(f"the answer of {node} is too long", sent=True)
        return bytes(answer)

    @asynccontextmanager
    async def reply(self, node: str, path: str, body: bytes) -> AsyncIterator[AsyncIterator[bytes]]:
        """Authentic payloads of a reply. Entering connects; the request leaves with the first step of the iterator.

        The last one confirms that none is missing. Leaving early closes the connection, by which the other node stops.

        Raises:
            HopError: the way to the node broke, or its reply is not authentic.
        """
        peer = self._resolve(node)
        if peer is None:
            raise HopError(f"{node} is not a member now", sent=False)
        try:
            async with (
                self._connections.link(peer.address) as link,
                aclosing(self._payloads(link, peer, path, body)) as payloads,
            ):
                yield payloads
        except LinkError as error:
            raise HopError(str(error), sent=error.sent) from error

    async def _payloads(self, link: Link, peer: Peer, path: str, body: bytes) -> AsyncGenerator[bytes, None]:
        signed = self._signer.sign("POST", path, body, peer.instance)
        head = await link.request("POST", path, [(HEADER_NAME, signed.header)], body)
        if head.status != 200:
            reason = (await link.body(_ERROR_BYTES_MAX)).decode("utf-8", "replace").strip()
            raise HopError(f"{peer.name} refused the request: {head.status} {reason}", sent=True)
        opener = FrameOpener(signed.frame_key, signed.mac)
        while True:
            chunk = await link.chunk()
            try:
                payloads = opener.feed(chunk or b"")
                if chunk is None:
                    opener.end()
            except WireError as error:
                raise HopError(f"the reply of {peer.name} is not authentic: {error}", sent=True) from error
            is_complete = opener.is_complete
            if is_complete:
                await link.drain()
            for payload in payloads:
                yield payload
            if is_complete:
                return


class PeerEngine:
    """A model at another node, as an `Engine`. Cheap; made for each request."""

    def __init__(self, client: PeerClient, node: str, model: str, *, key_name: str = "") -> None:
        self._client = client
        self._node = node
        self._model = model
        self._key_name = key_name
        self._load = Load()

    @property
    def model(self) -> str:
        """Catalog id of the model."""
        return self._model

    @property
    def load(self) -> Load:
        """The load in the last reply seen here."""
        return self._load

    def generate(self, request: Generate) -> AbstractAsyncContextManager[AsyncIterator[EngineReply]]:
        """As `Engine.generate`. Leaving the context closes the connection, and the other node stops."""
        return self._generate(request)

    @asynccontextmanager
    async def _generate(self, request: Generate) -> AsyncIterator[AsyncIterator[EngineReply]]:
        body = _encoder.encode(PeerGenerate(request, self._key_name))
        async with (
            self._client.reply(self._node, GENERATE, body) as payloads,
            aclosing(self._messages(payloads)) as messages,
        ):
            yield messages

    async def _messages(self, payloads: AsyncIterator[bytes]) -> AsyncGenerator[EngineReply, None]:
        async for payload in payloads:
            message = _decode(_replies, payload, self._node)
            load = getattr(message, "load", None)
            if isinstance(load, Load):
                self._load = load
            yield message

    async def count(self, request: Count) -> Counted | Refused:
        """As `Engine.count`."""
        answer = await self._ask(COUNT, PeerCount(request, self._key_name))
        if isinstance(answer, Embedded):
            raise HopError(f"{self._node} answered another question", sent=True)
        return answer

    async def embed(self, request: Embed, heard: Heard = unheard) -> Embedded | Refused:
        """As `Engine.embed`."""
        answer = await self._ask(EMBED, PeerEmbed(request, self._key_name), heard)
        if isinstance(answer, Counted):
            raise HopError(f"{self._node} answered another question", sent=True)
        return answer

    async def _ask(self, path: str, question: PeerCount | PeerEmbed, heard: Heard = unheard) -> EngineAnswer:
        answer = await self._client.call(self._node, path.removeprefix(PREFIX), _encoder.encode(question), heard)
        return _decode(_answers, answer, self._node)


def _decode(decoder: msgspec.msgpack.Decoder[_T], payload: bytes, node: str) -> _T:
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise HopError(f"{node} sent a message of another protocol: {error}", sent=True) from error

"""One upstream target and model as an engine for one request: sends it, reads the answer, lets it go.

Nothing is shown to the client before the target has begun to answer: what it refuses, and what breaks before its first
word, leaves another candidate free to answer. A target of the client's dialect gets the client's own body, and its bytes
go to the client as they are; the events read from them only count. Any other goes through the canonical form both ways.
"""

from __future__ import annotations

import base64
import logging
import secrets
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httpx2
import msgspec

from saiserve import limits
from saiserve.chat.request import Dialect, GenerationRequest
from saiserve.engines.engine import Heard, HopError, unheard
from saiserve.engines.messages import (
    Count,
    Counted,
    Embed,
    Embedded,
    Failed,
    FailureKind,
    Generate,
    Load,
    RefusalReason,
    Refused,
)
from saiserve.engines.spoken import SourceReply
from saiserve.engines.upstream.anthropic_decoder import MessageDecoder
from saiserve.engines.upstream.anthropic_request import messages_body, prompt_fields
from saiserve.engines.upstream.faults import UpstreamFault, refusal, refused_by
from saiserve.engines.upstream.limits_of import estimated_prompt_tokens
from saiserve.engines.upstream.names import ToolNames
from saiserve.engines.upstream.openai_completion import CompletionDecoder, completion_body
from saiserve.engines.upstream.openai_decoder import ChatDecoder, decode
from saiserve.engines.upstream.openai_request import chat_body
from saiserve.engines.upstream.reading import Decoder, Reading, pieces_of, whole_body
from saiserve.engines.upstream.tally import Outcome
from saiserve.engines.upstream.targets import Target, TargetDialect, TargetModel
from saiserve.errors import ApiError

if TYPE_CHECKING:
    from saiserve.engines.upstream.pool import TargetState

log = logging.getLogger(__name__)

ANTHROPIC_VERSION: Final = "2023-06-01"
OWN_DIALECTS: Final = {
    TargetDialect.OPENAI: (Dialect.CHAT, Dialect.COMPLETIONS),
    TargetDialect.ANTHROPIC: (Dialect.MESSAGES,),
}
"""Whose bodies and answers a target and a client have in common."""
NO_SUCH_ROUTE: Final = (404, 405, 501)
"""How servers answer on a path they do not have."""


@dataclass(slots=True)
class UpstreamEngine:
    """See `saiserve.engines.engine.Engine`; `generate` also yields `Spoken`."""

    state: TargetState
    target_model: TargetModel
    request: GenerationRequest | None = None
    """As the client asked; None for an engine that only embeds."""
    may_relay: bool = True
    """Whether bytes may go to the client as they are: not while an answer is held back."""
    _choice: int = 0

    @property
    def model(self) -> str:
        """The model's id."""
        return self.target_model.id

    @property
    def load(self) -> Load:
        """Requests of this node at the target."""
        return Load(lanes=self.target.lanes, busy=self.state.running)

    @property
    def target(self) -> Target:
        """Where it is."""
        return self.state.target

    @property
    def relays(self) -> bool:
        """Whether the client gets the target's own bytes."""
        request = self.request
        return (
            self.may_relay
            and request is not None
            and request.choices == 1
            and request.dialect in OWN_DIALECTS[self.target.dialect]
            and bool(request.raw)
            and not request.is_part
        )

    @property
    def _is_plain(self) -> bool:
        """Whether it is a plain completion at a target that may have the route."""
        request = self.request
        return (
            self.target.dialect is TargetDialect.OPENAI
            and request is not None
            and request.dialect is Dialect.COMPLETIONS
            and bool(request.raw)
        )

    def generate(self, request: Generate) -> AbstractAsyncContextManager[AsyncIterator[SourceReply]]:
        """Start one answer; leaving the context closes the connection, by which targets call work off."""
        return self._generate(request)

    @asynccontextmanager
    async def _generate(self, generate: Generate) -> AsyncIterator[AsyncIterator[SourceReply]]:
        async with aclosing(self._guarded(generate)) as replies:
            yield replies

    async def _guarded(self, generate: Generate) -> AsyncGenerator[SourceReply, None]:
        if self.state.running >= self.target.lanes:
            detail = f"{self.target.lanes} requests are at the upstream {self.target.name!r} already"
            yield Refused(generate.id, RefusalReason.BUSY, detail, self.load, retry_after_s=1.0)
            return
        assert self.request is not None
        self._choice = int(generate.id.rsplit(".", 2)[1]) if self.request.choices > 1 else 0
        try:
            body = self._body()
        except ApiError as error:
            yield Refused(generate.id, RefusalReason.UPSTREAM_SAYS_NO, error.message)
            return
        clock = self.state.clock
        with self.state.visit() as visit:
            async with aclosing(self._converse(generate, body)) as replies:
                async for reply in replies:
                    visit.heard(clock(), reply)
                    yield reply
                    visit.quiet_since = clock()

    async def _converse(self, generate: Generate, body: bytes) -> AsyncGenerator[SourceReply, None]:
        assert self.request is not None
        reading = Reading(generate.id, self.request, self.target.name, self._decoder(), relays=self.relays)
        try:
            async with self.state.client().stream(
                "POST", self._url(), content=body, headers=self._headers()
            ) as response:
                if response.status_code != 200:
                    yield await self._refused(generate.id, response)
                    return
                async with aclosing(reading.replies(response, self.load)) as replies:
                    async for reply in replies:
                        yield reply
        except (httpx2.TransportError, httpx2.DecodingError) as error:
            yield self._broken(generate.id, error, has_begun=reading.has_begun)

    def _body(self) -> bytes:
        assert self.request is not None
        if self._is_plain:
            return completion_body(self.request, self.target_model, self._choice)
        if self.target.dialect is TargetDialect.OPENAI:
            return chat_body(self.request, self.target, self.target_model, self._choice)
        return messages_body(self.request, self.target_model)

    def _decoder(self) -> Decoder:
        assert self.request is not None
        kinds: dict[TargetDialect, type[Decoder]] = {
            TargetDialect.OPENAI: CompletionDecoder if self._is_plain else ChatDecoder,
            TargetDialect.ANTHROPIC: MessageDecoder,
        }
        kind = kinds[self.target.dialect]
        return kind(self.target.name, self._choice, ToolNames(self.request.tools), _new_call_id)

    def _url(self, path: str = "") -> str:
        base = self.target.url
        if self.target.dialect is TargetDialect.OPENAI:
            return base + (path or ("/completions" if self._is_plain else "/chat/completions"))
        return base.removesuffix("/v1") + (path or "/v1/messages")

    def _headers(self) -> dict[str, str]:
        """Nothing of the client's but what says how its body is meant: its credentials stay here."""
        key = self.target.key
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if self.target.dialect is TargetDialect.OPENAI:
            return headers | ({"authorization": f"Bearer {key}"} if key else {})
        headers["anthropic-version"] = ANTHROPIC_VERSION
        if self.request is not None and self.request.dialect is Dialect.MESSAGES:
            headers |= dict(self.request.headers)
        return headers | ({"x-api-key": key} if key else {})

    async def _refused(self, request_id: str, response: httpx2.Response) -> Refused:
        body = bytearray()
        async with aclosing(pieces_of(response)) as pieces:
            async for chunk in pieces:
                body += chunk[: limits.UPSTREAM_ERROR_BYTES_MAX - len(body)]
                if len(body) >= limits.UPSTREAM_ERROR_BYTES_MAX:
                    break
        log.info("upstream %s answered %d", self.target.name, response.status_code)
        if self._is_plain and response.status_code in NO_SUCH_ROUTE:
            detail = f"the upstream {self.target.name!r} has no plain completions of it: use /v1/chat/completions"
            return Refused(request_id, RefusalReason.UPSTREAM_LACKS, detail)
        return refusal(request_id, self.target.name, response.status_code, response.headers, bytes(body))

    def _broken(self, request_id: str, error: Exception, *, has_begun: bool) -> SourceReply:
        """The connection could not be made, or broke."""
        name = type(error).__name__
        log.warning("upstream %s: %s: %s", self.target.name, name, error)
        if has_begun:
            return Failed(request_id, FailureKind.INTERNAL, f"the upstream {self.target.name!r} broke off ({name})")
        return Refused(
            request_id, RefusalReason.UPSTREAM_FAULT, f"the upstream {self.target.name!r} cannot be reached ({name})"
        )

    async def count(self, request: Count) -> Counted | Refused:
        """Count a prompt: exactly where the target has a way to ask, by estimate elsewhere."""
        assert self.request is not None
        estimate = Counted(request.id, estimated_prompt_tokens(self.request))
        if self.target.dialect is not TargetDialect.ANTHROPIC or self.request.messages is None:
            return estimate
        raw = self.request.dialect is Dialect.MESSAGES and self.request.raw
        fields = (
            messages_body(self.request, self.target_model) if raw else prompt_fields(self.request, self.target_model)
        )
        body = fields if isinstance(fields, bytes) else msgspec.json.encode(fields)
        answer = await self._ask(self._url("/v1/messages/count_tokens"), body)
        counted = answer.get("input_tokens") if isinstance(answer, dict) else None
        return Counted(request.id, counted) if isinstance(counted, int) and counted >= 0 else estimate

    async def embed(self, request: Embed, heard: Heard = unheard) -> Embedded | Refused:
        """Compute vectors at an OpenAI-shaped target, which says nothing before it has them all."""
        del heard
        if self.target.dialect is not TargetDialect.OPENAI:
            return Refused(request.id, RefusalReason.UPSTREAM_SAYS_NO, f"{request.model} makes no embeddings")
        body = {"model": self.target_model.name, "input": list(request.inputs), "encoding_format": "float"}
        answer = await self._ask(self._url("/embeddings"), msgspec.json.encode(body))
        if isinstance(answer, Refused):
            return msgspec.structs.replace(answer, id=request.id)
        try:
            vectors = embedding_vectors(answer, len(request.inputs))
        except (KeyError, TypeError, ValueError, struct.error):
            return Refused(
                request.id, RefusalReason.UPSTREAM_FAULT, f"the upstream {self.target.name!r} sent no embeddings"
            )
        usage = answer.get("usage")
        tokens = usage.get("prompt_tokens", 0) if isinstance(usage, dict) else 0
        return Embedded(request.id, vectors, tokens if isinstance(tokens, int) else 0)

    async def _ask(self, url: str, body: bytes) -> Any:
        """One question, one JSON answer; a Refused when it is answered with a fault.

        Raises:
            HopError: the way broke.
        """
        clock = self.state.clock
        with self.state.visit() as visit:
            try:
                async with self.state.client().stream("POST", url, content=body, headers=self._headers()) as response:
                    if response.status_code == 200:
                        answer = decode(await whole_body(response), self.target.name)
                        visit.answered(clock())
                        return answer
                    refused = await self._refused("", response)
            except (httpx2.TransportError, httpx2.DecodingError) as error:
                visit.ended(Outcome.FAILED)
                raise HopError(f"upstream {self.target.name}: {error}", sent=True) from error
            except UpstreamFault as fault:
                refused = refused_by(fault, "")
            visit.heard(clock(), refused)
            return refused


def embedding_vectors(answer: Any, count: int) -> tuple[bytes, ...]:
    """Little-endian float32 vectors in the order of the inputs.

    Raises:
        KeyError, TypeError, ValueError, struct.error: the answer is of another shape.
    """
    items = sorted(answer["data"], key=lambda item: item["index"])
    if len(items) != count:
        raise ValueError("another number of vectors than of inputs")
    vectors = []
    for item in items:
        vector = item["embedding"]
        vectors.append(
            base64.b64decode(vector) if isinstance(vector, str) else struct.pack(f"<{len(vector)}f", *vector)
        )
    return tuple(vectors)


def _new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"

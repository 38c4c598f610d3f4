"""What the dialects need of the node behind them, and nothing more.

The dispatcher is one implementation, the scripted service of the tests another. A service knows nothing of HTTP; it
raises `ApiError` and the dialects find the words.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from saiserve.chat.events import AnswerEvent
from saiserve.chat.request import GenerationRequest
from saiserve.chat.template_ways import TemplateWays
from saiserve.engines.messages import Counted, Embedded

NO_CAPABILITIES: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One model as clients see it, wherever in the cluster it lives."""

    id: str
    """Canonical id; may hold slashes."""
    aliases: tuple[str, ...] = ()
    created: int = 0
    """Unix seconds."""
    context_tokens: int = 0
    """Longest prompt and answer together; 0 = unknown."""
    capabilities: frozenset[str] = NO_CAPABILITIES
    """Of: chat, tools, vision, embeddings, rerank, reasoning."""
    state: str = "ready"
    """ready, loading, loadable or unavailable; the best of all places that hold it."""
    display_name: str = ""
    owned_by: str = "saiserve"
    size_bytes: int = 0
    parameters: int = 0
    vocabulary: int = 0
    embedding_length: int = 0
    lanes: int = 0
    """Streams the cluster serves at once at full speed; 0 = unknown."""
    tool_format: str = ""
    """How its template writes calls: a name in `saiserve.chat.tool_formats.FORMATS`. Empty: found in the template, and
    where that knows no tools (or nobody knows it) the model is taught a generic format in text."""
    reasoning_open: str = "<think>"
    reasoning_close: str = "</think>"
    """What surrounds reasoning in its output; only looked for when `reasoning` is among the capabilities."""
    reasoning_begun: bool = False
    """Whether the template itself opens the reasoning when thinking is on, so that the output begins inside it."""
    chat_template: str = ""
    """The template's source, for `/props`; empty when it is not known here."""
    template_ways: TemplateWays | None = None
    """What the node that has the template tells of it; only looked at when `chat_template` is not known here."""
    parent: str = ""
    """The model that this one is an adapter of; empty when it is none."""
    template_caps: Mapping[str, bool] = field(default_factory=dict)
    """What it can take, by llama-server's names; empty when it is not known here."""
    is_fitted_later: bool = False
    """A route's or an upstream's name: which model's ways a request is fitted to shows when a place is chosen."""
    is_upstream: bool = False
    """Only targets outside the cluster have it: what they do themselves is left to them."""
    path: str = ""
    """The name of its file, where this node has it."""
    progress: dict[str, Any] | None = None
    """How far its load on this node is: stage, fraction, bytes_done, bytes_total, elapsed_s, remaining_s."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One request being answered.

    `events` follow the order of `saiserve.chat.events`; text is raw model output (tool calls and reasoning of local
    models not yet parsed) with stop strings already applied. `route` says in a few printable ASCII characters where
    the request runs and why; it becomes the header `x-sai-route`.
    """

    events: AsyncIterator[AnswerEvent]
    route: str = ""


class Answering(Protocol):
    """Whatever answers a request."""

    def answer(self, request: GenerationRequest) -> AbstractAsyncContextManager[Answer]:
        """Start an answer; entering waits until some engine has accepted it.

        Leaving the context, at any time, stops the generation wherever it runs.

        Raises:
            ApiError: on entry, when no engine takes it; nothing was generated. Later faults are `AnswerFailed` events.
        """
        ...


class Service(Answering, Protocol):
    """A node, as the dialects see it. All methods may be called from several tasks at once."""

    async def count(
        self,
        request: GenerationRequest,
        *,
        want_text: bool = False,
        want_tokens: bool = False,
        must_fit: bool = False,
    ) -> Counted:
        """Count the prompt as it would be rendered, tools included; optionally with its text or its tokens.

        For a raw text prompt, `template_options` may hold the booleans `add_special` and `parse_special`. With `must_fit`
        a prompt that leaves no room for an answer is refused, early.

        Raises:
            ApiError: when no engine or vocabulary for the model is at hand; 400 for what does not fit.
        """
        ...

    async def embed(
        self,
        model: str,
        inputs: tuple[str | tuple[int, ...], ...],
        *,
        request_id: str,
        key_name: str = "",
        pooling: str = "",
    ) -> Embedded:
        """Compute one vector per input, not normalised, in the order given; see `engines.messages.Embed.pooling`.

        Raises:
            ApiError: when no engine takes it.
        """
        ...

    def models(self) -> tuple[ModelCard, ...]:
        """Return every model some member holds or can load, in a stable order."""
        ...

    def cluster_state(self) -> dict[str, Any]:
        """Return this node's view of the cluster as plain JSON data: `members`, each with address, models and load."""
        ...

    def unready(self) -> str:
        """Return why this node takes no requests (loading, draining) in a few words; empty when it does."""
        ...

"""One request in the form every dialect decodes into and routing, dispatch and encoders read.

Nothing here knows HTTP. `raw` keeps the client's own JSON, so that an upstream of the same dialect gets it unchanged.
"""

from __future__ import annotations

import base64
import enum
from dataclasses import dataclass, field
from typing import Any

from saiserve.engines.messages import Constraint, Sampling


class Dialect(enum.StrEnum):
    """The public API a client speaks."""

    CHAT = "openai_chat"
    COMPLETIONS = "openai_completions"
    RESPONSES = "openai_responses"
    MESSAGES = "anthropic_messages"


class Role(enum.StrEnum):
    """Who speaks. `developer` is decoded as SYSTEM."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text, as the client wrote it; control tokens in it are text."""

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image by bytes; by URL only until it was fetched (`saiserve.api.remote_images.with_images`)."""

    media_type: str
    data: bytes = b""
    url: str = ""
    at: str = ""
    """Where in the client's body a URL stands."""

    @property
    def data_uri(self) -> str:
        """The bytes as a URL (RFC 2397)."""
        return f"data:{self.media_type};base64,{base64.b64encode(self.data).decode()}"


Part = TextPart | ImagePart


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call the assistant made. `arguments` is JSON text as it was produced."""

    id: str
    name: str
    arguments: str
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn or part of one, kept in the place the client gave it."""

    role: Role
    parts: tuple[Part, ...] = ()
    name: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    is_error: bool = False

    @property
    def text(self) -> str:
        """All text of the message, in order."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call; `parameters` is a JSON Schema."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    strict: bool = False
    namespace: str = ""
    grammar: Constraint | None = None
    """What the text of a free-form tool must match: `lark` or `regex`."""


class ToolChoiceMode(enum.StrEnum):
    """Whether tools may or must be called."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"
    NAMED = "named"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`name` is set exactly when `mode` is NAMED."""

    mode: ToolChoiceMode = ToolChoiceMode.AUTO
    name: str = ""
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """What surrounds reasoning in a local model's output."""

    opening: str
    closing: str
    begun: bool
    """The prompt ends with `opening`."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A validated request for one or more answers.

    Exactly one of `messages`, `prompt_text`, `prompt_tokens` is set. `sampling.seed` is always set: drawn at the entry
    node when the client gave none, so that an answer can go on elsewhere.
    """

    id: str
    """Unique over the cluster; the seed of every random choice made for the request."""
    dialect: Dialect
    model: str
    """As the client wrote it."""
    sampling: Sampling
    messages: tuple[Message, ...] | None = None
    prompt_text: str | None = None
    prompt_tokens: tuple[int, ...] | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    choices: int = 1
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    constraint: Constraint | None = None
    stream: bool = False
    stream_usage: bool = False
    continue_final: bool = False
    conversation: str = ""
    """A client-given conversation or cache key; empty when there is none."""
    key_name: str = ""
    """The name of the client key that was used; never the key."""
    template_options: dict[str, Any] = field(default_factory=dict)
    raw: bytes = b""
    created: int = 0
    """Unix seconds, for the dialects that show it."""
    original: GenerationRequest | None = None
    """As it was before it was fitted to a local model's ways; None when it was not."""
    headers: tuple[tuple[str, str], ...] = ()
    """The few headers of the client that an upstream of the same dialect may see: versions and betas, no credentials."""
    is_draft: bool = False
    """The answer is held back and judged before the client sees any of it."""
    progress: bool = False
    """Whether the client wants to be told how far the prompt is."""
    is_fresh: bool = False
    """Whether the whole prompt is to be computed anew (llama.cpp's `cache_prompt: false`): nothing held is reused."""
    reasoning_tokens: int | None = None
    """The most tokens of reasoning the client wants; None: no bound but the answer's own."""
    reasoning_marks: ReasoningMarks | None = None
    """Set when the request is fitted to a local model that may reason: stop strings and a bound heed them."""
    is_part: bool = False
    """One prompt of several in a body, or one whose answer is added to: no upstream's bytes can stand for the reply."""

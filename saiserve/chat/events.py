"""What an answer is made of, before any dialect: the events that encoders turn into bytes.

Per choice: `Started` once for the request, then deltas, then exactly one `ChoiceFinished`; `Usage` last of all, or
`AnswerFailed` at any point after which nothing follows.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from saiserve.engines.messages import TokenLogprob
from saiserve.errors import ApiError


class StopKind(enum.StrEnum):
    """Why a choice ended, in this product's words."""

    END = "end"
    STOP_STRING = "stop_string"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    REFUSAL = "refusal"
    """An upstream would not go on for reasons of content."""


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt was taken; sent once, before anything else."""

    prompt_tokens: int
    cached_tokens: int
    relayed: bool = False
    """The answer comes as `Relayed` bytes; the events beside them are for counting, not for the client."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text of one choice; never empty unless it carries logprobs."""

    choice: int
    text: str
    logprobs: tuple[TokenLogprob, ...] | None = None
    is_parsed: bool = False
    """Reasoning and tool calls were taken out at its source, so that what looks like one is text."""
    tokens: tuple[int, ...] = ()
    """Ids of the tokens that came since the last delta; empty where the source does not tell them."""


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Reasoning text of one choice, kept apart from the answer."""

    choice: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """A call begins; `index` counts calls within the choice from 0 without gaps."""

    choice: int
    index: int
    id: str
    name: str
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of the arguments' JSON text."""

    choice: int
    index: int
    arguments: str


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """So much of the prompt is computed; only sent for requests that ask for it, before the first text."""

    processed: int
    total: int
    cached: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the whole request; the last event of a good answer."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0
    prompt_s: float = 0.0
    """Seconds spent on the prompt, of the slowest choice; 0 = not known."""
    decode_s: float = 0.0
    """Seconds from the first token to the last, of the slowest choice; 0 = not known."""


@dataclass(frozen=True, slots=True)
class ChoiceFinished:
    """The choice is complete."""

    choice: int
    kind: StopKind
    stop_string: str | None = None
    usage: Usage | None = None
    """The choice's own, where several prompts are answered as one request."""


@dataclass(frozen=True, slots=True)
class AnswerFailed:
    """The answer cannot be completed; the last event of a bad one."""

    error: ApiError


@dataclass(frozen=True, slots=True)
class Relayed:
    """Bytes of an upstream that speaks the client's dialect, whole events or a whole body, to be sent as they are."""

    data: bytes
    is_end: bool = False
    """The dialect's own end, good or bad, is in them."""


AnswerEvent = (
    Started
    | PromptProgress
    | TextDelta
    | ReasoningDelta
    | ToolCallStarted
    | ToolCallDelta
    | ChoiceFinished
    | Usage
    | AnswerFailed
    | Relayed
)

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


@dataclass(frozen=True, slots=True)
class Started:
    """The prompt was taken; sent once, before anything else."""

    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text of one choice; never empty unless it carries logprobs."""

    choice: int
    text: str
    logprobs: tuple[TokenLogprob, ...] | None = None


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
class ChoiceFinished:
    """The choice is complete."""

    choice: int
    kind: StopKind
    stop_string: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of the whole request; the last event of a good answer."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class AnswerFailed:
    """The answer cannot be completed; the last event of a bad one."""

    error: ApiError


AnswerEvent = (
    Started | TextDelta | ReasoningDelta | ToolCallStarted | ToolCallDelta | ChoiceFinished | Usage | AnswerFailed
)

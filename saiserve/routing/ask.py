"""When a strategy cannot tell without a model's answer: the question, the reply, and what may follow.

A strategy stays pure: it returns an `Ask`, the driver runs a model and sends the `Reply` into the chain's generator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from saiserve.routing.decision import Ranked
from saiserve.routing.slate import Slate


@dataclass(frozen=True, slots=True)
class Question:
    """A side question to a judge model. Routing holds no prompt text, so the driver adds the conversation's tail."""

    model: str
    """Canonical id of the judge, routed by the default chain."""
    instruction: str
    schema: dict[str, Any]
    """JSON Schema the answer must match (constrained output)."""
    max_tokens: int = 64
    tail_characters: int = 2_000
    """How much of the end of the conversation the judge is shown."""
    deadline_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of an `Ask`. For a side question `text` is the JSON; for a draft, the text so far."""

    text: str
    tokens: int = 0
    finished: bool = False
    """The answer ended by itself."""
    tool_calls: int = 0
    mean_logprob: float | None = None


@dataclass(frozen=True, slots=True)
class Keep:
    """The draft is good: it becomes the answer and goes on where it runs."""


@dataclass(frozen=True, slots=True)
class More:
    """Let the draft run on for `tokens` more and ask again."""

    tokens: int


@dataclass(frozen=True, slots=True)
class Ask:
    """A model's answer is needed first. `question` None means the client's own request, held back as a draft.

    `decide` must be pure and total. A failed or late answer continues with `if_failed`. The chain fills in
    `attempts`: where to run the draft, in order, after the rest of the chain has looked at `slate`.
    """

    slate: Slate
    question: Question | None
    decide: Callable[[Reply], Keep | More | Slate]
    if_failed: Slate
    draft_tokens: int = 48
    attempts: tuple[Ranked, ...] = field(default=())

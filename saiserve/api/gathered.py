"""A whole answer, gathered from its events; every dialect's one-piece reply is a view of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from saiserve.chat.events import (
    AnswerEvent,
    AnswerFailed,
    ChoiceFinished,
    ReasoningDelta,
    Relayed,
    Started,
    StopKind,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from saiserve.engines.messages import TokenLogprob


@dataclass(slots=True)
class GatheredCall:
    """One tool call."""

    id: str
    name: str
    namespace: str = ""
    arguments: str = ""


@dataclass(slots=True)
class GatheredChoice:
    """One choice."""

    text: str = ""
    reasoning: str = ""
    calls: list[GatheredCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] | None = None
    finish: StopKind = StopKind.END
    stop_string: str | None = None


@dataclass(slots=True)
class GatheredAnswer:
    """All choices of an answer and its usage."""

    choices: list[GatheredChoice]
    usage: Usage = field(default_factory=lambda: Usage(0, 0, 0))

    @classmethod
    def empty(cls, choices: int) -> GatheredAnswer:
        """Return an answer of so many choices, nothing gathered yet."""
        return cls([GatheredChoice() for _ in range(choices)])

    def add(self, event: AnswerEvent) -> None:
        """Take in one event."""
        match event:
            case TextDelta():
                choice = self.choices[event.choice]
                choice.text += event.text
                if event.logprobs is not None:
                    choice.logprobs = (choice.logprobs or []) + list(event.logprobs)
            case ReasoningDelta():
                self.choices[event.choice].reasoning += event.text
            case ToolCallStarted():
                self.choices[event.choice].calls.append(GatheredCall(event.id, event.name, event.namespace))
            case ToolCallDelta():
                self.choices[event.choice].calls[event.index].arguments += event.arguments
            case ChoiceFinished():
                choice = self.choices[event.choice]
                choice.finish = finish_kind(event.kind, called=bool(choice.calls))
                choice.stop_string = event.stop_string
            case Usage():
                self.usage = event
            case Started() | AnswerFailed() | Relayed():
                pass


def finish_kind(kind: StopKind, *, called: bool) -> StopKind:
    """Return how a choice ended: one that called tools and came to its end ended in calls."""
    return StopKind.TOOL_CALLS if called and kind is StopKind.END else kind

"""From raw output to canonical events: reasoning first, then tool calls in what is left. One parser per request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from saiserve.chat.call_pieces import CallArguments, CallBegun, ParsedCall, Piece
from saiserve.chat.content_logprobs import ContentLogprobs
from saiserve.chat.events import (
    AnswerEvent,
    ChoiceFinished,
    ReasoningDelta,
    StopKind,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from saiserve.chat.reasoning import ReasoningSplitter
from saiserve.chat.request import Tool
from saiserve.chat.tool_parser import ToolCallParser


@dataclass(slots=True)
class _Choice:
    splitter: ReasoningSplitter | None
    parser: ToolCallParser | None
    calls: int = 0
    reasoning_tokens: int = 0
    logprobs: ContentLogprobs = field(default_factory=ContentLogprobs)
    tokens: list[int] = field(default_factory=list)

    @property
    def held(self) -> int:
        """Characters of the answer that the parser of calls holds back."""
        return self.parser.held if self.parser is not None else 0


class AnswerParser:
    """Parses the events of one answer. Calls that a source has parsed already pass through."""

    def __init__(
        self,
        choices: int,
        *,
        splitter: Callable[[], ReasoningSplitter] | None = None,
        parser: Callable[[], ToolCallParser] | None = None,
        tools: Sequence[Tool] = (),
        new_call_id: Callable[[], str],
        own_stop: str = "",
    ) -> None:
        self._choices = [
            _Choice(splitter() if splitter is not None else None, parser() if parser is not None else None)
            for _ in range(choices)
        ]
        self._namespaces = {tool.name: tool.namespace for tool in tools if tool.namespace}
        self._new_call_id = new_call_id
        self._own_stop = own_stop

    def __call__(self, event: AnswerEvent) -> list[AnswerEvent]:
        """Return the events one event becomes."""
        match event:
            case TextDelta(is_parsed=True):
                return [event]
            case TextDelta():
                return self._text(event)
            case ToolCallStarted():
                self._choices[event.choice].calls += 1
                return [event]
            case ChoiceFinished():
                return self._finish(event)
            case Usage():
                reasoning = sum(choice.reasoning_tokens for choice in self._choices)
                return [replace(event, reasoning_tokens=event.reasoning_tokens or reasoning)]
        return [event]

    def _text(self, event: TextDelta) -> list[AnswerEvent]:
        choice = self._choices[event.choice]
        choice.logprobs.add(event.text, event.logprobs)
        choice.tokens += event.tokens
        events: list[AnswerEvent] = []
        text = event.text
        if choice.splitter is not None:
            was_inside = choice.splitter.is_inside
            split = choice.splitter.feed(text)
            if was_inside or choice.splitter.is_inside:
                choice.reasoning_tokens += len(event.tokens)
            if split.reasoning:
                events.append(ReasoningDelta(event.choice, split.reasoning))
            text = split.text
            if choice.splitter.is_undecided:
                return events
            choice.logprobs.skip(len(text) + choice.held)
        pieces: list[Piece] = [text] if choice.parser is None else choice.parser.feed(text)
        return events + self._events(event.choice, pieces)

    def _events(self, index: int, pieces: list[Piece], *, is_end: bool = False) -> list[AnswerEvent]:
        choice = self._choices[index]
        events: list[AnswerEvent] = []
        entries = choice.logprobs.settle(pieces, 0 if is_end else choice.held)
        for piece, logprobs in zip(pieces, entries, strict=True):
            if isinstance(piece, ParsedCall):
                events += [self._begin(index, piece.name), self._arguments(index, piece.arguments)]
            elif isinstance(piece, CallBegun):
                events.append(self._begin(index, piece.name))
            elif isinstance(piece, CallArguments):
                events.append(self._arguments(index, piece.text))
            elif piece:
                events.append(TextDelta(index, piece, logprobs or None, tokens=tuple(choice.tokens)))
                choice.tokens = []
        return events

    def _begin(self, index: int, flat_name: str) -> ToolCallStarted:
        choice = self._choices[index]
        namespace = self._namespaces.get(flat_name, "")
        name = flat_name.removeprefix(f"{namespace}__") if namespace else flat_name
        started = ToolCallStarted(index, choice.calls, self._new_call_id(), name, namespace)
        choice.calls += 1
        return started

    def _arguments(self, index: int, text: str) -> ToolCallDelta:
        return ToolCallDelta(index, self._choices[index].calls - 1, text)

    def _finish(self, event: ChoiceFinished) -> list[AnswerEvent]:
        choice = self._choices[event.choice]
        events: list[AnswerEvent] = []
        pieces: list[Piece] = []
        if choice.splitter is not None:
            split = choice.splitter.finish()
            if split.reasoning:
                events.append(ReasoningDelta(event.choice, split.reasoning))
            pieces = [split.text]
        was_inside = False
        if choice.parser is not None:
            pieces = [piece for text in pieces if isinstance(text, str) for piece in choice.parser.feed(text)]
            was_inside = choice.parser.is_inside
            pieces += choice.parser.finish(is_cut=event.kind is StopKind.LENGTH)
        events += self._events(event.choice, pieces, is_end=True)
        return [*events, self._end(event, called=choice.calls > 0, was_inside=was_inside)]

    def _end(self, event: ChoiceFinished, *, called: bool, was_inside: bool) -> ChoiceFinished:
        """A stop string of our own is no stop string of the client's; an end behind calls is an end in calls.

        A client's stop string inside a call stays what it is: the call is not what the model meant to say.
        """
        kind = event.kind
        stop_string = event.stop_string
        if kind is StopKind.STOP_STRING and self._own_stop and stop_string == self._own_stop:
            kind, stop_string = StopKind.END, None
        if called and (kind is StopKind.END or (kind is StopKind.STOP_STRING and not was_inside)):
            kind, stop_string = StopKind.TOOL_CALLS, None
        return ChoiceFinished(event.choice, kind, stop_string)

"""Anthropic Messages, outgoing: the events of a stream and the whole message.

Stream states: nothing sent → `message_start` → at most one open block at a time, indexes 0, 1, 2… → `message_delta`
with stop reason and usage → `message_stop`. A block closes before another opens; a text block opens only on text; a
tool's input always comes as deltas. After `error` nothing follows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from saiserve.api import sse
from saiserve.api.errors import ErrorStyle, error_object
from saiserve.api.gathered import GatheredAnswer, GatheredCall, finish_kind
from saiserve.chat.events import (
    AnswerEvent,
    AnswerFailed,
    ChoiceFinished,
    ReasoningDelta,
    Started,
    StopKind,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)

STOP_REASONS: dict[StopKind, str] = {
    StopKind.END: "end_turn",
    StopKind.STOP_STRING: "stop_sequence",
    StopKind.LENGTH: "max_tokens",
    StopKind.TOOL_CALLS: "tool_use",
    StopKind.REFUSAL: "refusal",
}
SIGNATURE = "c2Fpc2VydmU="
"""Signs thinking blocks made here: opaque to clients, and recognisable as no signature of Anthropic's."""


def usage_object(prompt_tokens: int, cached_tokens: int, output_tokens: int) -> dict[str, Any]:
    """Return Anthropic's usage: `input_tokens` leaves out what came from the cache."""
    return {
        "input_tokens": max(0, prompt_tokens - cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
        "output_tokens": output_tokens,
    }


def message_object(message_id: str, model: str, usage: dict[str, Any]) -> dict[str, Any]:
    """Return a message that has not said anything yet."""
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


class MessageStreamEncoder:
    """One streamed message; without `thinking` reasoning is left out."""

    def __init__(self, *, message_id: str, model: str, thinking: bool, request_id: str = "") -> None:
        self._message_id = message_id
        self._model = model
        self._thinking = thinking
        self._request_id = request_id
        self._started = False
        self._ended = False
        self._index = -1
        self._open = ""
        self._deltas = 0
        self._called = False
        self._stop: ChoiceFinished | None = None

    def encode(self, event: AnswerEvent) -> bytes:
        """Return the events for one canonical event."""
        if self._ended:
            return b""
        if isinstance(event, AnswerFailed):
            self._ended = True
            return sse.event(error_object(event.error, ErrorStyle.ANTHROPIC, self._request_id), "error")
        if isinstance(event, Started):
            return self._start(event)
        return (b"" if self._started else self._start(Started(0, 0))) + self._continue(event)

    def keepalive(self) -> bytes:
        """Return a `ping` once the message has begun, a comment before."""
        return _event({"type": "ping"}) if self._started and not self._ended else sse.COMMENT

    def _start(self, event: Started) -> bytes:
        if self._started:
            return b""
        self._started = True
        usage = usage_object(event.prompt_tokens, event.cached_tokens, 0)
        return _event({"type": "message_start", "message": message_object(self._message_id, self._model, usage)})

    def _continue(self, event: AnswerEvent) -> bytes:
        match event:
            case TextDelta() if event.text:
                return self._block("text", {"type": "text", "text": ""}) + self._delta("text_delta", text=event.text)
            case ReasoningDelta() if event.text and self._thinking:
                opening = self._block("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                return opening + self._delta("thinking_delta", thinking=event.text)
            case ToolCallStarted():
                self._called = True
                block = {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
                return self._close() + self._block("tool_use", block)
            case ToolCallDelta() if event.arguments and self._open == "tool_use":
                return self._delta("input_json_delta", partial_json=event.arguments)
            case ChoiceFinished():
                self._stop = event
                return self._close()
            case Usage():
                return self._end(event)
        return b""

    def _block(self, kind: str, block: dict[str, Any]) -> bytes:
        """Open a block of this kind, unless one is open."""
        if self._open == kind:
            return b""
        closing = self._close()
        self._open = kind
        self._index += 1
        self._deltas = 0
        return closing + _event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _delta(self, kind: str, **fields: str) -> bytes:
        self._deltas += 1
        return _event({"type": "content_block_delta", "index": self._index, "delta": {"type": kind, **fields}})

    def _close(self) -> bytes:
        last = b""
        if not self._open:
            return last
        if self._open == "thinking":
            last = self._delta("signature_delta", signature=SIGNATURE)
        elif self._open == "tool_use" and not self._deltas:
            last = self._delta("input_json_delta", partial_json="{}")
        self._open = ""
        return last + _event({"type": "content_block_stop", "index": self._index})

    def _end(self, usage: Usage) -> bytes:
        self._ended = True
        kind = finish_kind(self._stop.kind if self._stop is not None else StopKind.END, called=self._called)
        delta = {
            "stop_reason": STOP_REASONS[kind],
            "stop_sequence": self._stop.stop_string if self._stop is not None else None,
        }
        counts = usage_object(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
        closing = self._close()
        return (
            closing
            + _event({"type": "message_delta", "delta": delta, "usage": counts})
            + _event({"type": "message_stop"})
        )


def _event(body: dict[str, Any]) -> bytes:
    return sse.event(body, body["type"])


class MessageCollector:
    """One whole message: the blocks its stream would have had, in the same order."""

    def __init__(self, *, message_id: str, model: str, thinking: bool) -> None:
        self._message_id = message_id
        self._model = model
        self._thinking = thinking
        self._answer = GatheredAnswer.empty(1)
        self._order: list[_Written | GatheredCall] = []

    def add(self, event: AnswerEvent) -> None:
        """Take in one event."""
        self._answer.add(event)
        match event:
            case TextDelta() if event.text:
                self._write("text", event.text)
            case ReasoningDelta() if event.text and self._thinking:
                self._write("thinking", event.text)
            case ToolCallStarted():
                self._order.append(self._answer.choices[0].calls[-1])

    def body(self) -> dict[str, Any]:
        """Return the message."""
        choice = self._answer.choices[0]
        usage = self._answer.usage
        counts = usage_object(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
        return {
            **message_object(self._message_id, self._model, counts),
            "content": [_block_of(part) for part in self._order],
            "stop_reason": STOP_REASONS[choice.finish],
            "stop_sequence": choice.stop_string,
        }

    def _write(self, kind: str, text: str) -> None:
        last = self._order[-1] if self._order else None
        if isinstance(last, _Written) and last.kind == kind:
            last.pieces.append(text)
        else:
            self._order.append(_Written(kind, [text]))


@dataclass(slots=True)
class _Written:
    """A block of text or thinking."""

    kind: str
    pieces: list[str]


def _block_of(part: _Written | GatheredCall) -> dict[str, Any]:
    if isinstance(part, GatheredCall):
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": _input(part.arguments)}
    text = "".join(part.pieces)
    signature = {"signature": SIGNATURE} if part.kind == "thinking" else {}
    return {"type": part.kind, part.kind: text, **signature}


def _input(arguments: str) -> Any:
    """Return a call's input; arguments that were cut short are no input at all."""
    try:
        parsed = msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        return {}
    return parsed if isinstance(parsed, dict) else {}

"""Messages of a target as canonical events: a stream, or a whole message as the stream it would have been.

Blocks of text, thinking and tool use become deltas; blocks that only Anthropic's servers fill (search results, redacted
thinking) say nothing to clients of other dialects. An end before a stop reason is a fault, never a normal end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from saiserve.chat.events import AnswerEvent, ChoiceFinished, ReasoningDelta, StopKind, TextDelta, Usage
from saiserve.engines.upstream.calls import CallOrder
from saiserve.engines.upstream.faults import UpstreamFault, in_stream
from saiserve.engines.upstream.names import ToolNames
from saiserve.engines.upstream.openai_decoder import decode
from saiserve.engines.upstream.shapes import count_of, table_of, text_of
from saiserve.engines.upstream.sse import SseEvent
from saiserve.errors import ErrorKind

STOP_KINDS: Final = {
    "end_turn": StopKind.END,
    "stop_sequence": StopKind.STOP_STRING,
    "max_tokens": StopKind.LENGTH,
    "model_context_window_exceeded": StopKind.LENGTH,
    "tool_use": StopKind.TOOL_CALLS,
    "refusal": StopKind.REFUSAL,
}


class MessageDecoder:
    """One message."""

    def __init__(self, target: str, choice: int, names: ToolNames, new_id: Callable[[], str]) -> None:
        self.is_done = False
        """The dialect's own end was seen."""
        self.has_begun = False
        """Something for the client has come."""
        self.hides_usage = False
        """No event of this dialect holds nothing but usage that nobody asked for."""
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self._output_tokens = 0
        self._target = target
        self._choice = choice
        self._calls = CallOrder(choice, names, new_id)
        self._blocks: dict[int, dict[str, Any]] = {}
        """Open blocks of tool use: what they began with, and whether deltas came."""
        self._stop: str | None = None
        self._stop_string: str | None = None

    @property
    def usage(self) -> Usage:
        """Tokens, as last told."""
        return Usage(self.prompt_tokens, self.cached_tokens, self._output_tokens)

    def feed(self, event: SseEvent) -> list[AnswerEvent]:
        """Take one event of the stream; its `data` names it, whatever the event line says.

        Raises:
            UpstreamFault: it is an error, or cannot be read.
        """
        if event.data is None or not event.data.strip() or self.is_done:
            return []
        return self._take(decode(event.data, self._target), event.name)

    def whole(self, body: bytes) -> list[AnswerEvent]:
        """Take a whole message.

        Raises:
            UpstreamFault: it is an error, or none.
        """
        message = decode(body, self._target)
        if not isinstance(message, dict) or not isinstance(message.get("content"), list):
            raise in_stream(self._target, message)
        self._count(message.get("usage"))
        events: list[AnswerEvent] = []
        for index, given in enumerate(message["content"]):
            block = table_of(given)
            if block.get("type") in ("text", "thinking"):
                delta = {"type": f"{block['type']}_delta", block["type"]: block.get(block["type"])}
                events += self._delta(index, delta)
            else:
                events += self._open(index, block) + self._close(index)
        self._end(message)
        self.is_done = True
        return [*events, *self.finish()]

    def finish(self) -> list[AnswerEvent]:
        """The stream has ended.

        Raises:
            UpstreamFault: before the answer had.
        """
        if self._stop is None:
            raise UpstreamFault(ErrorKind.UPSTREAM_FAILED, f"the upstream {self._target!r} was cut off in its answer")
        kind = STOP_KINDS.get(self._stop, StopKind.END)
        return [*self._calls.finish(), ChoiceFinished(self._choice, kind, self._stop_string)]

    def _take(self, body: Any, name: str) -> list[AnswerEvent]:
        kind = body.get("type", name) if isinstance(body, dict) else "error"
        events: list[AnswerEvent] = []
        match kind:
            case "message_start":
                message = body.get("message")
                self._count(message.get("usage") if isinstance(message, dict) else None)
            case "content_block_start":
                events = self._open(_index(body), table_of(body.get("content_block")))
                self.has_begun = True
            case "content_block_delta":
                events = self._delta(_index(body), table_of(body.get("delta")))
                self.has_begun = True
            case "content_block_stop":
                events = self._close(_index(body))
            case "message_delta":
                self._count(body.get("usage"))
                self._end(table_of(body.get("delta")))
                self.has_begun = True
            case "message_stop":
                self.is_done = True
            case "error":
                raise in_stream(self._target, body)
            case _:
                pass  # pings, and events that did not exist when this was written
        return events

    def _open(self, index: int, block: dict[str, Any]) -> list[AnswerEvent]:
        match block.get("type"):
            case "tool_use":
                self._blocks[index] = {"input": block.get("input"), "deltas": 0}
                return self._calls.add(index, text_of(block.get("id")), text_of(block.get("name")), "")
            case "text":
                return self._delta(index, {"type": "text_delta", "text": block.get("text")})
            case "thinking":
                return self._delta(index, {"type": "thinking_delta", "thinking": block.get("thinking")})
        return []

    def _delta(self, index: int, delta: dict[str, Any]) -> list[AnswerEvent]:
        text = text_of(delta.get("text"))
        thinking = text_of(delta.get("thinking"))
        match delta.get("type"):
            case "text_delta" if text:
                return [TextDelta(self._choice, text, is_parsed=True)]
            case "thinking_delta" if thinking:
                return [ReasoningDelta(self._choice, thinking)]
            case "input_json_delta" if index in self._blocks and text_of(delta.get("partial_json")):
                self._blocks[index]["deltas"] += 1
                return self._calls.add(index, "", "", text_of(delta["partial_json"]))
        return []

    def _close(self, index: int) -> list[AnswerEvent]:
        """A call's input may stand in its start alone."""
        block = self._blocks.pop(index, None)
        if block is None or block["deltas"]:
            return []
        given = block["input"] if isinstance(block["input"], dict) else {}
        return self._calls.add(index, "", "", msgspec.json.encode(given).decode())

    def _end(self, delta: dict[str, Any]) -> None:
        reason, string = delta.get("stop_reason"), delta.get("stop_sequence")
        if isinstance(reason, str) and reason:
            self._stop = reason
        if isinstance(string, str):
            self._stop_string = string

    def _count(self, usage: Any) -> None:
        """Input leaves out what was read from or written to a cache; later counts replace earlier ones."""
        if not isinstance(usage, dict):
            return
        read = count_of(usage.get("cache_read_input_tokens"))
        prompt = count_of(usage.get("input_tokens")) + read + count_of(usage.get("cache_creation_input_tokens"))
        if prompt:
            self.prompt_tokens, self.cached_tokens = prompt, read
        self._output_tokens = max(self._output_tokens, count_of(usage.get("output_tokens")))


def _index(body: dict[str, Any]) -> int:
    index = body.get("index")
    return index if isinstance(index, int) else 0

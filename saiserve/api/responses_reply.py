"""OpenAI Responses, outgoing: the event ladder of a stream; the whole response is the ladder's last object.

Stream states: nothing sent → `created`, `in_progress` → items, one open at a time, each with its full ladder
(added, part added, deltas, done, part done, item done) → exactly one of `completed`, `incomplete`, `failed`.
One counter numbers every event. There is no `[DONE]`; a fault is `response.failed`, which clients heed where they
ignore `error`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from saiserve.api import sse
from saiserve.api.chat_calls import free_form_input
from saiserve.api.errors import ErrorStyle, error_object
from saiserve.api.openai_common import logprob_entries
from saiserve.api.responses_items import carried
from saiserve.api.responses_words import FAILURE_CODES, INCOMPLETE_REASONS, usage_object
from saiserve.api.timings import Stopwatch, progress_object, timings_object
from saiserve.chat.events import (
    AnswerEvent,
    AnswerFailed,
    ChoiceFinished,
    PromptProgress,
    ReasoningDelta,
    Started,
    StopKind,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from saiserve.errors import ApiError


class ResponseEncoder:
    """One response: a stream's events, and in `final` the whole object once it has ended."""

    def __init__(
        self,
        *,
        response_id: str,
        created: int,
        echo: dict[str, Any],
        custom_tools: frozenset[str] = frozenset(),
        summarise: bool = False,
        carry_reasoning: bool = False,
        on_final: Callable[[dict[str, Any]], None] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.final: dict[str, Any] | None = None
        self._id = response_id
        self._created = created
        self._echo = echo
        self._custom_tools = custom_tools
        self._summarise = summarise
        self._carry_reasoning = carry_reasoning
        self._on_final = on_final
        self._clock = clock
        self._watch = Stopwatch(clock() if clock is not None else 0.0)
        self._number = 0
        self._began = False
        self._kind = ""
        self._item: dict[str, Any] = {}
        self._text: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._output: list[dict[str, Any]] = []
        self._end = StopKind.END

    def encode(self, event: AnswerEvent) -> bytes:
        """Return the events for one canonical event."""
        if self.final is not None:
            return b""
        opening = b"" if self._began else self._begin()
        match event:
            case Started():
                self._watch.started(event.prompt_tokens, event.cached_tokens)
            case PromptProgress():
                return opening + self._progress(event)
            case TextDelta() if event.text or (event.logprobs and self._kind == "message"):
                return opening + self._add_text(event)
            case ReasoningDelta() if event.text:
                return opening + self._add_reasoning(event.text)
            case ToolCallStarted():
                return opening + self._close() + self._open_call(event)
            case ToolCallDelta() if event.arguments:
                return opening + self._add_arguments(event.arguments)
            case ChoiceFinished():
                self._end = event.kind
                return opening + self._close()
            case Usage():
                return opening + self._finish(event)
            case AnswerFailed():
                return opening + self._fail(event.error)
        return opening

    def keepalive(self) -> bytes:
        """Return a comment."""
        return sse.COMMENT

    def _begin(self) -> bytes:
        self._began = True
        body = self._response("in_progress")
        return self._event("response.created", response=body) + self._event("response.in_progress", response=body)

    def _event(self, kind: str, **fields: Any) -> bytes:
        body = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return sse.event(body, kind)

    def _part_event(self, kind: str, index_name: str = "content_index", **fields: Any) -> bytes:
        place = {"item_id": self._item["id"], "output_index": len(self._output), index_name: 0}
        return self._event(kind, **place, **fields)

    def _item_event(self, kind: str, item: dict[str, Any]) -> bytes:
        return self._event(kind, output_index=len(self._output), item=item)

    def _open(self, kind: str, item: dict[str, Any]) -> bytes:
        self._kind = kind
        self._text = []
        self._logprobs = []
        self._item = item
        return self._item_event("response.output_item.added", item)

    def _new_id(self, prefix: str) -> str:
        return f"{prefix}_{self._id.removeprefix('resp_')}_{len(self._output)}"

    def _add_text(self, event: TextDelta) -> bytes:
        opening = b""
        if self._kind != "message":
            item = {"id": "", "type": "message", "status": "in_progress", "role": "assistant", "content": []}
            opening = self._close()
            item["id"] = self._new_id("msg")
            opening += self._open("message", item)
            opening += self._part_event("response.content_part.added", part=_output_text("", []))
        self._text.append(event.text)
        logprobs = logprob_entries(event.logprobs or ())
        self._logprobs += logprobs
        extra: dict[str, Any] = {} if self._clock is None else {"timings": self._watch.token(self._clock(), event)}
        return opening + self._part_event("response.output_text.delta", delta=event.text, logprobs=logprobs, **extra)

    def _progress(self, event: PromptProgress) -> bytes:
        """llama-server's extra: how far the prompt is, in a further `in_progress`."""
        elapsed = self._watch.elapsed(self._clock()) if self._clock is not None else 0.0
        progress = progress_object(event, elapsed)
        return self._event("response.in_progress", response=self._response("in_progress"), prompt_progress=progress)

    def _add_reasoning(self, text: str) -> bytes:
        opening = b""
        if self._kind != "reasoning":
            opening = self._close()
            item = {"id": self._new_id("rs"), "type": "reasoning", "status": "in_progress", "summary": []}
            opening += self._open("reasoning", item) + self._open_reasoning_part()
        self._text.append(text)
        if self._summarise:
            return opening + self._part_event("response.reasoning_summary_text.delta", "summary_index", delta=text)
        return opening + self._part_event("response.reasoning_text.delta", delta=text)

    def _open_reasoning_part(self) -> bytes:
        if self._summarise:
            part = {"type": "summary_text", "text": ""}
            return self._part_event("response.reasoning_summary_part.added", "summary_index", part=part)
        return self._part_event("response.content_part.added", part={"type": "reasoning_text", "text": ""})

    def _open_call(self, event: ToolCallStarted) -> bytes:
        flat = f"{event.namespace}__{event.name}" if event.namespace else event.name
        named = {"call_id": event.id, "name": event.name} | ({"namespace": event.namespace} if event.namespace else {})
        if flat in self._custom_tools:
            item = {
                "id": self._new_id("ctc"),
                "type": "custom_tool_call",
                "status": "in_progress",
                **named,
                "input": "",
            }
            return self._open("custom", item)
        item = {"id": self._new_id("fc"), "type": "function_call", "status": "in_progress", **named, "arguments": ""}
        return self._open("call", item)

    def _add_arguments(self, arguments: str) -> bytes:
        self._text.append(arguments)
        if self._kind != "call":
            return b""
        place = {"item_id": self._item["id"], "output_index": len(self._output)}
        return self._event("response.function_call_arguments.delta", **place, delta=arguments)

    def _close(self) -> bytes:
        """End the open item, if there is one, with the rest of its ladder."""
        if not self._kind:
            return b""
        text = "".join(self._text)
        status = "incomplete" if self._end is StopKind.LENGTH else "completed"
        endings = {
            "message": self._close_message,
            "reasoning": self._close_reasoning,
            "call": self._close_call,
            "custom": self._close_custom,
        }
        ladder, item = endings[self._kind](text)
        item = {**item, "status": status}
        done = self._item_event("response.output_item.done", item)
        self._output.append(item)
        self._kind = ""
        return ladder + done

    def _close_message(self, text: str) -> tuple[bytes, dict[str, Any]]:
        part = _output_text(text, self._logprobs)
        ladder = self._part_event("response.output_text.done", text=text, logprobs=self._logprobs)
        ladder += self._part_event("response.content_part.done", part=part)
        return ladder, {**self._item, "content": [part]}

    def _close_reasoning(self, text: str) -> tuple[bytes, dict[str, Any]]:
        item = dict(self._item)
        if self._carry_reasoning:
            item["encrypted_content"] = carried(text)
        if self._summarise:
            part = {"type": "summary_text", "text": text}
            ladder = self._part_event("response.reasoning_summary_text.done", "summary_index", text=text)
            ladder += self._part_event("response.reasoning_summary_part.done", "summary_index", part=part)
            return ladder, {**item, "summary": [part]}
        part = {"type": "reasoning_text", "text": text}
        ladder = self._part_event("response.reasoning_text.done", text=text)
        ladder += self._part_event("response.content_part.done", part=part)
        return ladder, {**item, "content": [part]}

    def _close_call(self, text: str) -> tuple[bytes, dict[str, Any]]:
        place = {"item_id": self._item["id"], "output_index": len(self._output)}
        arguments = text or "{}"
        ladder = b"" if text else self._event("response.function_call_arguments.delta", **place, delta=arguments)
        name = self._item["name"]
        ladder += self._event("response.function_call_arguments.done", **place, name=name, arguments=arguments)
        return ladder, {**self._item, "arguments": arguments}

    def _close_custom(self, text: str) -> tuple[bytes, dict[str, Any]]:
        place = {"item_id": self._item["id"], "output_index": len(self._output)}
        given = free_form_input(text)
        ladder = self._event("response.custom_tool_call_input.delta", **place, delta=given)
        ladder += self._event("response.custom_tool_call_input.done", **place, input=given)
        return ladder, {**self._item, "input": given}

    def _finish(self, usage: Usage) -> bytes:
        closing = self._close()
        reason = INCOMPLETE_REASONS.get(self._end)
        body = self._response("incomplete" if reason else "completed", usage=usage_object(usage))
        if reason:
            body["incomplete_details"] = {"reason": reason}
        extra = {} if self._clock is None else {"timings": timings_object(usage)}
        return closing + self._last(f"response.{body['status']}", body, **extra)

    def _fail(self, error: ApiError) -> bytes:
        body = self._response("failed")
        message = error_object(error, ErrorStyle.OPENAI, field="input")["error"]["message"]
        body["error"] = {"code": FAILURE_CODES.get(error.kind, "server_error"), "message": message}
        return self._last("response.failed", body)

    def _last(self, kind: str, body: dict[str, Any], **extra: Any) -> bytes:
        self.final = body
        if self._on_final is not None:
            self._on_final(body)
        return self._event(kind, response=body, **extra)

    def _response(self, status: str, usage: dict[str, Any] | None = None) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": list(self._output),
            "usage": usage,
            **self._echo,
        }


class ResponseCollector:
    """One whole response."""

    def __init__(self, encoder: ResponseEncoder) -> None:
        self._encoder = encoder

    def add(self, event: AnswerEvent) -> None:
        """Take in one event."""
        self._encoder.encode(event)

    def body(self) -> Any:
        """Return the response."""
        return self._encoder.final


def _output_text(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

"""Chat Completions of a target as canonical events: a stream, or a whole body as one chunk.

Per choice: text, reasoning and calls in the order they came, one `ChoiceFinished`. Lenient where servers differ (role on
every chunk, `tool_calls: []`, usage anywhere, no `[DONE]`), strict where meaning is lost: what is no JSON, an error
object, and an end without a finish reason are faults, never a normal end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from saiserve.chat.events import AnswerEvent, ChoiceFinished, ReasoningDelta, StopKind, TextDelta, Usage
from saiserve.engines.messages import TokenLogprob
from saiserve.engines.upstream.calls import CallOrder
from saiserve.engines.upstream.faults import UpstreamFault, in_stream
from saiserve.engines.upstream.names import ToolNames
from saiserve.engines.upstream.shapes import count_of, list_of, number_of, table_of, text_of
from saiserve.engines.upstream.sse import SseEvent
from saiserve.errors import ErrorKind

FINISH_KINDS: Final = {
    "stop": StopKind.END,
    "length": StopKind.LENGTH,
    "tool_calls": StopKind.TOOL_CALLS,
    "function_call": StopKind.TOOL_CALLS,
    "content_filter": StopKind.REFUSAL,
}
DONE: Final = b"[DONE]"
UNKNOWN_TOKEN: Final = -1
"""Log-probabilities of this dialect name no token ids."""


class ChatDecoder:
    """One choice of one completion."""

    def __init__(self, target: str, choice: int, names: ToolNames, new_id: Callable[[], str]) -> None:
        self.usage: Usage | None = None
        self.is_done = False
        """The dialect's own end was seen."""
        self.has_begun = False
        """Something for the client has come."""
        self.hides_usage = False
        """The chunk just fed holds nothing but usage."""
        self._target = target
        self._choice = choice
        self._calls = CallOrder(choice, names, new_id)
        self._held: list[AnswerEvent] = []
        """Text that came while a call was open."""
        self._finish: StopKind | None = None

    @property
    def prompt_tokens(self) -> int:
        """Known at the end only."""
        return self.usage.prompt_tokens if self.usage is not None else 0

    @property
    def cached_tokens(self) -> int:
        """Known at the end only."""
        return self.usage.cached_tokens if self.usage is not None else 0

    def feed(self, event: SseEvent) -> list[AnswerEvent]:
        """Take one event of the stream.

        Raises:
            UpstreamFault: it is an error, or cannot be read.
        """
        self.hides_usage = False
        if event.data is None or not event.data.strip() or self.is_done:
            return []
        if event.data.strip() == DONE:
            self.is_done = True
            return []
        return self._chunk(decode(event.data, self._target), "delta")

    def whole(self, body: bytes) -> list[AnswerEvent]:
        """Take a whole completion.

        Raises:
            UpstreamFault: it is an error, or none.
        """
        events = self._chunk(decode(body, self._target), "message")
        self.is_done = True
        return [*events, *self.finish()]

    def finish(self) -> list[AnswerEvent]:
        """The stream has ended.

        Raises:
            UpstreamFault: before the answer had.
        """
        if self._finish is None:
            raise UpstreamFault(ErrorKind.UPSTREAM_FAILED, f"the upstream {self._target!r} was cut off in its answer")
        events = [*self._calls.finish(), *self._held, ChoiceFinished(self._choice, self._finish)]
        self._held = []
        return events

    def _chunk(self, chunk: Any, part: str) -> list[AnswerEvent]:
        if not isinstance(chunk, dict) or chunk.get("error"):
            raise in_stream(self._target, chunk)
        self._count(chunk.get("usage"))
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            choices = []
        self.hides_usage = not choices and self.usage is not None
        events: list[AnswerEvent] = []
        for choice in choices:
            if isinstance(choice, dict) and choice.get("index", 0) in (0, None):
                events += self._delta(choice, table_of(choice.get(part)))
        self.has_begun = self.has_begun or bool(events) or self._finish is not None or self._calls.is_open
        return events

    def _delta(self, choice: dict[str, Any], delta: dict[str, Any]) -> list[AnswerEvent]:
        if self._finish is not None:
            return []  # a second finish, or more after the first
        events: list[AnswerEvent] = []
        reasoning = next(
            (delta[k] for k in ("reasoning_content", "reasoning", "thinking") if text_of(delta.get(k))), ""
        )
        if reasoning:
            events += self._in_order(ReasoningDelta(self._choice, text_of(reasoning)))
        text, logprobs = text_of(delta.get("content")) or text_of(delta.get("refusal")), _logprobs(choice)
        if text or logprobs:
            events += self._in_order(TextDelta(self._choice, text, logprobs, is_parsed=True))
        for position, call in enumerate(list_of(delta.get("tool_calls"))):
            events += self._call(call, position, whole="message" in choice)
        if isinstance(delta.get("function_call"), dict):
            events += self._call({"function": delta["function_call"]}, 0, whole=True)
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish:
            self._finish = FINISH_KINDS.get(finish, StopKind.END)
        return events

    def _call(self, call: Any, position: int, *, whole: bool) -> list[AnswerEvent]:
        if not isinstance(call, dict):
            return []
        function = table_of(call.get("function"))
        index = call.get("index")
        key = index if isinstance(index, int) else position if whole else None
        arguments = function.get("arguments")
        if isinstance(arguments, dict):
            arguments = msgspec.json.encode(arguments).decode()
        return self._calls.add(key, text_of(call.get("id")), text_of(function.get("name")), text_of(arguments))

    def _in_order(self, event: AnswerEvent) -> list[AnswerEvent]:
        if self._held or self._calls.is_open:
            self._held.append(event)
            return []
        return [event]

    def _count(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            return
        prompt = count_of(usage.get("prompt_tokens"))
        cached = count_of(table_of(usage.get("prompt_tokens_details")).get("cached_tokens")) or count_of(
            usage.get("prompt_cache_hit_tokens")
        )
        reasoning = count_of(table_of(usage.get("completion_tokens_details")).get("reasoning_tokens"))
        self.usage = Usage(prompt, min(cached, prompt), count_of(usage.get("completion_tokens")), reasoning)


def decode(data: bytes, target: str) -> Any:
    """JSON of a target.

    Raises:
        UpstreamFault: it is none.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UpstreamFault(ErrorKind.UPSTREAM_FAILED, f"the upstream {target!r} sent what is no JSON") from error


def _logprobs(choice: dict[str, Any]) -> tuple[TokenLogprob, ...] | None:
    entries = list_of(table_of(choice.get("logprobs")).get("content"))
    found = [_logprob(entry) for entry in entries if isinstance(entry, dict)]
    return tuple(found) or None


def _logprob(entry: dict[str, Any]) -> TokenLogprob:
    top = [table_of(other) for other in list_of(entry.get("top_logprobs"))]
    return TokenLogprob(
        UNKNOWN_TOKEN,
        _piece(entry),
        number_of(entry.get("logprob")),
        tuple((UNKNOWN_TOKEN, _piece(other), number_of(other.get("logprob"))) for other in top),
    )


def _piece(entry: dict[str, Any]) -> bytes:
    given = entry.get("bytes")
    if isinstance(given, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in given):
        return bytes(given)
    return text_of(entry.get("token")).encode("utf-8", "replace")

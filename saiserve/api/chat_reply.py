"""Chat Completions, outgoing: chunks of a stream and the whole completion.

Stream states per answer: nothing sent → roles sent (one chunk per choice, ascending) → deltas → each choice finished
once → usage (when asked for) and `[DONE]`. After an error nothing follows: no finish, no `[DONE]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from saiserve.api import sse
from saiserve.api.chat_calls import CallForm, CallStream
from saiserve.api.errors import ErrorStyle, error_object
from saiserve.api.gathered import GatheredAnswer, GatheredChoice, finish_kind
from saiserve.api.openai_common import FINISH_REASONS, logprob_entries, usage_object
from saiserve.api.timings import FINGERPRINT, Stopwatch, progress_object, timings_object
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
from saiserve.engines.messages import TokenLogprob

DONE = b"data: [DONE]\n\n"
FUNCTIONS = CallForm()


def _no_clock() -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class ChatHead:
    """What every chunk and every whole reply begins with."""

    completion_id: str
    created: int
    model: str
    prompt: str | None = None
    """The rendered prompt, for clients that ask for llama-server's `__verbose`."""

    def fields(self, kind: str) -> dict[str, Any]:
        """Return the members, for an `object` of this kind."""
        return {
            "id": self.completion_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
        }

    def verbose(self) -> dict[str, Any]:
        """Return llama-server's `__verbose`, where it was asked for."""
        return {} if self.prompt is None else {"__verbose": {"prompt": self.prompt}}


class ChatStreamEncoder:
    """One streamed chat completion."""

    def __init__(
        self,
        head: ChatHead,
        *,
        choices: int,
        usage: bool,
        form: CallForm = FUNCTIONS,
        clock: Callable[[], float] | None = None,
        timings_per_token: bool = False,
    ) -> None:
        self._head = head.fields("chat.completion.chunk")
        self._verbose = head.verbose()
        self._form = form
        self._clock = clock or _no_clock
        self._watch = Stopwatch(self._clock())
        self._timings_per_token = timings_per_token
        self._calls = [CallStream(form) for _ in range(choices)]
        self._choices = choices
        self._usage = usage
        self._opened = False
        self._called = [False] * choices
        self._ended = False

    def encode(self, event: AnswerEvent) -> bytes:
        """Return the chunks for one event."""
        if self._ended:
            return b""
        if isinstance(event, AnswerFailed):
            self._ended = True
            return sse.event(error_object(event.error, ErrorStyle.OPENAI))
        if isinstance(event, Started):
            self._watch.started(event.prompt_tokens, event.cached_tokens)
        opening = b"" if self._opened else self._open()
        return opening + self._continue(event)

    def keepalive(self) -> bytes:
        """Return a comment."""
        return sse.COMMENT

    def _open(self) -> bytes:
        self._opened = True
        role = {"role": "assistant", "content": None}
        return b"".join(self._delta(choice, role) for choice in range(self._choices))

    def _continue(self, event: AnswerEvent) -> bytes:
        match event:
            case PromptProgress():
                return self._progress(event)
            case TextDelta():
                return self._text(event)
            case ReasoningDelta() if event.text:
                return self._delta(event.choice, {"reasoning_content": event.text})
            case ToolCallStarted():
                self._called[event.choice] = True
                return self._deltas(event.choice, self._calls[event.choice].start(event))
            case ToolCallDelta():
                return self._deltas(event.choice, self._calls[event.choice].add(event))
            case ChoiceFinished():
                kind = finish_kind(event.kind, called=self._called[event.choice])
                last = self._deltas(event.choice, self._calls[event.choice].close())
                return last + self._delta(event.choice, {}, finish=_finish_reason(kind, self._form))
            case Usage():
                return self._end(event)
        return b""

    def _text(self, event: TextDelta) -> bytes:
        timings = self._watch.token(self._clock(), event) if self._timings_per_token else None
        if not event.text and not event.logprobs:
            return b""
        # Tokens without text may end an answer; a delta with empty content would read as the beginning of one.
        delta = {"content": event.text} if event.text else {}
        return self._delta(event.choice, delta, logprobs=event.logprobs, timings=timings)

    def _progress(self, event: PromptProgress) -> bytes:
        now = self._clock()
        body: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": None}
        extra: dict[str, Any] = {"prompt_progress": progress_object(event, self._watch.elapsed(now))}
        if self._timings_per_token:
            extra["timings"] = self._watch.prompt(now, event)
        return sse.event({**self._head, "choices": [body], **extra})

    def _deltas(self, choice: int, deltas: Iterable[dict[str, Any]]) -> bytes:
        return b"".join(self._delta(choice, delta) for delta in deltas)

    def _delta(
        self,
        choice: int,
        delta: dict[str, Any],
        *,
        finish: str | None = None,
        logprobs: tuple[TokenLogprob, ...] | None = None,
        timings: dict[str, Any] | None = None,
    ) -> bytes:
        body: dict[str, Any] = {"index": choice, "delta": delta, "finish_reason": finish}
        if logprobs is not None:
            body["logprobs"] = {"content": logprob_entries(logprobs), "refusal": None}
        extra = {} if timings is None else {"timings": timings}
        return sse.event({**self._head, "choices": [body], **extra})

    def _end(self, usage: Usage) -> bytes:
        self._ended = True
        if not self._usage:
            return DONE
        last = {"choices": [], "usage": usage_object(usage), "timings": timings_object(usage), **self._verbose}
        return sse.event({**self._head, **last}) + DONE


class ChatCollector:
    """One whole chat completion."""

    def __init__(self, head: ChatHead, *, choices: int, form: CallForm = FUNCTIONS) -> None:
        self._head = head.fields("chat.completion") | head.verbose()
        self._form = form
        self._answer = GatheredAnswer.empty(choices)
        self.add = self._answer.add

    def body(self) -> dict[str, Any]:
        """Return the completion."""
        choices = [self._choice(index, choice) for index, choice in enumerate(self._answer.choices)]
        usage = self._answer.usage
        return {**self._head, "choices": choices, "usage": usage_object(usage), "timings": timings_object(usage)}

    def _choice(self, index: int, choice: GatheredChoice) -> dict[str, Any]:
        content = choice.text if choice.text or not choice.calls else None
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if choice.reasoning:
            message["reasoning_content"] = choice.reasoning
        if choice.calls:
            message |= self._form.message_fields(choice.calls)
        logprobs = None if choice.logprobs is None else {"content": logprob_entries(choice.logprobs), "refusal": None}
        finish = _finish_reason(choice.finish, self._form)
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish}


def _finish_reason(kind: StopKind, form: CallForm) -> str:
    return "function_call" if form.legacy and kind is StopKind.TOOL_CALLS else FINISH_REASONS[kind]

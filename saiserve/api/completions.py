"""Completions (text in, text out): schema, meaning, stream and whole reply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from saiserve import limits
from saiserve.api import sse
from saiserve.api.body import decode, invalid
from saiserve.api.chat_schema import StreamOptions
from saiserve.api.context import Origin
from saiserve.api.errors import ErrorStyle, error_object
from saiserve.api.gathered import GatheredAnswer
from saiserve.api.openai_common import FINISH_REASONS, finite, token_text, usage_object
from saiserve.api.prompts import PlainPrompt, prompts_of
from saiserve.api.sampling import (
    Choices,
    Count,
    SamplingFields,
    choices_of,
    grammar_constraint,
    max_tokens_of,
    sampling_of,
    stop_of,
)
from saiserve.api.timings import FINGERPRINT, Stopwatch, timings_object
from saiserve.chat.events import AnswerEvent, AnswerFailed, ChoiceFinished, TextDelta, Usage
from saiserve.chat.request import Dialect, GenerationRequest
from saiserve.engines.messages import TokenLogprob

MAX_TOKENS_DEFAULT = 16
"""What the public API gives a body without `max_tokens`."""

TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
PromptBody = str | list[str | TokenId | list[TokenId]]


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A decoded body."""

    request: GenerationRequest
    """Without its prompt."""
    prompts: tuple[PlainPrompt, ...]
    echo: bool
    """Whether each answer begins with its prompt."""
    suffix: str
    """What is to stand behind the answer."""
    timings_per_token: bool
    is_unwritten: bool = False
    """Whether no token is to be made (`max_tokens: 0`)."""


class CompletionBody(SamplingFields, kw_only=True):
    """The body of `POST /v1/completions`; fields not listed are ignored."""

    prompt: PromptBody
    model: str | None = None
    max_tokens: Count | None = None
    n_predict: Count | None = None
    n: Choices = 1
    best_of: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool = False
    suffix: str = ""
    logprobs: Annotated[int, Meta(ge=0, le=5)] | bool | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    timings_per_token: bool = False
    user: str = ""
    prompt_cache_key: str = ""


def decode_completion(data: bytes, origin: Origin) -> CompletionRequest:
    """Return what a body asks for.

    Raises:
        ApiError: 400; `param` names the field at fault.
    """
    body = decode(data, CompletionBody)
    model = origin.model(body.model)
    card = origin.card(model)
    is_upstream = card is not None and card.is_upstream
    logprobs = (0 if body.logprobs else None) if isinstance(body.logprobs, bool) else body.logprobs
    if body.echo and (logprobs is not None or body.n_probs) and not is_upstream:
        raise invalid(
            "echo: together with logprobs is not served; the prompt's own log-probabilities are not kept.", "echo"
        )
    if body.best_of is not None and body.best_of > body.n:
        raise invalid("best_of: answers are not ranked here; leave it out or let it equal n.", "best_of")
    prompts = _prompts(body)
    given = body.max_tokens if body.max_tokens is not None else body.n_predict
    request = GenerationRequest(
        id=origin.request_id,
        dialect=Dialect.COMPLETIONS,
        model=model,
        sampling=sampling_of(body, origin.draw_seed, logprobs),
        max_tokens=_max_tokens(given),
        stop=stop_of(body.stop),
        choices=choices_of(body.n),
        constraint=grammar_constraint(body),
        stream=body.stream,
        stream_usage=body.stream_options is not None and body.stream_options.include_usage,
        conversation=body.prompt_cache_key or origin.conversation,
        key_name=origin.key_name,
        raw=data,
        created=origin.created,
        is_fresh=not body.cache_prompt,
        is_part=len(prompts) > 1 or (not is_upstream and (body.echo or bool(body.suffix))),
    )
    if is_upstream:  # it echoes and fills in by itself
        return CompletionRequest(request, prompts, echo=False, suffix="", timings_per_token=False)
    return CompletionRequest(request, prompts, body.echo, body.suffix, body.timings_per_token, is_unwritten=given == 0)


def _max_tokens(given: int | None) -> int | None:
    """Return the limit on the answer; 0 is one on this route alone: nothing but the prompt is wanted."""
    if given is None:
        return MAX_TOKENS_DEFAULT
    return 0 if given == 0 else max_tokens_of(given, "max_tokens")


def _prompts(body: CompletionBody) -> tuple[PlainPrompt, ...]:
    prompts = prompts_of(body.prompt)
    if len(prompts) * body.n > limits.PROMPT_CHOICES_MAX:
        raise invalid(f"prompt: prompts times n is at most {limits.PROMPT_CHOICES_MAX}.", "prompt")
    if body.suffix and any(prompt.text is None for prompt in prompts):
        raise invalid("suffix: needs prompts that are texts.", "suffix")
    return prompts


class _LegacyLogprobs:
    """The four parallel arrays of the old `logprobs` object; offsets run on over a choice."""

    def __init__(self) -> None:
        self._offset = 0

    def object(self, logprobs: list[TokenLogprob] | tuple[TokenLogprob, ...]) -> dict[str, Any]:
        """Return the object for the next tokens."""
        tokens = [token_text(entry.piece) for entry in logprobs]
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [finite(entry.logprob) for entry in logprobs],
            "top_logprobs": [
                {token_text(piece): finite(logprob) for _, piece, logprob in entry.top} for entry in logprobs
            ],
            "text_offset": offsets,
        }


def completion_head(completion_id: str, created: int, model: str) -> dict[str, Any]:
    """Return what every chunk and every whole reply begins with."""
    return {
        "id": completion_id,
        "object": "text_completion",
        "created": created,
        "model": model,
        "system_fingerprint": FINGERPRINT,
    }


class CompletionStreamEncoder:
    """One streamed text completion: text chunks → a finish per choice → usage (when asked for) and `[DONE]`."""

    def __init__(
        self,
        *,
        completion_id: str,
        created: int,
        model: str,
        choices: int,
        usage: bool,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._head = completion_head(completion_id, created, model)
        self._usage = usage
        self._clock = clock
        self._watch = Stopwatch(clock() if clock is not None else 0.0)
        self._logprobs = [_LegacyLogprobs() for _ in range(choices)]
        self._ended = False

    def encode(self, event: AnswerEvent) -> bytes:
        """Return the chunks for one event."""
        if self._ended:
            return b""
        match event:
            case AnswerFailed():
                self._ended = True
                return sse.event(error_object(event.error, ErrorStyle.OPENAI, field="prompt"))
            case TextDelta() if event.text or event.logprobs:
                given = event.logprobs
                logprobs = None if given is None else self._logprobs[event.choice].object(given)
                timings = self._watch.token(self._clock(), event) if self._clock is not None else None
                return self._chunk(event.choice, event.text, logprobs, timings=timings)
            case ChoiceFinished():
                return self._chunk(event.choice, "", None, FINISH_REASONS[event.kind])
            case Usage():
                self._ended = True
                timings = timings_object(event)
                last = {**self._head, "choices": [], "usage": usage_object(event), "timings": timings}
                return (sse.event(last) if self._usage else b"") + b"data: [DONE]\n\n"
        return b""

    def keepalive(self) -> bytes:
        """Return a comment."""
        return sse.COMMENT

    def _chunk(
        self,
        index: int,
        text: str,
        logprobs: dict[str, Any] | None,
        finish: str | None = None,
        timings: dict[str, Any] | None = None,
    ) -> bytes:
        choice = {"text": text, "index": index, "logprobs": logprobs, "finish_reason": finish}
        return sse.event({**self._head, "choices": [choice], **({} if timings is None else {"timings": timings})})


class CompletionCollector:
    """One whole text completion."""

    def __init__(self, *, completion_id: str, created: int, model: str, choices: int) -> None:
        self._head = completion_head(completion_id, created, model)
        self._answer = GatheredAnswer.empty(choices)
        self.add = self._answer.add

    def body(self) -> dict[str, Any]:
        """Return the completion."""
        choices = [
            {
                "text": choice.text,
                "index": index,
                "logprobs": None if choice.logprobs is None else _LegacyLogprobs().object(choice.logprobs),
                "finish_reason": FINISH_REASONS[choice.finish],
            }
            for index, choice in enumerate(self._answer.choices)
        ]
        usage = self._answer.usage
        return {**self._head, "choices": choices, "usage": usage_object(usage), "timings": timings_object(usage)}

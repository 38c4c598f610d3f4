"""llama-server's native results: chunks of a stream, each prompt's last one with all that is known, or one whole body.

Stream states per prompt: partial results with `stop` false → one final result with `stop` true, counts and timings.
There is no `[DONE]`; after an error nothing follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from saiserve.api import sse
from saiserve.api.errors import ErrorStyle, error_object
from saiserve.api.gathered import GatheredAnswer, GatheredChoice
from saiserve.api.native import NativeFields, NativeRequest
from saiserve.api.openai_common import finite, token_text
from saiserve.api.sampling import sampling_of
from saiserve.api.timings import Stopwatch, progress_object, timings_object
from saiserve.chat.events import (
    AnswerEvent,
    AnswerFailed,
    ChoiceFinished,
    PromptProgress,
    Started,
    StopKind,
    TextDelta,
    Usage,
)
from saiserve.chat.request import Dialect, GenerationRequest
from saiserve.engines.messages import TokenLogprob

STOP_TYPES: dict[StopKind, str] = {
    StopKind.END: "eos",
    StopKind.STOP_STRING: "word",
    StopKind.LENGTH: "limit",
}


class NativeShape:
    """What final results say beside the answer itself; one for each request."""

    def __init__(self, asked: NativeRequest, requests: Sequence[GenerationRequest], texts: Sequence[str]) -> None:
        self._fields = asked.fields
        self._model = asked.request.model
        self._settings = generation_settings(asked.request, asked.fields)
        self._requests = requests
        self._texts = texts
        self.is_final = asked.request.sampling.after_stages

    def final(self, index: int, choice: GatheredChoice, tokens: list[int], usage: Usage, content: str) -> Any:
        """Return the last result of one choice."""
        request = self._requests[index // self._requests[0].choices]
        is_cut = choice.finish is StopKind.LENGTH
        made = usage.completion_tokens
        body: dict[str, Any] = {
            "index": index,
            "content": content,
            "tokens": tokens,
            "id_slot": -1,
            "stop": True,
            "model": self._model,
            "tokens_predicted": made,
            "tokens_evaluated": usage.prompt_tokens,
            "generation_settings": self._settings,
            "prompt": self._texts[index // request.choices],
            "has_new_line": "\n" in choice.text,
            "truncated": is_cut and (request.max_tokens is None or made < request.max_tokens),
            "stop_type": STOP_TYPES.get(choice.finish, "none"),
            "stopping_word": choice.stop_string or "",
            "tokens_cached": usage.cached_tokens,
            "timings": timings_object(usage),
        }
        if choice.logprobs and not self._fields.stream:
            body["completion_probabilities"] = probabilities(choice.logprobs, is_final=self.is_final)
        return _chosen(body, self._fields.response_fields)


def generation_settings(request: GenerationRequest, fields: NativeFields) -> dict[str, Any]:
    """Return llama-server's `generation_settings`."""
    sampling = request.sampling
    limit = -1 if request.max_tokens is None else request.max_tokens
    return {
        "seed": sampling.seed,
        "temperature": sampling.temperature,
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "top_n_sigma": -1.0,
        "xtc_probability": sampling.xtc_probability,
        "xtc_threshold": sampling.xtc_threshold,
        "typical_p": sampling.typical_p,
        "repeat_last_n": sampling.repeat_last_n,
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "dry_multiplier": sampling.dry_multiplier,
        "dry_base": sampling.dry_base,
        "dry_allowed_length": sampling.dry_allowed_length,
        "dry_penalty_last_n": sampling.dry_penalty_last_n,
        "dry_sequence_breakers": list(sampling.dry_sequence_breakers),
        "mirostat": sampling.mirostat,
        "mirostat_tau": sampling.mirostat_tau,
        "mirostat_eta": sampling.mirostat_eta,
        "adaptive_target": -1.0,
        "adaptive_decay": 0.0,
        "stop": list(request.stop),
        "max_tokens": limit,
        "n_predict": limit,
        "ignore_eos": sampling.ignore_eos,
        "stream": request.stream,
        "logit_bias": [{"bias": bias, "token": token} for token, bias in sampling.logit_bias],
        "n_probs": sampling.logprobs or 0,
        "grammar": fields.grammar or "",
        "timings_per_token": fields.timings_per_token,
        "post_sampling_probs": sampling.after_stages,
    }


def default_settings(model: str) -> dict[str, Any]:
    """Return the settings of a request that sets none."""
    fields = NativeFields()
    request = GenerationRequest(
        id="", dialect=Dialect.COMPLETIONS, model=model, sampling=sampling_of(fields, _any_seed, None)
    )
    return generation_settings(request, fields)


def _any_seed() -> int:
    """Return llama.cpp's word for a seed that is drawn."""
    return 2**32 - 1


def probabilities(logprobs: Sequence[TokenLogprob], *, is_final: bool) -> list[dict[str, Any]]:
    """Return `completion_probabilities`: log-probabilities of the model, or what the samplers left as probabilities."""
    top = "top_probs" if is_final else "top_logprobs"
    return [
        {
            **_token(entry.token, entry.piece, entry.logprob, is_final=is_final),
            top: [_token(*other, is_final=is_final) for other in entry.top],
        }
        for entry in logprobs
    ]


def _token(token: int, piece: bytes, logprob: float, *, is_final: bool) -> dict[str, Any]:
    value = {"prob": math.exp(logprob)} if is_final else {"logprob": finite(logprob)}
    return {"id": token, "token": token_text(piece), "bytes": list(piece), **value}


def _chosen(body: dict[str, Any], fields: list[str]) -> dict[str, Any]:
    """Return only the members that `response_fields` names; `a/b` is member b of a."""
    if not fields:
        return body
    chosen: dict[str, Any] = {}
    for path in fields:
        value: Any = body
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            chosen[path] = value
    return chosen


class NativeStreamEncoder:
    """One streamed native completion."""

    def __init__(self, shape: NativeShape, asked: NativeRequest, choices: int, now: Callable[[], float]) -> None:
        self._shape = shape
        self._answer = GatheredAnswer.empty(choices)
        self._prompt_tokens = 0
        self._made = [0] * choices
        self._has_timings = asked.fields.timings_per_token
        self._now = now
        self._watch = Stopwatch(now())
        self._ended = False

    def encode(self, event: AnswerEvent) -> bytes:
        """Return the chunks for one event."""
        if self._ended:
            return b""
        self._answer.add(event)
        match event:
            case AnswerFailed():
                self._ended = True
                return sse.event(error_object(event.error, ErrorStyle.LLAMA))
            case Started():
                self._prompt_tokens = event.prompt_tokens
                self._watch.started(event.prompt_tokens, event.cached_tokens)
            case PromptProgress():
                return self._progress(event)
            case TextDelta() if event.text or event.tokens:
                return self._partial(event)
            case ChoiceFinished(usage=Usage() as usage):
                choice = self._answer.choices[event.choice]
                return sse.event(self._shape.final(event.choice, choice, [], usage, ""))
        return b""

    def keepalive(self) -> bytes:
        """Return a comment."""
        return sse.COMMENT

    def _body(self, index: int, content: str, tokens: Sequence[int]) -> dict[str, Any]:
        return {
            "index": index,
            "content": content,
            "tokens": list(tokens),
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": self._made[index],
            "tokens_evaluated": self._prompt_tokens,
        }

    def _partial(self, event: TextDelta) -> bytes:
        self._made[event.choice] += len(event.tokens)
        body = self._body(event.choice, event.text, event.tokens)
        if self._has_timings:
            body["timings"] = self._watch.token(self._now(), event)
        if event.logprobs:
            body["completion_probabilities"] = probabilities(event.logprobs, is_final=self._shape.is_final)
        return sse.event(body)

    def _progress(self, event: PromptProgress) -> bytes:
        now = self._now()
        body = self._body(0, "", ())
        if self._has_timings:
            body["timings"] = self._watch.prompt(now, event)
        body["prompt_progress"] = progress_object(event, self._watch.elapsed(now))
        return sse.event(body)


class NativeCollector:
    """The results of one native completion: one body, or a list of them."""

    def __init__(self, shape: NativeShape, asked: NativeRequest, choices: int) -> None:
        self._shape = shape
        self._returns_tokens = asked.fields.return_tokens
        self._is_list = asked.is_list
        self._answer = GatheredAnswer.empty(choices)
        self._tokens: list[list[int]] = [[] for _ in range(choices)]
        self._usages = [Usage(0, 0, 0)] * choices

    def add(self, event: AnswerEvent) -> None:
        """Take in one event."""
        self._answer.add(event)
        if isinstance(event, TextDelta) and self._returns_tokens:
            self._tokens[event.choice] += event.tokens
        elif isinstance(event, ChoiceFinished) and event.usage is not None:
            self._usages[event.choice] = event.usage

    def body(self) -> Any:
        """Return the result, or the list of results."""
        results = [
            self._shape.final(index, choice, self._tokens[index], self._usages[index], choice.text)
            for index, choice in enumerate(self._answer.choices)
        ]
        return results if self._is_list else results[0]

"""llama-server's native `/completion` and `/infill`, incoming: their bodies and what these mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from saiserve import limits
from saiserve.api.bias import bias_pairs, text_pairs
from saiserve.api.body import decode, invalid
from saiserve.api.context import Origin
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
from saiserve.chat.request import Dialect, GenerationRequest


class NativeFields(SamplingFields, kw_only=True):
    """What both native bodies share; fields not listed are ignored."""

    model: str | None = None
    n_predict: Count | None = None
    max_tokens: Count | None = None
    n: Choices = 1
    n_cmpl: Choices | None = None
    stream: bool = False
    post_sampling_probs: bool = False
    timings_per_token: bool = False
    return_progress: bool = False
    response_fields: Annotated[list[Annotated[str, Meta(max_length=200)]], Meta(max_length=100)] = msgspec.field(
        default_factory=list
    )


class NativeBody(NativeFields, kw_only=True):
    """The body of `POST /completion`; fields not listed are ignored."""

    prompt: Any


class ExtraFile(msgspec.Struct):
    """A file beside the one that is filled in."""

    text: str
    filename: str = "tmp"


class InfillBody(NativeFields, kw_only=True):
    """The body of `POST /infill`; fields not listed are ignored."""

    input_prefix: str
    input_suffix: str
    input_extra: Annotated[list[ExtraFile], Meta(max_length=limits.PROMPTS_MAX)] = msgspec.field(default_factory=list)
    prompt: str = ""


@dataclass(frozen=True, slots=True)
class NativeRequest:
    """A decoded body."""

    request: GenerationRequest
    """Without its prompt."""
    prompts: tuple[PlainPrompt, ...]
    text_bias: tuple[tuple[str, float], ...]
    is_list: bool
    """Whether the answer is a list, one result for each prompt."""
    fields: NativeFields


def decode_native(data: bytes, origin: Origin) -> NativeRequest:
    """Return what a `/completion` body asks for.

    Raises:
        ApiError: 400; `param` names the field at fault.
    """
    body = decode(data, NativeBody)
    prompts = prompts_of(body.prompt, are_objects_taken=True)
    is_list = isinstance(body.prompt, list) and not isinstance(body.prompt[0], int)
    return native_request(body, prompts, origin, data, is_list=is_list)


def native_request(
    body: NativeFields, prompts: tuple[PlainPrompt, ...], origin: Origin, data: bytes, *, is_list: bool = False
) -> NativeRequest:
    """Return a native body's meaning with prompts that are already found."""
    choices = choices_of(body.n) if body.n_cmpl is None else choices_of(body.n_cmpl, "n_cmpl")
    if len(prompts) * choices > limits.PROMPT_CHOICES_MAX:
        raise invalid(f"prompt: prompts times n is at most {limits.PROMPT_CHOICES_MAX}.", "prompt")
    given = body.n_predict if body.n_predict is not None else body.max_tokens
    sampling = sampling_of(body, origin.draw_seed, None, text_bias=True)
    request = GenerationRequest(
        id=origin.request_id,
        dialect=Dialect.COMPLETIONS,
        model=origin.model(body.model),
        sampling=msgspec.structs.replace(sampling, after_stages=body.post_sampling_probs),
        max_tokens=max_tokens_of(given, "n_predict"),
        stop=stop_of(body.stop),
        choices=choices,
        constraint=grammar_constraint(body),
        stream=body.stream,
        conversation=origin.conversation,
        key_name=origin.key_name,
        created=origin.created,
        progress=body.return_progress and body.stream,
        is_fresh=not body.cache_prompt,
    )
    return NativeRequest(request, prompts, text_pairs(bias_pairs(body.logit_bias)), is_list or choices > 1, body)

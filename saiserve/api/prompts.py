"""Plain prompts in all their forms: text, tokens, both in one row, llama-server's objects, and several at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import msgspec

from saiserve import limits
from saiserve.api.body import invalid
from saiserve.api.context import Api, Origin
from saiserve.chat.request import Dialect, GenerationRequest
from saiserve.engines.messages import Counted, Sampling
from saiserve.engines.packed import ids_of, spelled
from saiserve.errors import ApiError, ErrorKind

TOKEN_MAX = 2**31 - 1
Row = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class PlainPrompt:
    """One prompt: a text, or a row of tokens and texts between them."""

    text: str | None = None
    row: Row = ()


def prompts_of(given: Any, *, are_objects_taken: bool = False) -> tuple[PlainPrompt, ...]:
    """Return the prompts a body's `prompt` means; a list that begins with a token is one prompt, else several.

    Raises:
        ApiError: 400 for an empty prompt, too many, or what is none.
    """
    if not isinstance(given, list) or (given and isinstance(given[0], int)):
        return (_prompt(given, "prompt", are_objects_taken=are_objects_taken),)
    if not given:
        raise invalid("prompt: must not be empty.", "prompt")
    if len(given) > limits.PROMPTS_MAX:
        raise invalid(f"prompt: at most {limits.PROMPTS_MAX} prompts are taken in one request.", "prompt")
    return tuple(
        _prompt(one, f"prompt[{place}]", are_objects_taken=are_objects_taken) for place, one in enumerate(given)
    )


def _prompt(given: Any, at: str, *, are_objects_taken: bool) -> PlainPrompt:
    if are_objects_taken and isinstance(given, dict):
        if given.get("multimodal_data"):
            raise invalid(f"{at}.multimodal_data: plain prompts take no images; send messages.", at)
        given = given.get("prompt_string")
    if isinstance(given, str) and given:
        return PlainPrompt(text=given)
    if isinstance(given, list) and given and is_row(given):
        return PlainPrompt(row=tuple(given))
    if given in ("", []):
        raise invalid(f"{at}: must not be empty.", at)
    raise invalid(f"{at}: a prompt is a string or an array of token ids and strings.", at)


def is_row(given: list[Any]) -> bool:
    """Whether all of a list are token ids and texts, none empty. Of millions of ids in one look, not in millions."""
    kinds = set(map(type, given))
    if not kinds <= {int, str}:
        return False
    ids = [piece for piece in given if type(piece) is int] if str in kinds else given
    return (not ids or (min(ids) >= 0 and max(ids) <= TOKEN_MAX)) and (str not in kinds or "" not in given)


async def with_prompt(api: Api, request: GenerationRequest, prompt: PlainPrompt) -> GenerationRequest:
    """Return `request` for this prompt; texts among tokens are made tokens by the model's own tokenizer."""
    if prompt.text is not None:
        return replace(request, prompt_text=prompt.text, prompt_tokens=None)
    tokens = await row_tokens(api, request.model, prompt.row, like=request)
    return replace(request, prompt_text=None, prompt_tokens=tokens)


async def row_tokens(api: Api, model: str, row: Row, *, like: GenerationRequest | Origin) -> tuple[int, ...]:
    """Return a row with its texts made tokens; what the model wants in front of a prompt comes before a first text only."""
    if str not in set(map(type, row)):  # a row of millions is nobody's yet: it is looked at in one go
        return cast("tuple[int, ...]", row)
    tokens: list[int] = []
    for piece in row:
        if isinstance(piece, int):
            tokens.append(piece)
        else:
            tokens += await tokens_of(api, model, piece, like=like, is_first=not tokens)
    return tuple(tokens)


async def tokens_of(
    api: Api, model: str, text: str, *, like: GenerationRequest | Origin, is_first: bool = False
) -> Sequence[int]:
    """Return a text's tokens; `is_first` adds what the model wants in front of a prompt."""
    options = {"add_special": is_first, "parse_special": True}
    asked = text_request(model, like, text=text, options=options)
    counted = await api.service.count(asked, want_tokens=True, must_fit=True)
    return known_ids(counted, model)


def known_ids(counted: Counted, model: str) -> Sequence[int]:
    """Return the ids of a counted text.

    Raises:
        ApiError: 501 when only an upstream knows the vocabulary.
    """
    ids = ids_of(counted)
    if ids is None or (counted.pieces is None and counted.packed is None):
        raise ApiError(
            ErrorKind.NOT_SUPPORTED, f"The vocabulary of the model {model} is not at hand: an upstream has it."
        )
    return ids


async def text_of(api: Api, request: GenerationRequest, *, must_fit: bool = True) -> str:
    """Return a plain prompt's text; `must_fit` unless nothing is to be answered."""
    if request.prompt_text is not None:
        return request.prompt_text
    asked = text_request(request.model, request, tokens=request.prompt_tokens)
    counted = await api.service.count(asked, want_tokens=True, must_fit=must_fit)
    known_ids(counted, request.model)
    return spelled(counted).decode("utf-8", "replace")


def text_request(
    model: str,
    like: GenerationRequest | Origin,
    *,
    text: str | None = None,
    tokens: tuple[int, ...] | None = None,
    options: dict[str, Any] | None = None,
) -> GenerationRequest:
    """Return a request that is only counted, never answered; id and key are those of `like`."""
    return GenerationRequest(
        id=like.id if isinstance(like, GenerationRequest) else like.request_id,
        dialect=Dialect.COMPLETIONS,
        model=model,
        sampling=Sampling(seed=0),
        prompt_text=text,
        prompt_tokens=tokens,
        key_name=like.key_name,
        template_options=options or {},
    )


async def with_text_bias(api: Api, request: GenerationRequest, pairs: Sequence[tuple[str, float]]) -> GenerationRequest:
    """Return `request` with the biases of texts too: each of a text's tokens gets it, as with llama-server.

    Raises:
        ApiError: 400 when that makes too many.
    """
    if not pairs:
        return request
    biases = dict(request.sampling.logit_bias)
    for text, bias in pairs:
        biases |= dict.fromkeys(await tokens_of(api, request.model, text, like=request), bias)
    if len(biases) > limits.LOGIT_BIAS_MAX:
        raise invalid(f"logit_bias: its texts have more than {limits.LOGIT_BIAS_MAX} tokens.", "logit_bias")
    sampling = msgspec.structs.replace(request.sampling, logit_bias=tuple(biases.items()))
    return replace(request, sampling=sampling)

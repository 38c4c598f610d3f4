"""Plain completions at an OpenAI-shaped target: the client's own body with its one prompt, and the answer read back.

Servers that have the route understand what this node need not: texts and tokens alike, `suffix`, `echo`.
"""

from __future__ import annotations

from typing import Any

from saiserve.chat.events import AnswerEvent, TextDelta
from saiserve.chat.request import GenerationRequest
from saiserve.engines.messages import TokenLogprob
from saiserve.engines.upstream.openai_decoder import FINISH_KINDS, UNKNOWN_TOKEN, ChatDecoder
from saiserve.engines.upstream.raw import given, with_fields
from saiserve.engines.upstream.shapes import number_of, text_of
from saiserve.engines.upstream.targets import TargetModel


def completion_body(request: GenerationRequest, model: TargetModel, choice: int = 0) -> bytes:
    """The body of `POST /completions` for one choice of one prompt."""
    set_by_client = given(request.raw)
    changes: dict[str, Any] = {"model": model.name}
    without: tuple[str, ...] = ()
    if request.stream:
        changes["stream_options"] = {**(set_by_client.stream_options or {}), "include_usage": True}
    if request.is_part:
        changes["prompt"] = (
            request.prompt_text if request.prompt_text is not None else list(request.prompt_tokens or ())
        )
    if request.choices > 1:
        without = ("n", "best_of")
        if set_by_client.seed is not None:
            changes["seed"] = set_by_client.seed + choice
    return with_fields(request.raw, changes, without=without)


class CompletionDecoder(ChatDecoder):
    """One choice of one text completion: chunks and whole bodies have the same shape."""

    def _delta(self, choice: dict[str, Any], delta: dict[str, Any]) -> list[AnswerEvent]:
        if self._finish is not None:
            return []
        text, logprobs = text_of(choice.get("text")), _logprobs(choice.get("logprobs"))
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish in FINISH_KINDS:
            self._finish = FINISH_KINDS[finish]
        return [TextDelta(self._choice, text, logprobs, is_parsed=True)] if text or logprobs else []


def _logprobs(given: Any) -> tuple[TokenLogprob, ...] | None:
    """The old form's parallel arrays; the first token of an echoed prompt has no number."""
    if not isinstance(given, dict):
        return None
    tokens, numbers, tops = (given.get(name) or [] for name in ("tokens", "token_logprobs", "top_logprobs"))
    if not (isinstance(tokens, list) and isinstance(numbers, list) and len(tokens) == len(numbers)):
        return None
    tops = tops if isinstance(tops, list) and len(tops) == len(tokens) else [{}] * len(tokens)
    return tuple(map(_logprob, tokens, numbers, tops)) or None


def _logprob(token: Any, number: Any, top: Any) -> TokenLogprob:
    others = top.items() if isinstance(top, dict) else ()
    return TokenLogprob(
        UNKNOWN_TOKEN,
        text_of(token).encode("utf-8", "replace"),
        number_of(number),
        tuple((UNKNOWN_TOKEN, str(piece).encode("utf-8", "replace"), number_of(value)) for piece, value in others),
    )

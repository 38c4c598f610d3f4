"""What every dialect's handlers share: the service, the clock, randomness, and facts about the request at hand."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import trio

from saiserve import limits
from saiserve.api.body import invalid
from saiserve.api.http import Call
from saiserve.api.prepare import Prepared, check_images, prepare
from saiserve.api.remote_images import RemoteImages, with_images
from saiserve.api.responses_kept import KeptResponses
from saiserve.api.service import ModelCard, Service
from saiserve.chat.request import GenerationRequest
from saiserve.errors import ApiError, ErrorKind


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request comes from: what a decoder needs beyond the body."""

    request_id: str
    key_name: str
    created: int
    """Unix seconds."""
    draw_seed: Callable[[], int]
    cards: tuple[ModelCard, ...]
    conversation: str = ""
    """What a coding agent's session header says."""

    def model(self, given: str | None) -> str:
        """Return the model asked for; when none is named and only one is ready, that one.

        Raises:
            ApiError: 400 when the choice is open, 404 for a name that cannot be a model's.
        """
        if given is None:
            ready = [card for card in self.cards if card.state == "ready"]
            if len(ready) == 1:
                return ready[0].id
            raise invalid("model: this field is required.", "model")
        if not given or len(given) > limits.MODEL_NAME_CHARACTERS_MAX or not given.isprintable():
            raise model_not_found(given)
        return given

    def card(self, model: str) -> ModelCard | None:
        """Return the model's card by id or alias."""
        return find_card(self.cards, model)


def find_card(cards: tuple[ModelCard, ...], model: str) -> ModelCard | None:
    """Return the card whose id or alias `model` is, in whatever case; ids come first."""
    folded = model.casefold()
    for card in cards:
        if card.id.casefold() == folded:
            return card
    return next((card for card in cards if folded in {alias.casefold() for alias in card.aliases}), None)


def model_not_found(model: str) -> ApiError:
    """Return the error for an unknown model."""
    shown = model if len(model) <= 80 else model[:77] + "..."
    return ApiError(
        ErrorKind.MODEL_NOT_FOUND,
        f"The model {shown!r} does not exist here; GET /v1/models lists those that do.",
        param="model",
    )


T = TypeVar("T")

SESSION_HEADERS = ("x-claude-code-session-id", "session-id", "x-session-affinity", "x-session-id")
"""How coding agents name a session."""


def _unix_now() -> int:
    return int(time.time())


def _draw_seed() -> int:
    return secrets.randbits(63)


def _new_id() -> str:
    return secrets.token_hex(16)


@dataclass(frozen=True, slots=True)
class Api:
    """The node behind the handlers, and where their time and chance come from."""

    service: Service
    unix_now: Callable[[], int] = _unix_now
    draw_seed: Callable[[], int] = _draw_seed
    new_id: Callable[[], str] = _new_id
    keepalive_s: float = limits.KEEPALIVE_COMMENT_S
    responses: KeptResponses = field(default_factory=KeptResponses)
    images: RemoteImages | None = None
    """What fetches images that are named by their URL; None: nothing does."""

    def origin(self, call: Call) -> Origin:
        """Return the facts about a call that decoders need."""
        return Origin(
            request_id=call.unique_id or self.new_id(),
            key_name=call.key_name,
            created=self.unix_now(),
            draw_seed=self.draw_seed,
            cards=self.service.models(),
            conversation=next((call.headers[name] for name in SESSION_HEADERS if name in call.headers), "")[:256],
        )

    def prepared(self, request: GenerationRequest) -> Prepared:
        """Return a request as the model is to see it, and the parser of what it will say."""
        return prepare(request, find_card(self.service.models(), request.model), self._new_call_id)

    async def seeing(self, request: GenerationRequest) -> GenerationRequest:
        """Return a request with the images in place that it only names.

        Raises:
            ApiError: 400 when the model does not see, or an image cannot be had.
        """
        card = find_card(self.service.models(), request.model)
        if card is not None and not card.is_fitted_later:
            check_images(request, card)
        return await with_images(request, self.images)

    def _new_call_id(self) -> str:
        return f"call_{self.new_id()[:24]}"


async def decoded(call: Call, decoder: Callable[..., T], *args: Any) -> T:
    """Run a decoder on a call's body; a large body on a thread, so that the loop goes on meanwhile."""
    if len(call.body) <= limits.BODY_BYTES_ON_LOOP:
        return decoder(call.body, *args)
    return await trio.to_thread.run_sync(decoder, call.body, *args)

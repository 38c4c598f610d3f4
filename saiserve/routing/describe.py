"""From a client's request to what routing may look at: needs, marks and counts, no text."""

from __future__ import annotations

from collections.abc import Iterable

from saiserve.chat.request import GenerationRequest, ImagePart, ToolChoiceMode
from saiserve.routing.candidate import RoutingRequest
from saiserve.routing.prefix import read_prefix


def traits_of(request: GenerationRequest) -> frozenset[str]:
    """What serving the request takes: chat, vision, tools, schema."""
    traits = {"chat"} if request.messages is not None else set()
    if request.tools and request.tool_choice.mode is not ToolChoiceMode.NONE:
        traits.add("tools")
    if request.constraint is not None:
        traits.add("schema")
    if any(isinstance(part, ImagePart) for message in request.messages or () for part in message.parts):
        traits.add("vision")
    return frozenset(traits)


def describe(
    request: GenerationRequest,
    salt: bytes,
    *,
    model: str = "",
    isolation: str = "",
    models: tuple[str, ...] = (),
    fallbacks: tuple[str, ...] = (),
    upstreams: Iterable[str] = (),
) -> RoutingRequest:
    """What routing sees of a request.

    Args:
        salt: the cluster's mark salt, equal on every node.
        model: canonical id or route name; empty takes the name as the client wrote it.
        models, fallbacks, upstreams: what the route allows, see RoutingRequest.
    """
    prefix = read_prefix(request, salt, model=model, isolation=isolation)
    return RoutingRequest(
        id=request.id,
        model=model or request.model,
        traits=traits_of(request),
        marks=prefix.marks,
        conversation=request.conversation or prefix.opening.hex(),
        prompt_tokens=prefix.tokens,
        models=models,
        fallbacks=fallbacks,
        upstreams=frozenset(upstreams),
        scaffold=prefix.scaffold,
        opening=prefix.opening,
        history=prefix.history,
    )

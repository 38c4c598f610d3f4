"""The node's HTTP application: routes in, ASGI out. Authentication and request ids come before any routing."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from secrets import token_hex

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from saiserve import limits
from saiserve.api import (
    embeddings,
    llama_server,
    messages_routes,
    models,
    native_routes,
    openai_routes,
    openapi,
    ops,
    rerank,
    responses_routes,
)
from saiserve.api.context import Api
from saiserve.api.cors import Origins, preflight
from saiserve.api.errors import error_body, error_headers, error_style
from saiserve.api.http import (
    Call,
    Endpoint,
    Message,
    Outcome,
    Receive,
    Reply,
    Scope,
    Send,
    acceptable_request_id,
    send_error,
    send_reply,
)
from saiserve.api.turnstile import Turnstile
from saiserve.api.unread_body import UnreadBody
from saiserve.auth import Auth
from saiserve.errors import ApiError, ErrorKind

logger = logging.getLogger("saiserve.api")

ANY_ORIGIN = Origins()

AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
ApiHandler = Callable[[Api, Call], Awaitable["Reply | Outcome"]]

GET_ROUTES: dict[str, ApiHandler] = {
    "/health": ops.health,
    "/v1/health": ops.health,
    "/ready": ops.ready,
    "/cluster/state": ops.cluster_state,
    "/props": llama_server.props,
    "/slots": llama_server.slots,
    "/openapi.json": openapi.describe,
    "/v1/models": models.list_models,
    "/models": models.list_models,
    "/v1/models/{id:path}": models.get_model,
    "/v1/responses/{id}": responses_routes.get_response,
    "/v1/responses/{id}/input_items": responses_routes.list_input_items,
}
DELETE_ROUTES: dict[str, ApiHandler] = {"/v1/responses/{id}": responses_routes.delete_response}
BODILESS_POSTS = frozenset({"/v1/responses/{id}/cancel"})
"""POST routes that read no body."""

POST_ROUTES: dict[str, ApiHandler] = {
    "/v1/chat/completions": openai_routes.create_chat,
    "/chat/completions": openai_routes.create_chat,
    "/v1/completions": openai_routes.create_completion,
    "/completion": native_routes.complete,
    "/completions": native_routes.complete,
    "/infill": native_routes.infill,
    "/v1/embeddings": embeddings.create_embeddings,
    "/embeddings": embeddings.create_embeddings,
    "/embedding": embeddings.create_native_embeddings,
    "/tokenize": llama_server.tokenize,
    "/detokenize": llama_server.detokenize,
    "/apply-template": llama_server.apply_template,
    "/v1/chat/completions/input_tokens": llama_server.count_chat_tokens,
    "/chat/completions/input_tokens": llama_server.count_chat_tokens,
    "/v1/rerank": rerank.rerank,
    "/rerank": rerank.rerank,
    "/v1/reranking": rerank.rerank,
    "/reranking": rerank.rerank,
    "/v1/responses": responses_routes.create_response,
    "/responses": responses_routes.create_response,
    "/v1/responses/input_tokens": responses_routes.count_input_tokens,
    "/v1/responses/{id}/cancel": responses_routes.cancel_response,
    "/v1/messages": messages_routes.create_message,
    "/v1/messages/count_tokens": messages_routes.count_message_tokens,
}
HEAD_ROUTES: dict[str, ApiHandler] = {"/": ops.nothing, "/api/hello": ops.nothing}


def create_app(
    api: Api,
    auth: Auth,
    *,
    extra_routes: Sequence[BaseRoute] = (),
    origins: Origins = ANY_ORIGIN,
    body_bytes_max: int = limits.BODY_BYTES_MAX,
) -> AsgiApp:
    """Return the ASGI application of a node; `origins` are the web pages that may use it.

    `extra_routes` (console, metrics, admin) are authenticated like the others: see `saiserve.auth.required_access`.
    """
    routes: list[BaseRoute] = [*extra_routes, *_api_routes(api, body_bytes_max)]
    router = Starlette(routes=routes, exception_handlers={HTTPException: _routing_error})
    router.router.redirect_slashes = False
    return _Front(router, auth, origins)


def _api_routes(api: Api, body_bytes_max: int) -> Iterable[BaseRoute]:
    """Yield one route per path, so that a wrong method is told every method the path allows."""
    tables = {"GET": GET_ROUTES, "POST": POST_ROUTES, "DELETE": DELETE_ROUTES, "HEAD": HEAD_ROUTES}
    paths = dict.fromkeys(path for table in tables.values() for path in table)
    turnstile = Turnstile()
    for path in sorted(paths, key=lambda path: "{" in path):
        endpoints = {
            method: Endpoint(
                partial(table[path], api),
                takes_body=method == "POST" and path not in BODILESS_POSTS,
                body_bytes_max=body_bytes_max,
                turnstile=turnstile,
            )
            for method, table in tables.items()
            if path in table
        }
        # Every method ends at its path, so that none goes on to a path with `{id}` that the same words would fit.
        yield Route(path, _ByMethod(endpoints))


class _ByMethod:
    """Chooses among the endpoints of one path."""

    def __init__(self, endpoints: dict[str, Endpoint]) -> None:
        self._endpoints = {"HEAD": endpoints["GET"], **endpoints} if "GET" in endpoints else endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        endpoint = self._endpoints.get(scope["method"])
        if endpoint is None:
            await send_error(scope, send, _method_not_allowed(scope["method"], ", ".join(sorted(self._endpoints))))
            return
        await endpoint(scope, receive, send)


class _Front:
    """Everything that holds for every request, before it is routed."""

    def __init__(self, app: AsgiApp, auth: Auth, origins: Origins) -> None:
        self._app = app
        self._auth = auth
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Give the request an id, check its key, then route it."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            await _refuse_websocket(scope, receive, send)
            return
        unread = UnreadBody(scope["headers"], receive, send)
        receive, send = unread.receive, unread.send
        scope["saiserve.unique_id"] = token_hex(16)
        request_id = _request_id(scope)
        scope["saiserve.request_id"] = request_id
        origin = _header(scope, b"origin").decode("latin-1")
        common = [*_id_headers(request_id), *self._origins.headers(origin)]

        async def send_with_ids(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = dict(message)
                message["headers"] = [*message.get("headers", ()), *common]
            await send(message)

        # An offer that is no whole handshake may be ignored, but here the client waits to hear that it must post.
        is_try = scope["method"] == "GET" and scope["path"] == "/v1/responses"
        if is_try and _header(scope, b"upgrade").lower() == b"websocket":
            await send_error(scope, send_with_ids, _no_websockets())
            return
        if scope["method"] == "OPTIONS":
            requested = _header(scope, b"access-control-request-headers").decode("latin-1")
            await send_reply(send_with_ids, Reply(b"", headers=preflight(requested)))
            return
        try:
            scope["saiserve.key_name"] = self._auth.authenticate(scope["method"], scope["path"], scope["headers"])
        except ApiError as error:
            await send_error(scope, send_with_ids, error)
            return
        await self._app(scope, receive, send_with_ids)


def _id_headers(request_id: str) -> list[tuple[bytes, bytes]]:
    encoded = request_id.encode()
    return [(b"x-request-id", encoded), (b"request-id", encoded)]


def _request_id(scope: Scope) -> str:
    offered = _header(scope, b"x-request-id").decode("latin-1")
    if acceptable_request_id(offered):
        return offered
    return f"req_{scope['saiserve.unique_id']}"


def _header(scope: Scope, name: bytes) -> bytes:
    return next((bytes(value) for key, value in scope["headers"] if key.lower() == name), b"")


async def _routing_error(request: Request, exception: Exception) -> Response:
    """Answer what routing refused, in the style of the path."""
    status = exception.status_code if isinstance(exception, HTTPException) else 500
    path = request.scope["path"]
    if status == 405:
        allowed = dict(getattr(exception, "headers", None) or {}).get("Allow", "")
        error = _method_not_allowed(request.method, allowed)
    else:
        error = ApiError(ErrorKind.NOT_FOUND, _not_found_message(path))
    style = error_style(path)
    body = b"" if request.method == "HEAD" else error_body(error, style, request.scope["saiserve.request_id"])
    headers = dict(error_headers(error, style))
    return Response(body, error.row.status, headers, "application/json")


def _method_not_allowed(method: str, allowed: str) -> ApiError:
    return ApiError(
        ErrorKind.METHOD_NOT_ALLOWED,
        f"{method} is not served on this path; allowed: {allowed}.",
        headers=(("Allow", allowed),),
    )


def _not_found_message(path: str) -> str:
    if path.startswith("/v1/v1/"):
        return (
            f"Nothing is served here: the path has /v1 twice. Take /v1 off the end of the client's base URL; "
            f"the route is {path[3:][:80]}."
        )
    return "Nothing is served on this path."


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        else:
            await send({"type": "lifespan.shutdown.complete"})
            return


def _no_websockets() -> ApiError:
    """Return the answer to a WebSocket try (RFC 9110 §15.5.22); clients that tried it go on with POST at once."""
    return ApiError(
        ErrorKind.UPGRADE_REQUIRED, "WebSockets are not served; use POST.", headers=(("Upgrade", "HTTP/1.1"),)
    )


async def _refuse_websocket(scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a handshake that the server recognised as one."""
    await receive()
    scope["saiserve.unique_id"] = token_hex(16)
    request_id = _request_id(scope)
    error = _no_websockets()
    body = error_body(error, error_style(scope["path"]), request_id)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(b"upgrade", b"HTTP/1.1"), *_id_headers(request_id)]
    await send({"type": "websocket.http.response.start", "status": error.row.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})

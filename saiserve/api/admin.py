"""Operators' routes for the models of one node: what it has, load one, unload one (docs/models.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
from starlette.routing import BaseRoute, Route

from saiserve.api.body import decode
from saiserve.api.http import Call, Endpoint, Reply, json_reply

LOAD, UNLOAD, MODELS, MODEL = "/admin/models/load", "/admin/models/unload", "/admin/models", "/admin/models/{id:path}"


class LoadBody(msgspec.Struct):
    """The body of `POST /admin/models/load`."""

    model: str
    """An id or alias, or what MODELS takes."""
    pin: bool = True
    """Keep it until it is unloaded; false: as if a client had asked for it."""
    wait: bool = True
    """Answer when it serves or has failed; false: at once, with 202."""


class UnloadBody(msgspec.Struct):
    """The body of `POST /admin/models/unload`."""

    model: str


class ModelAdmin(Protocol):
    """What these routes need of a node. Methods raise `ApiError`."""

    def status(self) -> dict[str, Any]:
        """All models of the node, and the memory they share."""
        ...

    def model_status(self, name: str) -> dict[str, Any]:
        """One of them."""
        ...

    async def load(self, name: str, *, pin: bool, wait: bool) -> dict[str, Any]:
        """Load one; its status then."""
        ...

    async def unload(self, name: str) -> dict[str, Any]:
        """Unload one; its status then."""
        ...


async def list_models(admin: ModelAdmin, _call: Call) -> Reply:
    """`GET /admin/models`."""
    return json_reply(admin.status())


async def show_model(admin: ModelAdmin, call: Call) -> Reply:
    """`GET /admin/models/{id}`."""
    return json_reply(admin.model_status(str(call.path_params["id"])))


async def load_model(admin: ModelAdmin, call: Call) -> Reply:
    """`POST /admin/models/load`: 200 with its status once it serves, 202 when that was not waited for."""
    body = decode(call.body, LoadBody)
    status = await admin.load(body.model, pin=body.pin, wait=body.wait)
    return json_reply(status, 200 if status["state"] == "ready" else 202)


async def unload_model(admin: ModelAdmin, call: Call) -> Reply:
    """`POST /admin/models/unload`: 200 once its process is gone."""
    return json_reply(await admin.unload(decode(call.body, UnloadBody).model))


Handler = Callable[[ModelAdmin, Call], Awaitable[Reply]]


def admin_routes(admin: ModelAdmin) -> Sequence[BaseRoute]:
    """The routes, for `saiserve.app.create_app`."""
    table: tuple[tuple[str, str, Handler], ...] = (
        ("GET", MODELS, list_models),
        ("POST", LOAD, load_model),
        ("POST", UNLOAD, unload_model),
        ("GET", MODEL, show_model),
    )
    return [
        Route(path, Endpoint(partial(handler, admin), takes_body=method == "POST"), methods=[method])
        for method, path, handler in table
    ]

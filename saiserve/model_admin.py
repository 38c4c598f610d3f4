"""What operators may do with the models of this node; see `saiserve.api.admin`."""

from __future__ import annotations

from typing import Any

import trio

from saiserve import limits
from saiserve.errors import ApiError, ErrorKind, SettingsError
from saiserve.fleet.facts import ModelState
from saiserve.models.catalog import CatalogEntry, parse_models
from saiserve.node import Node
from saiserve.residency.resident import Resident


class NodeModelAdmin:
    """`saiserve.api.admin.ModelAdmin` for a node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def status(self) -> dict[str, Any]:
        """All models of the node, and the memory they share."""
        residents, now = self._node.residents, trio.current_time()
        return {
            "models": [resident.status(now) for resident in residents.models.values()],
            "memory": {"budget_bytes": residents.loader.budget_bytes, "held_bytes": residents.held_bytes},
        }

    def model_status(self, name: str) -> dict[str, Any]:
        """One of them, or one that was forgotten because it could not be loaded."""
        failed = self._node.residents.failed.get(self._node.resolve(name))
        return (failed or self._known(name)).status(trio.current_time())

    async def load(self, name: str, *, pin: bool, wait: bool) -> dict[str, Any]:
        """Load one; its status then.

        Raises:
            ApiError: 400 for what is no model or cannot be served, 503 when there is no room now or the node stops.
        """
        if self._node.draining:
            raise ApiError(ErrorKind.DRAINING, "this node is about to stop and loads nothing", retry_after_s=1)
        try:
            entry = self._entry(name)
            await self._until_gone(entry.id, in_answers=wait)
            resident = self._node.residents.order(entry, pin=pin)
        except SettingsError as error:
            raise ApiError(ErrorKind.INVALID_REQUEST, str(error), param="model") from error
        life = resident.life
        if wait and life is not None:
            await life.settled.wait()
            if resident.error:
                raise self._failure(resident)
        return resident.status(trio.current_time())

    async def unload(self, name: str) -> dict[str, Any]:
        """Unload one once its answers have ended; its status then.

        Raises:
            ApiError: 404 when this node has no such model.
        """
        resident = self._known(name)
        await self._node.residents.unload(resident.entry.id)
        return resident.status(trio.current_time())

    async def _until_gone(self, model: str, *, in_answers: bool) -> None:
        """Wait out a life that is ending already; one whose answers still end only for who waits for the load anyway."""
        resident = self._node.residents.models.get(model)
        while resident is not None and resident.life is not None:
            if not resident.is_leaving and not (in_answers and resident.state is ModelState.DRAINING):
                return
            await resident.life.ended.wait()

    def _failure(self, resident: Resident) -> ApiError:
        # What did not fit now may fit later; a damaged file will not mend itself.
        if resident.state is ModelState.LOADABLE:
            return ApiError(ErrorKind.MODEL_UNAVAILABLE, resident.error, retry_after_s=limits.LOAD_BACKOFF_FIRST_S)
        return ApiError(ErrorKind.INVALID_REQUEST, resident.error, param="model")

    def _known(self, name: str) -> Resident:
        resident = self._node.residents.models.get(self._node.resolve(name))
        if resident is None:
            known = ", ".join(self._node.residents.models) or "none"
            raise ApiError(
                ErrorKind.MODEL_NOT_FOUND, f"this node has no model {name[:80]!r}; it has {known}", param="model"
            )
        return resident

    def _entry(self, name: str) -> CatalogEntry:
        """The entry behind a name; on a single box, where clients are operators too, only of models it was told of."""
        node = self._node
        entry = node.catalog.entry(name)
        if entry is not None:
            return entry
        if not node.settings.is_clustered:
            raise SettingsError(
                f"{name[:80]!r} is no model this node knows by name: files and addresses can be loaded by this route "
                "only where CLUSTER_SECRET is set, because here every client may use it; name it in MODELS_ON_DEMAND"
            )
        entries = parse_models(name, node.catalog, "the request")
        if len(entries) != 1:
            raise SettingsError("name one model")
        node.catalog = node.catalog.with_entries(entries)
        return entries[0]

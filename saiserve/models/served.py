"""Which models a node is told of beside those it loads at start, and whether its settings for single models fit them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from saiserve.config import Settings
from saiserve.errors import SettingsError
from saiserve.models.catalog import Catalog, CatalogEntry, parse_models


def on_demand_models(
    settings: Settings, at_start: Sequence[CatalogEntry], catalog: Catalog
) -> tuple[CatalogEntry, ...]:
    """The entries of MODELS_ON_DEMAND.

    Raises:
        SettingsError: one is loaded at start too, or a `[model.NAME]` table names a model nobody knows.
    """
    on_demand = parse_models(settings.models_on_demand, catalog, "MODELS_ON_DEMAND")
    twice = {entry.id for entry in at_start} & {entry.id for entry in on_demand}
    if twice:
        raise SettingsError(
            f"MODELS and MODELS_ON_DEMAND both name {min(twice)}: leave it in MODELS to have it loaded at start"
        )
    _check_tables(settings, catalog.with_entries([*at_start, *on_demand]))
    return on_demand


def _check_tables(settings: Settings, catalog: Catalog) -> None:
    for name in settings.model_tables:
        if catalog.entry(name) is None:
            known = sorted(
                {*catalog.entries, *(alias for entry in catalog.entries.values() for alias in entry.aliases)}
            )
            close = difflib.get_close_matches(name, known, n=1)
            hint = f": did you mean {close[0]}?" if close else f"; known are {', '.join(sorted(catalog.entries))}"
            raise SettingsError(f'[model."{name}"] is for a model this node does not know{hint}')

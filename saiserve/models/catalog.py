"""Which models exist by name, and how a name, a path or a URL becomes one.

The catalog is a table (catalog.toml); nothing here touches weights or the network.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from saiserve.errors import SettingsError
from saiserve.limits import MODEL_NAME_CHARACTERS_MAX

DEMO_MODEL = "smollm2-135m"
"""What a node serves when nobody says anything."""
CONTEXT_DEFAULT = 8192
"""Context assumed for a file the catalog does not know, until the file itself says."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One model a node can be told to load."""

    id: str
    source: str
    """`package:`, `parts:`, `hub:`, `path:`, `url:` or `simulated:` and the rest; see catalog.toml."""
    aliases: tuple[str, ...] = ()
    title: str = ""
    sha256: str = ""
    context_tokens: int = CONTEXT_DEFAULT
    capabilities: frozenset[str] = frozenset({"chat", "embeddings"})
    template: str = ""
    """Name of a template in models/templates, or path of a .jinja file; instead of the model file's own."""
    license: str = ""
    is_described: bool = False
    """Whether `capabilities` are said of this very model; else they are assumed, and its template may add to them."""

    @property
    def template_text(self) -> str | None:
        """The template's source, or None when the file's own is to be used."""
        if not self.template:
            return None
        if self.template.endswith(".jinja"):
            return Path(self.template).read_text("utf-8")
        return (resources.files("saiserve.models") / "templates" / f"{self.template}.jinja").read_text("utf-8")


@dataclass(frozen=True, slots=True)
class Catalog:
    """Entries by id, and every other name that leads to one."""

    entries: Mapping[str, CatalogEntry]
    names: Mapping[str, str] = field(default_factory=dict)
    """Folded name or alias to id."""

    def resolve(self, name: str) -> str:
        """The id behind a name a client or operator wrote; an unknown name is its own id."""
        return self.names.get(_fold(name), name)

    def entry(self, name: str) -> CatalogEntry | None:
        """The entry behind a name, or None."""
        return self.entries.get(self.resolve(name))

    def aliases(self, model: str) -> tuple[str, ...]:
        """Other names of a model id."""
        entry = self.entries.get(model)
        return entry.aliases if entry else ()

    def with_entries(self, extra: Iterable[CatalogEntry]) -> Catalog:
        """A catalog that also knows `extra`; a later entry replaces one of the same id."""
        return build_catalog([*self.entries.values(), *extra])


def build_catalog(entries: Iterable[CatalogEntry]) -> Catalog:
    """Index entries by id and alias.

    Raises:
        SettingsError: two entries share a name.
    """
    by_id = {entry.id: entry for entry in entries}
    names: dict[str, str] = {}
    for entry in by_id.values():
        for name in (entry.id, *entry.aliases):
            holder = names.setdefault(_fold(name), entry.id)
            if holder != entry.id:
                raise SettingsError(f"models {holder!r} and {entry.id!r} both use the name {name!r}: rename one")
    return Catalog(by_id, names)


@cache
def builtin_catalog() -> Catalog:
    """The catalog that ships with the server."""
    text = (resources.files("saiserve.models") / "catalog.toml").read_text("utf-8")
    return build_catalog(_entry_from_table(table) for table in tomllib.loads(text)["model"])


def parse_models(text: str, catalog: Catalog, what: str = "MODELS") -> tuple[CatalogEntry, ...]:
    """Read a MODELS setting: ids, aliases, paths, URLs or hub references, comma-separated, each optionally `NAME=`.

    `none` or an empty text is a node without engine. `what` is where the text comes from, for the message.

    Raises:
        SettingsError: an item is none of these, or the same model twice; the message says which.
    """
    items = [item.strip() for item in text.split(",") if item.strip()]
    if not items or items == ["none"]:
        return ()
    entries: list[CatalogEntry] = []
    for item in items:
        entry = _parse_one(item, catalog, what)
        if any(other.id == entry.id for other in entries):
            raise SettingsError(f"{what} names the model {entry.id!r} twice: remove one or give it a name, NAME={item}")
        entries.append(entry)
    return tuple(entries)


def _parse_one(item: str, catalog: Catalog, what: str) -> CatalogEntry:
    name, equals, rest = item.partition("=")
    if equals and _ID.fullmatch(name) and "?" not in name and "://" not in name:
        return replace(_parse_one(rest, catalog, what), id=_checked_id(name), aliases=())
    known = catalog.entry(item)
    if known is not None:
        return known
    if item.startswith("simulated:"):
        return CatalogEntry(id=_checked_id(item[len("simulated:") :].partition("?")[0]), source=item)
    if item.startswith(("http://", "https://")):
        return CatalogEntry(id=_checked_id(_stem(urlsplit(item).path)), source=f"url:{item}")
    if item.startswith("hub:"):
        return CatalogEntry(id=_checked_id(item[len("hub:") :].removesuffix(".gguf")), source=item)
    if item.endswith(".gguf") or item.startswith(("/", "./", "../", "~")):
        return CatalogEntry(id=_checked_id(_stem(item)), source=f"path:{item}")
    known_ids = ", ".join(sorted(catalog.entries))
    raise SettingsError(
        f"{what} names {item!r}, which is no known model ({known_ids}), no path to a .gguf file, no URL and no hub:ORG/REPO/FILE"
    )


def _checked_id(text: str) -> str:
    if len(text) > MODEL_NAME_CHARACTERS_MAX or not _ID.fullmatch(text):
        shown = repr(text) if len(text) <= MODEL_NAME_CHARACTERS_MAX else f"{text[:40]!r}… ({len(text)} characters)"
        raise SettingsError(
            f"MODELS: {shown} cannot be a model id: use letters, digits and . _ : / - , "
            f"at most {MODEL_NAME_CHARACTERS_MAX} characters"
        )
    return text


def _stem(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1].removesuffix(".gguf")


def _fold(name: str) -> str:
    return name.casefold()


def _entry_from_table(table: dict[str, Any]) -> CatalogEntry:
    return CatalogEntry(
        id=table["id"],
        source=table["source"],
        aliases=tuple(table.get("aliases", ())),
        title=table.get("title", ""),
        sha256=table.get("sha256", ""),
        context_tokens=table.get("context", CONTEXT_DEFAULT),
        capabilities=frozenset(table.get("capabilities", ("chat",))),
        template=table.get("template", ""),
        license=table.get("license", ""),
        is_described="capabilities" in table,
    )

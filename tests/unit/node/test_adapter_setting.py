"""LORA as operators write it, and what a node makes of a model's adapters."""

from __future__ import annotations

import pytest

from saiserve.config_values import adapters
from saiserve.errors import SettingsError
from saiserve.models.catalog import CatalogEntry
from saiserve.residency.resident import Resident


def test_adapters_have_a_name_a_path_and_perhaps_a_scale() -> None:
    plain, scaled, odd = adapters("poet=a/poet.gguf, clerk = x@y.gguf@0.5".replace(" = ", "=") + ",neg=n.gguf@-1")
    assert (plain.name, plain.path, plain.scale) == ("poet", "a/poet.gguf", 1.0)
    assert (scaled.name, scaled.path, scaled.scale) == ("clerk", "x@y.gguf", 0.5)
    assert odd.scale == -1.0
    assert adapters("") == ()


@pytest.mark.parametrize(
    "text",
    ["poet", "poet=", "=a.gguf", "a b=c.gguf", "p=a.gguf,p=b.gguf", "p=a.gguf@", "p=a.gguf@x", "p=a.gguf@0", "p=a@999"],
)
def test_what_is_no_adapter_is_named(text: str) -> None:
    with pytest.raises(SettingsError, match="must be adapters"):
        adapters(text)


def test_a_model_serves_itself_and_each_adapter() -> None:
    from saiserve.config import Settings

    resident = Resident(CatalogEntry(id="m", source="path:m.gguf"), Settings(), digest=b"1", adapters={"poet": b"2"})
    assert list(resident.names()) == [("m", b"1"), ("m:poet", b"2")]

"""A name, a path or a URL becomes one model, or a sentence that says why not."""

from __future__ import annotations

import jinja2
import jinja2.sandbox
import pytest

from saiserve.errors import SettingsError
from saiserve.models.catalog import CatalogEntry, build_catalog, builtin_catalog, parse_models


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("4b", "q35-4b"),
        ("4B", "q35-4b"),
        ("27b", "qwen38-27b"),
        ("smollm2-135m", "smollm2-135m"),
        ("gemma", "gemma-3-4b"),
        ("no-such", "no-such"),
    ],
)
def test_names_and_aliases_lead_to_one_id(name: str, model: str) -> None:
    assert builtin_catalog().resolve(name) == model


def test_every_entry_says_what_loading_needs_to_know() -> None:
    for entry in builtin_catalog().entries.values():
        assert entry.source.partition(":")[0] in {"package", "parts", "hub"}
        assert entry.context_tokens > 0
        assert entry.title
        assert entry.license
        assert "chat" in entry.capabilities
        if entry.template:
            assert entry.template_text


@pytest.mark.parametrize(
    ("text", "ids", "source"),
    [
        ("4b", ["q35-4b"], "hub:"),
        ("./a/tiny.gguf", ["tiny"], "path:./a/tiny.gguf"),
        ("mine=./a/tiny.gguf", ["mine"], "path:./a/tiny.gguf"),
        ("fast=4b", ["fast"], "hub:"),
        ("https://example.net/m/x.gguf?download=true", ["x"], "url:https://"),
        ("hub:org/repo:Q5_K_M", ["org/repo:Q5_K_M"], "hub:org/repo"),
        ("simulated:sim?lanes=2&rate=10", ["sim"], "simulated:sim?lanes=2"),
    ],
)
def test_a_models_setting_takes_names_paths_urls_and_hub_references(text: str, ids: list[str], source: str) -> None:
    entries = parse_models(text, builtin_catalog())
    assert [entry.id for entry in entries] == ids
    assert entries[0].source.startswith(source)


def test_none_is_a_node_without_engine() -> None:
    assert parse_models("none", builtin_catalog()) == ()


@pytest.mark.parametrize("text", ["4b,4b", "4b,q35-4b", "no such model", "../../etc/passwd\x00.gguf"])
def test_a_models_setting_that_is_none_of_these_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(SettingsError, match=r"MODELS|model id"):
        parse_models(text, builtin_catalog())


def test_two_entries_may_not_share_a_name() -> None:
    with pytest.raises(SettingsError, match="both use the name"):
        build_catalog([CatalogEntry("a", "path:a", ("x",)), CatalogEntry("b", "path:b", ("X",))])


def test_the_gemma_template_refuses_what_gemma_never_saw() -> None:
    entry = builtin_catalog().entry("gemma-3-270m")
    assert entry is not None
    assert entry.template_text is not None
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)

    def refuse(reason: str) -> None:
        raise jinja2.TemplateRuntimeError(reason)

    template = environment.from_string(entry.template_text, globals={"raise_exception": refuse})

    def render(*roles: str) -> str:
        messages = [{"role": role, "content": f"{role}!"} for role in roles]
        return template.render(messages=messages, add_generation_prompt=True, bos_token="<bos>")

    assert render("system", "user") == (
        "<bos><start_of_turn>user\nsystem!\n\nuser!<end_of_turn>\n<start_of_turn>model\n"
    )
    for wrong in (("user", "user"), ("assistant", "user"), ("system",), ("user", "system", "user"), ("user", "tool")):
        with pytest.raises(jinja2.TemplateRuntimeError, match="Gemma"):
            render(*wrong)

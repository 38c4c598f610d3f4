"""An entry node without the model fits a request as the node that has its template does, whatever the model is called."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from saiserve.api.prepare import Prepared, prepare
from saiserve.chat.events import AnswerEvent, ChoiceFinished, Started, StopKind, TextDelta
from saiserve.chat.request import Tool
from saiserve.config import Settings
from saiserve.engines.llamacpp.protocol import ModelFacts
from saiserve.fleet.facts import decode_metadata, encode_metadata
from saiserve.models.catalog import builtin_catalog, parse_models
from saiserve.node import Node
from saiserve.node_service import NodeService
from saiserve.residency.resident import Resident
from saiserve.residency.source import look_at
from tests.fakes.node import chat, make_node, running
from tests.fixtures import tiny_models
from tests.unit.fleet.test_view import member

TOOL = Tool("run", "", {"type": "object", "properties": {"x": {"type": "integer"}}})


def fit(service: NodeService) -> Prepared:
    (card,) = service.models()
    return prepare(chat("Hi", model="renamed", stop=("i",), tools=(TOOL,)), card, lambda: "call_1")


def said(prepared: Prepared, text: str) -> list[AnswerEvent]:
    events = (Started(1, 0), TextDelta(0, text), ChoiceFinished(0, StopKind.END, None))
    return [parsed for event in events for parsed in prepared.parse(event)]


def remember(entry: Node, holder: Node) -> None:
    entry.take_members([member(holder.settings.node_name, decode_metadata(encode_metadata(holder.facts)))], [])


@pytest.mark.parametrize(
    ("template", "text", "kind"),
    [
        (tiny_models.THINKING, "\nhis", "ReasoningDelta"),
        (tiny_models.LLAMA_CALLS, '{"name": "run", "parameters": {"x": 1}}', "ToolCallStarted"),
        (tiny_models.TEMPLATE, "<think>", "TextDelta"),
    ],
)
async def test_both_entry_nodes_fit_and_parse_alike(tmp_path: Path, template: str, text: str, kind: str) -> None:
    file = tmp_path / "file.gguf"
    tiny_models.llama(file, template=template)
    holder = make_node("none", tmp_path, MODELS_ON_DEMAND=f"renamed={file}", CONTEXT_TOKENS="2048", KV_CELLS="2048")
    entry = make_node("none", tmp_path, NODE_NAME="node-b")
    async with running(holder) as (at_holder, _), running(entry) as (at_entry, _):
        remember(entry, holder)
        here, there = fit(at_holder), fit(at_entry)
        assert there.request == here.request
        assert (here.request.reasoning_marks is not None) == (template == tiny_models.THINKING)
        answer = said(there, text)
        assert answer == said(here, text)
        assert kind in {type(event).__name__ for event in answer}


def looked_at(folder: Path, template: str) -> Resident:
    """A model given by its path, as it is after its file was looked at."""
    file = folder / "any.gguf"
    tiny_models.llama(file, template=template)
    (entry,) = parse_models(str(file), builtin_catalog())
    resident = Resident(entry, Settings())
    look_at(entry, resident.settings, file).note_in(resident)
    return resident


@pytest.mark.parametrize(
    ("template", "more"),
    [(tiny_models.TEMPLATE, set()), (tiny_models.THINKING, {"reasoning"}), (tiny_models.LLAMA_CALLS, {"tools"})],
)
def test_a_model_given_by_path_can_what_its_template_tells(tmp_path: Path, template: str, more: set[str]) -> None:
    assert looked_at(tmp_path, template).capabilities == {"chat", "embeddings"} | more


@pytest.mark.parametrize("shows", [False, True])
def test_a_template_that_names_tools_and_shows_none_has_none(tmp_path: Path, shows: bool) -> None:
    resident = looked_at(tmp_path, tiny_models.LLAMA_CALLS)
    facts = ModelFacts("llama", "full", 1, 260, 2048, 4096, 2048, 2, 1, 32, 0, 100.0, 10.0)
    resident.facts = msgspec.structs.replace(facts, template_caps={"supports_tools": shows})
    resident.note_template_caps()
    assert ("tools" in resident.capabilities) == shows


def test_only_what_the_catalog_describes_keeps_to_its_tags() -> None:
    described, given = parse_models("smollm2,other=./x.gguf", builtin_catalog())
    assert described.is_described
    assert not given.is_described

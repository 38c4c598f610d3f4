"""Constraints on vocabularies that have marks of calls and reasoning as tokens: every answer ends, and fits."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from saiserve.chat.call_pieces import CallArguments, CallBegun, ParsedCall
from saiserve.chat.request import Tool, ToolChoice, ToolChoiceMode
from saiserve.chat.tool_formats import FORMATS
from saiserve.chat.tool_grammar import tool_constraint
from saiserve.chat.tool_parser import ToolCallParser
from saiserve.engines.llamacpp.constraint import ConstraintBroken, ConstraintCompiler
from saiserve.engines.llamacpp.loading import load_worker
from saiserve.engines.llamacpp.settings import EngineSettings
from saiserve.engines.llamacpp.vocabulary import Vocabulary
from saiserve.engines.llamacpp.worker import Worker
from saiserve.engines.messages import Constraint, FinishReason, Sampling
from tests.fixtures import marked_models
from tests.fixtures.marked_models import MARKED, SILENT
from tests.unit.llamacpp.desk import Desk

MARKS = ["<tool_call>", "</tool_call>", "<think>", "[TOOL_CALLS]", "<table>", "<eos>", "<|im_end|>"]
ARGUMENTS = {
    "type": "object",
    "properties": {"sure": {"type": "boolean"}, "mark": {"enum": MARKS}},
    "required": ["sure", "mark"],
    "additionalProperties": False,
}
GO = Tool("go", "", ARGUMENTS, strict=True)
TOOLS = [GO, Tool("<think>", "", {"const": {"mark": "</tool_call>"}}, strict=True)]
PATCH = Tool("patch", grammar=Constraint("lark", 'start: "<table>\\n" LINE?\nLINE: "<think>" | "</think>"'))
DIAL = Tool(
    "dial",
    "",
    {"type": "object", "required": ["input"], "additionalProperties": False},
    grammar=Constraint("regex", "<h1>[0-9]{3}<table>"),
)
END_BIAS = 100.0
"""Makes an answer end where it may."""

REQUIRED, AUTO = ToolChoice(ToolChoiceMode.REQUIRED), ToolChoice()
CHOICES = {
    "required": REQUIRED,
    "one": ToolChoice(ToolChoiceMode.REQUIRED, parallel=False),
    "named": ToolChoice(ToolChoiceMode.NAMED, "go"),
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Desk]:
    """A desk by the name of its vocabulary."""
    folder = tmp_path_factory.mktemp("marked")

    @cache
    def make(name: str) -> Desk:
        settings = EngineSettings(
            model_path=str(marked_models.build(name, folder)), model_id="tiny", context_tokens=1024, cells=2048,
            lanes=4, threads=1, kv_type="f32", flash_attention=False, queue_max=8,
        )  # fmt: skip
        worker, _ = load_worker(settings)
        assert isinstance(worker, Worker)
        return Desk(worker)

    return make


def vocabulary_of(desk: Desk) -> Vocabulary:
    return desk.worker._vocabulary


def samplings(desk: Desk) -> list[Sampling]:
    """Greedy, greedy with log-probabilities (which asks for the whole mask) and drawn."""
    bias = tuple((token, END_BIAS) for token in vocabulary_of(desk).end_tokens)
    greedy = [Sampling(seed=1, temperature=0.0, logit_bias=bias, logprobs=count) for count in (None, 1)]
    return greedy + [Sampling(seed=seed, temperature=1.5, logit_bias=bias) for seed in range(2)]


def calls(name: str, text: str, tools: list[Tool] = TOOLS) -> list[tuple[str, object]]:
    """The calls the parser finds in an answer, with their arguments read."""
    parser = ToolCallParser(FORMATS[MARKED[name].tool_format], tools)
    found: list[list[str]] = []
    for piece in [*parser.feed(text), *parser.finish()]:
        match piece:
            case CallBegun(called):
                found.append([called, ""])
            case ParsedCall(called, arguments):
                found.append([called, arguments])
            case CallArguments(part):
                found[-1][1] += part
            case _:
                assert not str(getattr(piece, "text", "")).strip()
    return [(called, json.loads(arguments)) for called, arguments in found]


@pytest.mark.parametrize(("name", "choice"), list(itertools.product(MARKED, CHOICES)))
def test_a_forced_call_ends_and_is_of_its_schema(name: str, choice: str, desk: Callable[[str], Desk]) -> None:
    at = desk(name)
    constraint = tool_constraint(FORMATS[MARKED[name].tool_format], TOOLS, CHOICES[choice])
    for sampling in samplings(at):
        _, data, finished = at.answer(max_tokens=400, constraint=constraint, sampling=sampling)
        assert finished.reason is FinishReason.STOP
        found = calls(name, data.decode())
        assert len(found) == 1 if choice == "one" else found
        for called, arguments in found:
            assert called in {"go", "<think>"} if choice != "named" else called == "go"
            assert isinstance(arguments, dict)
            assert arguments["mark"] in MARKS


@pytest.mark.parametrize("name", [name for name in MARKED if name != "plain"])
def test_a_forced_call_begins_with_the_models_own_token(name: str, desk: Callable[[str], Desk]) -> None:
    at = desk(name)
    tool_format = FORMATS[MARKED[name].tool_format]
    (opener,) = vocabulary_of(at).tokenise(tool_format.opener, special=True)
    for sampling in (Sampling(seed=1, temperature=0.0, logprobs=1), Sampling(seed=2, temperature=1.0)):
        ids, data, _ = at.answer(
            max_tokens=400, constraint=tool_constraint(tool_format, TOOLS, REQUIRED), sampling=sampling
        )
        assert ids[0] == opener
        assert data.decode().startswith(tool_format.opener)


@pytest.mark.parametrize("name", list(MARKED))
def test_with_auto_a_begun_call_is_held_and_ends(name: str, desk: Callable[[str], Desk]) -> None:
    at = desk(name)
    tool_format = FORMATS[MARKED[name].tool_format]
    held = tool_constraint(tool_format, TOOLS, AUTO)
    either = tool_constraint(tool_format, TOOLS, AUTO, Constraint("json_schema", '{"enum": ["<table>"]}'))
    vocabulary = vocabulary_of(at)
    spelled = vocabulary.tokenise(tool_format.opener, special=False)
    own = vocabulary.tokenise(tool_format.opener, special=True)
    for sampling, (constraint, begun) in itertools.product(
        samplings(at), [(held, own), (held, spelled), (held, [*b"Hm. ", *own]), (either, own)]
    ):
        before = b"".join(map(vocabulary.piece, begun)).decode()
        _, data, finished = at.answer(
            max_tokens=400, constraint=constraint, sampling=sampling, resume_tokens=tuple(begun)
        )
        assert finished.reason is FinishReason.STOP
        assert calls(name, before.removeprefix("Hm. ") + data.decode())
    assert at.answer(max_tokens=9, constraint=held, sampling=samplings(at)[0])[1] == b""


@pytest.mark.parametrize("name", list(MARKED))
def test_free_form_tools_may_be_of_marks(name: str, desk: Callable[[str], Desk]) -> None:
    at = desk(name)
    tool_format = FORMATS[MARKED[name].tool_format]
    for tool, sampling in itertools.product((PATCH, DIAL), samplings(at)):
        if tool is PATCH and tool_format.array:
            continue  # a Lark grammar cannot be said inside a JSON string
        constraint = tool_constraint(tool_format, [tool], CHOICES["one"])
        _, data, finished = at.answer(max_tokens=400, constraint=constraint, sampling=sampling)
        assert finished.reason is FinishReason.STOP
        ((called, arguments),) = calls(name, data.decode(), [tool])
        assert called == tool.name
        assert isinstance(arguments, dict)
        assert arguments["input"].removeprefix("<table>\n") in {"", "<think>", "</think>"} or tool is DIAL


@pytest.mark.parametrize(
    ("name", "kind"), list(itertools.product(MARKED, ["const", "enum", "property", "regex", "lark"]))
)
def test_literals_of_marks_come_out_whole(name: str, kind: str, desk: Callable[[str], Desk]) -> None:
    at = desk(name)
    for mark, sampling in itertools.product(("<tool_call>", "[TOOL_CALLS]", "<table>", "<eos>"), samplings(at)):
        constraint = {
            "const": Constraint("json_schema", json.dumps({"const": mark})),
            "enum": Constraint("json_schema", json.dumps({"enum": [mark]})),
            "property": Constraint("json_schema", json.dumps(closed(mark))),
            "regex": Constraint("regex", f'"{mark}"'.replace("[", r"\[").replace("|", r"\|").replace("/", r"\/")),
            "lark": Constraint("lark", f"start: {json.dumps(json.dumps(mark))}"),
        }[kind]
        _, data, finished = at.answer(max_tokens=400, constraint=constraint, sampling=sampling)
        assert finished.reason is FinishReason.STOP
        assert json.loads(data) == ({mark: 1} if kind == "property" else mark)


def closed(key: str) -> dict[str, object]:
    return {"type": "object", "properties": {key: {"const": 1}}, "required": [key], "additionalProperties": False}


def follows(at: Desk, constraint: Constraint, *parts: str) -> bool:
    """Whether an answer of these parts is let through token by token; a mark that is a token comes as this token."""
    vocabulary, compiler = vocabulary_of(at), at.worker._intake._compiler
    assert isinstance(compiler, ConstraintCompiler)
    matcher = compiler.compile(constraint, ())
    controls = {text: token for token, text in vocabulary.control_tokens.items()}
    for part in parts:
        for token in [controls[part]] if part in controls else vocabulary.tokenise(part, special=False):
            if matcher.forbidden()[token] or not matcher.allows(token):
                return False
            matcher.accept(token)
    return not matcher.forbidden()[min(vocabulary.end_tokens)]


THOUGHTS = {"qwen": ("<think>", "</think>"), "control": ("<think>", "</think>"), "mistral": ("[THINK]", "[/THINK]")}


@pytest.mark.parametrize("name", list(THOUGHTS))
def test_with_auto_a_model_reasons_with_its_own_tokens_and_calls_with_them(
    name: str, desk: Callable[[str], Desk]
) -> None:
    at, (think, thought) = desk(name), THOUGHTS[name]
    tool_format = FORMATS[MARKED[name].tool_format]
    held = tool_constraint(tool_format, [GO], AUTO)
    arguments = '{"sure":true,"mark":"<table>"}'
    call = f'{{"name": "go", "arguments": {arguments}}}'
    call_parts = (
        (tool_format.opener, f"[{call}]")
        if tool_format.array
        else (tool_format.opener, f"\n{call}\n", tool_format.closer)
    )
    assert follows(at, held, think, "hm", thought, "Hello <table>")
    assert follows(at, held, "the prompt began it", thought, "Hello")
    assert follows(at, held, think, "hm", thought, "\n", *call_parts)
    assert follows(at, held, "hm", thought, *call_parts, "\n", think, "done", thought)
    assert follows(at, held, *call_parts)
    assert not follows(at, held, think, tool_format.opener, "x")
    if not tool_format.array:
        assert follows(at, held, *call_parts, "\n", *call_parts)
    once = tool_constraint(tool_format, [GO], ToolChoice(parallel=False))
    assert follows(at, once, think, "hm", thought, *call_parts, "bye", think)
    assert not follows(at, once, *call_parts, "\n", *call_parts)


@pytest.mark.parametrize("name", ["control", "mistral"])
def test_no_text_of_a_schema_asks_for_a_control_token(name: str, desk: Callable[[str], Desk]) -> None:
    at = desk(name)
    tool_format = FORMATS[MARKED[name].tool_format]
    opener = tool_format.opener
    assert not follows(at, Constraint("json_schema", json.dumps({"const": opener})), '"', opener, '"')
    assert not follows(at, Constraint("json_schema", '{"type": "string"}'), '"', opener, '"')
    assert not follows(at, Constraint("lark", 'start: "<|im_start|>"'), "<|im_start|>")
    tool = Tool("t", "", {"const": {"a": opener}}, strict=True)
    for choice in (REQUIRED, AUTO):
        head = ("[" if tool_format.array else "\n") + '{"name": "t", "arguments": {"a":"'
        assert not follows(at, tool_constraint(tool_format, [tool], choice), opener, head, opener)
    for hidden in (SILENT, "<|im_start|>"):
        assert not follows(at, tool_constraint(tool_format, TOOLS, AUTO), hidden)


def test_a_token_that_does_not_fit_breaks_the_constraint(desk: Callable[[str], Desk]) -> None:
    at = desk("plain")
    compiler = at.worker._intake._compiler
    matcher = compiler.compile(Constraint("json_object"), ())
    with pytest.raises(ConstraintBroken):
        matcher.accept(ord("x"))


def test_a_grammar_with_markers_needs_no_tokens_for_them(tmp_path: Path, desk: Callable[[str], Desk]) -> None:
    constraint = Constraint("lark", "start: marker0 (others | token0)? marker1\n", ("<a>", "</a>"))
    assert follows(desk("plain"), constraint, "<a></a>")
    assert not follows(desk("mistral"), constraint, "<a>", "</a", "[THINK]")
    assert follows(desk("mistral"), constraint, "<a>", "[THINK]", "</a>")

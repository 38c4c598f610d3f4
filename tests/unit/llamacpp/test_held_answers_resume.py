"""Answers held to a schema or to a tool's call go on elsewhere at any token, on each kind of memory.

The node that goes on has only the tokens so far: it must hold the rest to the same constraint, say the same, and draw
it from the logits of a cold run, whatever it has of the prompt already.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import jsonschema
import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from saiserve.chat.call_pieces import CallArguments, CallBegun, ParsedCall
from saiserve.chat.request import Tool, ToolChoice, ToolChoiceMode
from saiserve.chat.tool_formats import FORMATS, ToolFormat
from saiserve.chat.tool_grammar import tool_constraint
from saiserve.chat.tool_parser import ToolCallParser
from saiserve.engines.llamacpp.binding import ContextSettings, LlamaContext
from saiserve.engines.llamacpp.job import Job
from saiserve.engines.llamacpp.loading import load_worker
from saiserve.engines.llamacpp.settings import EngineSettings
from saiserve.engines.llamacpp.weights import LlamaModel
from saiserve.engines.llamacpp.worker import Worker
from saiserve.engines.messages import Constraint, FinishReason, Generate, Prompt, Sampling
from tests.fixtures import marked_models, tiny_models
from tests.fixtures.marked_models import MARKED
from tests.unit.llamacpp.desk import Desk
from tests.unit.llamacpp.falling_nodes import Fleet, Node, Script, Told
from tests.unit.llamacpp.reuse_harness import Run, cold_logits

FIRST, SECOND = "first", "second"
TOKENS_MAX = 300
QUESTIONS = 40
CLEAR = 8.0
"""Tolerances between a drawn token and the next: rounding never changes a text that is drawn so."""
SPREAD = 9
"""Of the tokens of an answer at which it is cut, where not every one is tried."""
END_BIAS, BLANK_BIAS = 100.0, -100.0
"""Makes an answer end where it may, and have no blanks but those it must."""
BLANKS = b"\t\n\r "
AUTO, REQUIRED = ToolChoice(), ToolChoice(ToolChoiceMode.REQUIRED, parallel=False)

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 6},
        "size": {"type": "integer", "minimum": 10, "maximum": 999},
        "tags": {"type": "array", "items": {"enum": ["the", "then", "in"]}, "minItems": 2, "maxItems": 3},
        "code": {"type": "string", "pattern": "^[a-f]{2}-[0-9]{3}$"},
        "also": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/pair"}]},
    },
    "required": ["name", "size", "tags", "code", "also"],
    "additionalProperties": False,
    "$defs": {"pair": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}},
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = [Tool("note", "", SCHEMA, strict=True), Tool("stop", "", NOTHING, strict=True)]
ANSWER = Constraint("json_schema", json.dumps(SCHEMA))


@dataclass(frozen=True)
class Kind:
    """A way to hold an answer."""

    constraint: Callable[[ToolFormat], Constraint | None]
    begun: str = ""
    """What the model has said before, `{}` being a call's opener; other nodes drew it."""
    is_call: bool = True


KINDS = {
    "schema": Kind(lambda _format: ANSWER, is_call=False),
    "call": Kind(lambda written: tool_constraint(written, TOOLS, REQUIRED)),
    "call with auto": Kind(lambda written: tool_constraint(written, TOOLS, AUTO), "Hm. {}"),
    "call or schema": Kind(lambda written: tool_constraint(written, TOOLS, AUTO, ANSWER), "{}"),
}

WAYS = ("nothing", "its prompt", "the same again", "its prompt in host memory")
"""What the node that goes on has of it already."""
MODELS = tuple(tiny_models.MODELS)
MARKED_MODELS = tuple(f"marked-{name}" for name in MARKED if name != "plain")
"""Full attention, and tokens of their own for the marks of a call."""


@dataclass
class Stage:
    """Two nodes with one model, and a context that never computed anything else."""

    name: str
    fleet: Fleet
    cold: LlamaContext
    serial: itertools.count[int]
    whole: dict[str, Whole]

    @property
    def format(self) -> ToolFormat:
        marked = MARKED.get(self.name.removeprefix("marked-"))
        return FORMATS[marked.tool_format if marked else "hermes"]

    @property
    def tolerance(self) -> float:
        return tiny_models.tolerance(self.name)

    def begun(self, kind: Kind) -> Script | None:
        """In the model's own tokens where it has them."""
        vocabulary = self.fleet.nodes[FIRST].desk.worker._vocabulary
        before, opener, _ = kind.begun.partition("{}")
        ids = [*vocabulary.tokenise(before, special=False)] if before else []
        ids += vocabulary.tokenise(self.format.opener, special=True) if opener else []
        return Script(tuple(ids), b"".join(map(vocabulary.piece, ids))) if ids else None

    def asked(self, kind: Kind, question: int, isolation: str) -> Generate:
        ends = self.fleet.nodes[FIRST].desk.worker._vocabulary.end_tokens
        bias = {**dict.fromkeys(BLANKS, BLANK_BIAS), **dict.fromkeys(ends, END_BIAS)}
        return Generate(
            f"held-{next(self.serial)}",
            "tiny",
            Prompt(messages=({"role": "user", "content": f"{question} stones and {question % 7} boats"},)),
            Sampling(seed=1, temperature=0.0, logit_bias=tuple(bias.items())),
            max_tokens=TOKENS_MAX,
            constraint=kind.constraint(self.format),
            isolation=isolation,
        )


@dataclass
class Whole:
    """An answer that nobody cut, with what a cold run draws it from."""

    told: Told
    cold: list[NDArray[np.float32]]
    question: int
    begun: Script | None

    @property
    def drawn(self) -> int:
        return len(self.told.tokens) - (len(self.begun.tokens) if self.begun else 0)


@pytest.fixture(
    scope="module", params=[*MODELS, *(pytest.param(name, marks=pytest.mark.slow) for name in MARKED_MODELS)]
)
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A stage for each model."""
    name, folder = request.param, tmp_path_factory.getbasetemp()
    if name in tiny_models.MODELS:
        path = tiny_models.build(name, folder)
    else:
        path = marked_models.build(name.removeprefix("marked-"), folder)
    model = LlamaModel(path)
    cold = LlamaContext(model, ContextSettings(cells=2048, sequences_max=4, kv_type="f32", flash_attention=False))
    fleet = Fleet({one: Node(desk_of(path)) for one in (FIRST, SECOND)})
    yield Stage(name, fleet, cold, itertools.count(), {})
    cold.close()
    model.close()


def desk_of(path: Path) -> Desk:
    settings = EngineSettings(
        model_path=str(path), model_id="tiny", context_tokens=1024, cells=4096, lanes=2, threads=1, kv_type="f32",
        flash_attention=False, queue_max=8,
    )  # fmt: skip
    worker, _ = load_worker(settings)
    assert isinstance(worker, Worker)
    return Desk(worker)


def whole_of(stage: Stage, name: str) -> Whole:
    """The first answer whose every token is clearly the best, so that its text is the same however it is rounded."""
    kind = KINDS[name]
    begun = stage.begun(kind)
    for question in itertools.takewhile(lambda _: name not in stage.whole, range(QUESTIONS)):
        told = stage.fleet.answer(stage.asked(kind, question, f"{name} whole"), [FIRST], begun=begun, weighs=True)
        if told.margin > CLEAR * stage.tolerance:
            start = len(begun.tokens) if begun else 0
            tokens = told.prompt + told.tokens[:start]
            job = Job("whole", tokens, len(told.prompt), TOKENS_MAX)
            drawn = [*told.tokens[start:], 0][: len(told.logits)]
            cold = cold_logits(stage.cold, Run(job, drawn, told.logits))
            stage.whole[name] = Whole(told, cold, question, begun)
    return stage.whole[name]


def assert_near(stage: Stage, logits: list[NDArray[np.float32]], cold: list[NDArray[np.float32]]) -> None:
    assert len(logits) == len(cold)
    worst = max(float(np.abs(one - other).max()) for one, other in zip(logits, cold, strict=True))
    assert worst <= stage.tolerance, worst


def assert_fits(stage: Stage, kind: Kind, told: Told) -> None:
    text = told.data.decode()
    assert told.done.reason is FinishReason.STOP
    if not kind.is_call:
        jsonschema.validate(json.loads(text), SCHEMA)
        return
    called, arguments = "", ""
    parser = ToolCallParser(FORMATS[stage.format.name], TOOLS)
    for piece in [*parser.feed(text), *parser.finish()]:
        match piece:
            case CallBegun(name):
                called = name
            case ParsedCall(name, given):
                called, arguments = name, given
            case CallArguments(part):
                arguments += part
    (tool,) = [tool for tool in TOOLS if tool.name == called]
    jsonschema.validate(json.loads(arguments), tool.parameters)


def check_cut(stage: Stage, name: str, done: int, way: str) -> None:
    kind, whole = KINDS[name], whole_of(stage, name)
    second = stage.fleet.nodes[SECOND]
    asked = stage.asked(kind, whole.question, f"{name} {done}" if way == "nothing" else name)
    if way == "the same again":
        before = msgspec.structs.replace(asked, id=asked.id + "-before")
        stage.fleet.answer(before, [FIRST, SECOND], falls_after=done, begun=whole.begun)
    elif way == "its prompt in host memory":
        second.park()
    told = stage.fleet.answer(asked, [FIRST, SECOND], falls_after=done, begun=whole.begun)
    assert told.tokens == whole.told.tokens, (done, told.data, whole.told.data)
    assert told.data == whole.told.data
    assert told.done == whole.told.done
    assert_near(stage, told.logits, whole.cold)


@pytest.mark.parametrize("name", KINDS)
def test_a_held_answer_is_drawn_from_cold_logits_and_fits(stage: Stage, name: str) -> None:
    whole = whole_of(stage, name)
    assert whole.drawn > 20
    assert_fits(stage, KINDS[name], whole.told)
    assert_near(stage, whole.told.logits, whole.cold)


@pytest.mark.parametrize("name", KINDS)
def test_a_node_that_forgot_the_constraint_would_be_seen(stage: Stage, name: str) -> None:
    whole = whole_of(stage, name)
    free = replace(KINDS[name], constraint=lambda _format: None)
    asked = stage.asked(free, whole.question, "free")
    told = stage.fleet.answer(asked, [SECOND], begun=Script(whole.told.tokens[:4], whole.told.data[:4]))
    assert told.tokens != whole.told.tokens


@pytest.mark.parametrize("name", KINDS)
def test_a_held_answer_goes_on_elsewhere(stage: Stage, name: str) -> None:
    drawn = whole_of(stage, name).drawn
    for done, way in zip(range(0, drawn + 1, drawn // SPREAD), itertools.cycle(WAYS), strict=False):
        check_cut(stage, name, done, way)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_a_held_answer_goes_on_elsewhere_at_every_token(stage: Stage, name: str) -> None:
    for done, way in zip(range(whole_of(stage, name).drawn + 1), itertools.cycle(WAYS), strict=False):
        check_cut(stage, name, done, way)

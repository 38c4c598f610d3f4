"""A request fitted to its model, and the model's output parsed back."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from saiserve.api.prepare import prepare
from saiserve.api.service import ModelCard
from saiserve.chat.events import (
    AnswerEvent,
    ChoiceFinished,
    ReasoningDelta,
    Started,
    StopKind,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from saiserve.chat.request import (
    Dialect,
    GenerationRequest,
    ImagePart,
    Message,
    Role,
    TextPart,
    Tool,
    ToolCall,
    ToolChoice,
    ToolChoiceMode,
)
from saiserve.engines.messages import Constraint, Sampling, TokenLogprob
from saiserve.errors import ApiError, ErrorKind

TOOL = Tool("run", "", {"type": "object", "properties": {"x": {"type": "integer"}}})
PLAIN = ModelCard("m", capabilities=frozenset({"chat"}))
NATIVE = ModelCard("m", capabilities=frozenset({"chat", "tools"}), chat_template="{{ tools }}<tool_call>")
THINKER = ModelCard("m", capabilities=frozenset({"chat", "reasoning"}), reasoning_begun=True, tool_format="hermes")
HI = (Message(Role.USER, (TextPart("hi"),)),)
CALL = '<tool_call>\n{"name": "run", "arguments": {"x": 1}}\n</tool_call>'


def asked(**fields) -> GenerationRequest:
    given = {"id": "r", "dialect": Dialect.CHAT, "model": "m", "sampling": Sampling(seed=1), "messages": HI}
    return GenerationRequest(**(given | fields))


def fitted(request: GenerationRequest, card: ModelCard | None):
    numbers = itertools.count()
    return prepare(request, card, lambda: f"call_{next(numbers)}")


def said(prepared, text: str, kind: StopKind = StopKind.END, stop: str | None = None, cut: int = 2):
    events = [Started(1, 0)]
    events += [TextDelta(0, text[at : at + cut]) for at in range(0, len(text), cut)]
    events.append(ChoiceFinished(0, kind, stop))
    return [parsed for event in events for parsed in prepared.parse(event)]


def words(events, kind) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


def test_a_model_whose_template_knows_tools_gets_them_as_tools():
    prepared = fitted(asked(tools=(TOOL,)), NATIVE)
    assert prepared.request.tools == (TOOL,)
    assert prepared.request.messages == HI
    assert prepared.request.constraint is None


def test_other_models_are_told_in_text_and_keep_the_head_of_the_prompt():
    history = (
        Message(Role.SYSTEM, (TextPart("Be brief."),)),
        *HI,
        Message(Role.ASSISTANT, (TextPart("Wait."),), tool_calls=(ToolCall("c", "run", '{"x": 1}'),)),
        Message(Role.TOOL, (TextPart("out"),), tool_call_id="c"),
    )
    first = fitted(asked(tools=(TOOL,), messages=history[:2]), PLAIN).request
    later = fitted(asked(tools=(TOOL,), messages=history), PLAIN).request
    assert later.tools == ()
    assert later.messages[:2] == first.messages
    assert later.messages[0].text.startswith("Be brief.")
    assert '"name": "run"' in later.messages[0].text
    assert [message.role for message in later.messages] == [Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.USER]
    assert later.messages[2].text == f"Wait.\n{CALL}"
    assert later.messages[3].text == "<tool_response>\nout\n</tool_response>"


def test_with_choice_none_tools_are_neither_told_nor_looked_for():
    prepared = fitted(asked(tools=(TOOL,), tool_choice=ToolChoice(ToolChoiceMode.NONE)), PLAIN)
    assert prepared.request.messages == HI
    assert words(said(prepared, CALL), TextDelta) == CALL


def arguments(events: list[AnswerEvent]) -> str:
    return "".join(event.arguments for event in events if isinstance(event, ToolCallDelta))


def test_text_then_a_call_then_the_end_in_calls():
    events = said(fitted(asked(tools=(TOOL,)), NATIVE), f"Sure.\n\n{CALL}")
    assert words(events, TextDelta) == "Sure."
    assert ToolCallStarted(0, 0, "call_0", "run") in events
    assert json.loads(arguments(events)) == {"x": 1}
    assert events[-1] == ChoiceFinished(0, StopKind.TOOL_CALLS)


def test_without_parallel_calls_the_answer_stops_at_the_closer_and_that_is_no_stop_string_of_the_clients():
    request = asked(tools=(TOOL,), stop=("X",), tool_choice=ToolChoice(parallel=False))
    prepared = fitted(request, NATIVE)
    assert prepared.request.stop == ("X", "</tool_call>")
    events = said(prepared, CALL.removesuffix("</tool_call>"), StopKind.STOP_STRING, "</tool_call>")
    assert events[-1] == ChoiceFinished(0, StopKind.TOOL_CALLS)
    assert [event.name for event in events if isinstance(event, ToolCallStarted)] == ["run"]


def test_a_call_cut_by_the_limit_is_text_with_a_finish_that_says_cut():
    events = said(fitted(asked(tools=(TOOL,)), NATIVE), CALL[:30], StopKind.LENGTH)
    assert words(events, TextDelta) == CALL[:30]
    assert events[-1] == ChoiceFinished(0, StopKind.LENGTH)


def test_arguments_go_out_as_they_grow_and_a_cut_leaves_them_open():
    grown = CALL[: CALL.index("1") - 1]
    events = said(fitted(asked(tools=(TOOL,)), NATIVE), grown, StopKind.LENGTH)
    assert arguments(events) == '{"x":'
    assert events[-1] == ChoiceFinished(0, StopKind.LENGTH)


def test_arguments_that_the_model_left_open_are_completed():
    grown = CALL[: CALL.index("1") - 1]
    events = said(fitted(asked(tools=(TOOL,)), NATIVE), grown)
    assert json.loads(arguments(events)) == {"x": None}
    assert events[-1] == ChoiceFinished(0, StopKind.TOOL_CALLS)


NEVER_BEGUN = "{% if add_generation_prompt %}assistant{% if off %}<think>\n\n</think>{% endif %}{% endif %}"
MAY_BEGIN = "{% if add_generation_prompt %}{% if off %}<think>\n\n</think>{% else %}<think>\n{% endif %}{% endif %}"
ALWAYS_BEGUN = "{{ '<think></think>' }}{% if add_generation_prompt %}assistant<think>\n{% endif %}"


@pytest.mark.parametrize(("template", "begun"), [(NEVER_BEGUN, False), (MAY_BEGIN, True), (ALWAYS_BEGUN, True)])
def test_whether_output_begins_inside_the_reasoning_is_read_from_the_template(template: str, begun: bool) -> None:
    card = ModelCard("qwen3.5-x", capabilities=frozenset({"chat", "reasoning"}), chat_template=template)
    first = said(fitted(asked(), card), "so so", cut=10)[1]
    assert isinstance(first, ReasoningDelta if begun else TextDelta)


@pytest.mark.parametrize("thinking", [True, False])
def test_reasoning_the_template_began_is_split_off_only_when_thinking_is_on(thinking):
    prepared = fitted(asked(template_options={"enable_thinking": thinking}), THINKER)
    events = said(prepared, "why\n</think>\n\nso" if thinking else "so")
    assert words(events, ReasoningDelta) == ("why" if thinking else "")
    assert words(events, TextDelta) == "so"


def test_a_constraint_switches_thinking_off():
    prepared = fitted(asked(constraint=Constraint("json_object")), THINKER)
    assert prepared.request.template_options["enable_thinking"] is False
    assert words(said(prepared, '{"a": 1}'), TextDelta) == '{"a": 1}'


@pytest.mark.parametrize("choice", [ToolChoice(ToolChoiceMode.REQUIRED), ToolChoice(ToolChoiceMode.NAMED, "run")])
def test_a_forced_call_of_a_model_that_reasons_is_found(choice):
    prepared = fitted(asked(tools=(TOOL,), tool_choice=choice), THINKER)
    assert prepared.request.template_options["enable_thinking"] is False
    events = said(prepared, CALL)
    assert words(events, ReasoningDelta) == ""
    assert [event.name for event in events if isinstance(event, ToolCallStarted)] == ["run"]


def test_a_forced_tool_is_held_to_a_grammar_and_its_fault_named_as_the_tools():
    prepared = fitted(asked(tools=(TOOL,), tool_choice=ToolChoice(ToolChoiceMode.REQUIRED)), PLAIN)
    assert prepared.request.constraint.kind == "lark"
    refused = prepared.explain(ApiError(ErrorKind.INVALID_REQUEST, "the lark cannot be enforced: x"))
    assert refused.param == "tools"


@pytest.mark.parametrize(
    ("dialect", "constraint", "message", "param"),
    [
        (Dialect.CHAT, Constraint("json_object"), "the json_schema cannot be enforced: y", "response_format"),
        (Dialect.RESPONSES, Constraint("json_object"), "the json_schema cannot be enforced: y", "text.format"),
        (Dialect.CHAT, Constraint("lark", "x"), "the lark cannot be enforced: y", "grammar"),
        (Dialect.COMPLETIONS, Constraint("lark", "x"), "the lark cannot be enforced: y", "grammar"),
        (Dialect.COMPLETIONS, Constraint("json_schema", "{}"), "the json_schema cannot be enforced: y", "json_schema"),
        (Dialect.CHAT, None, "logit_bias names token 7; this model has fewer", "logit_bias"),
        (Dialect.CHAT, None, "roles must alternate", "messages"),
        (Dialect.RESPONSES, None, "roles must alternate", "input"),
    ],
)
def test_an_engines_refusal_names_the_field_it_means(dialect, constraint, message, param):
    prepared = fitted(asked(dialect=dialect, constraint=constraint), PLAIN)
    assert prepared.explain(ApiError(ErrorKind.INVALID_REQUEST, message)).param == param
    busy = ApiError(ErrorKind.BUSY, message)
    assert prepared.explain(busy) is busy


def test_images_are_refused_for_a_model_that_cannot_see():
    request = asked(messages=(Message(Role.USER, (ImagePart("image/png", b"x"),)),))
    with pytest.raises(ApiError, match="does not see"):
        fitted(request, PLAIN)
    seeing = ModelCard("m", capabilities=frozenset({"vision"}))
    assert fitted(request, seeing).request == request


def test_an_unknown_model_is_left_to_the_service():
    request = asked(tools=(TOOL,))
    assert fitted(request, None).request is request


def test_log_probabilities_go_with_the_text_that_held_them_back():
    prepared = fitted(asked(tools=(TOOL,)), NATIVE)
    entries = [TokenLogprob(token, b"<", -1.0) for token in range(2)]
    held = prepared.parse(TextDelta(0, "<tool_", (entries[0],)))
    assert held == []
    shown = prepared.parse(TextDelta(0, "x", (entries[1],)))
    assert shown == [TextDelta(0, "<tool_x", tuple(entries))]


@pytest.mark.parametrize(
    ("card", "native"),
    [
        (ModelCard("q35-4b", aliases=("4b",), capabilities=frozenset({"chat", "tools"})), "qwen_xml"),
        (ModelCard("x", aliases=("Qwen2.5-7B",), capabilities=frozenset({"chat", "tools"})), "hermes"),
        (ModelCard("q35-4b", capabilities=frozenset({"chat"})), ""),
        (ModelCard("q35-4b", capabilities=frozenset({"chat", "tools"}), chat_template="{{ messages }}"), ""),
        (ModelCard("gemma-3-4b", capabilities=frozenset({"chat", "tools"})), ""),
    ],
)
def test_where_no_template_is_at_hand_the_name_tells_the_family(card, native):
    prepared = fitted(asked(tools=(TOOL,)), card)
    assert bool(prepared.request.tools) is bool(native)
    if native == "qwen_xml":
        events = said(
            prepared, "<tool_call>\n<function=run>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>"
        )
        assert "".join(event.arguments for event in events if isinstance(event, ToolCallDelta)) == '{"x": 1}'


def test_tokens_of_reasoning_are_counted_apart():
    card = replace(NATIVE, capabilities=frozenset({"chat", "reasoning"}))
    parse = fitted(asked(), card).parse
    pieces = [("<think>", 1), ("why", 2), (" not", 3), ("</think>", 4), ("\n\n", 5), ("yes", 6), ("!", 7)]
    events = [event for text, token in pieces for event in parse(TextDelta(0, text, tokens=(token,)))]
    events += [*parse(ChoiceFinished(0, StopKind.END)), *parse(Usage(9, 0, 7))]
    assert words(events, TextDelta) == "yes!"
    assert events[-1] == Usage(9, 0, 7, reasoning_tokens=4)


def test_a_stop_string_behind_a_call_is_an_end_in_calls_and_one_inside_stays_a_stop():
    behind = said(fitted(asked(tools=(TOOL,)), NATIVE), f"{CALL}\nwell", StopKind.STOP_STRING, "END")
    assert behind[-1] == ChoiceFinished(0, StopKind.TOOL_CALLS)
    inside = said(fitted(asked(tools=(TOOL,)), NATIVE), CALL[:-16], StopKind.STOP_STRING, "END")
    assert inside[-1] == ChoiceFinished(0, StopKind.STOP_STRING, "END")


@pytest.mark.parametrize("mode", [ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED, ToolChoiceMode.AUTO])
@pytest.mark.parametrize("given", ["string", "array", ["null", "integer"]])
def test_a_forced_or_strict_tool_whose_arguments_are_no_object_is_refused(mode: ToolChoiceMode, given: object) -> None:
    tool = Tool("run", "", {"type": given}, strict=mode is ToolChoiceMode.AUTO)
    with pytest.raises(ApiError, match="the parameters of 'run' must have the type object") as caught:
        fitted(asked(tools=(tool,), tool_choice=ToolChoice(mode, "run")), NATIVE)
    assert caught.value.param == "tools"


@pytest.mark.parametrize("parameters", [{}, {"type": ["object", "null"]}, {"type": "object"}])
def test_arguments_of_a_forced_call_are_an_object(parameters: dict[str, object]) -> None:
    tool = Tool("run", "", parameters)
    prepared = fitted(asked(tools=(tool,), tool_choice=ToolChoice(ToolChoiceMode.REQUIRED)), NATIVE)
    assert prepared.request.constraint is not None
    assert '"type": "object"' in prepared.request.constraint.body

"""What a model's own ways make of a request: how it is told of tools, what its output is held to, how it is parsed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from saiserve.api.body import invalid
from saiserve.api.service import ModelCard
from saiserve.chat.events import AnswerEvent
from saiserve.chat.families import Family, family_of
from saiserve.chat.parsed import AnswerParser
from saiserve.chat.reasoning import ReasoningSplitter
from saiserve.chat.request import (
    Dialect,
    GenerationRequest,
    ImagePart,
    ReasoningMarks,
    Tool,
    ToolChoiceMode,
)
from saiserve.chat.template_ways import TemplateWays, ways_of
from saiserve.chat.tool_formats import GENERIC, ToolFormat, format_named, with_tools_as_text
from saiserve.chat.tool_grammar import takes_objects, tool_constraint
from saiserve.chat.tool_parser import ToolCallParser
from saiserve.engines.messages import Constraint
from saiserve.errors import ApiError, ErrorKind


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request as the model is to see it, and the parser for its answer."""

    request: GenerationRequest
    parse: Callable[[AnswerEvent], list[AnswerEvent]]
    constraint_param: str = ""
    """The field of the client's body that the constraint comes from."""

    def explain(self, error: ApiError) -> ApiError:
        """Return an engine's refusal with the field it means, where the engine cannot know it."""
        if error.kind is not ErrorKind.INVALID_REQUEST or error.param is not None:
            return error
        is_constraint = self.constraint_param and UNENFORCEABLE in error.message
        prompt = "messages" if self.request.messages is not None else "prompt"
        param = self.constraint_param if is_constraint else _PROMPT_PARAMS.get(self.request.dialect, prompt)
        if error.message.startswith(LOGIT_BIAS):
            return ApiError(error.kind, error.message, param=LOGIT_BIAS, headers=error.headers)
        return ApiError(error.kind, f"{param}: {error.message}", param=param, headers=error.headers)


UNENFORCEABLE = "cannot be enforced"
"""Words of an engine's refusal of a schema or grammar."""
LOGIT_BIAS = "logit_bias"
"""First word of an engine's refusal of a token that its vocabulary has not."""
_PROMPT_PARAMS = {Dialect.RESPONSES: "input"}
_GRAMMAR_PARAMS = {"lark": "grammar"}
"""The field of a client's own grammar, by its kind, on every route that has one; a schema's is named below."""
_CONSTRAINT_PARAMS = {
    Dialect.CHAT: "response_format",
    Dialect.COMPLETIONS: "json_schema",
    Dialect.RESPONSES: "text.format",
    Dialect.MESSAGES: "output_config.format",
}


def prepare(request: GenerationRequest, card: ModelCard | None, new_call_id: Callable[[], str]) -> Prepared:
    """Fit a request to its model. Without a card (an unknown model) it stays as it is: the service says what is wrong.

    Raises:
        ApiError: 400 for images sent to a model that cannot see, and for a tool that may have to be called and cannot.
    """
    assert not any(isinstance(part, ImagePart) and part.url for one in request.messages or () for part in one.parts)
    if card is None or card.is_fitted_later:
        return Prepared(request, _unparsed)
    check_images(request, card)
    tool_format, is_native = _format(card)
    usable = () if request.tool_choice.mode is ToolChoiceMode.NONE else request.tools
    _check_parameters(request, usable)
    parser = _parser(request, card, tool_format, usable, new_call_id)
    constraint = tool_constraint(tool_format, usable, request.tool_choice, request.constraint)
    options = dict(request.template_options)
    if _is_ruled(request) and "reasoning" in card.capabilities:
        options["enable_thinking"] = False
    prepared = replace(request, constraint=constraint, template_options=options, reasoning_marks=_marks(request, card))
    own_stop = _own_stop(request, tool_format, usable)
    if own_stop:
        prepared = replace(prepared, stop=(*request.stop, own_stop))
    if request.messages is not None and not is_native:
        messages = with_tools_as_text(request.messages, usable)
        prepared = replace(prepared, messages=messages, tools=())
    if prepared != request:
        prepared = replace(prepared, original=request)
    return Prepared(prepared, parser, _constraint_param(request, constraint))


def _constraint_param(request: GenerationRequest, constraint: Constraint | None) -> str:
    if constraint is None:
        return ""
    if constraint is not request.constraint:
        return "tools"
    return _GRAMMAR_PARAMS.get(constraint.kind, _CONSTRAINT_PARAMS[request.dialect])


def _check_parameters(request: GenerationRequest, usable: tuple[Tool, ...]) -> None:
    """Refuse a tool whose calls are held to a schema that no call's arguments, which are an object, can follow."""
    is_forced = request.tool_choice.mode in {ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED}
    for tool in usable:
        if (is_forced or tool.strict) and not takes_objects(tool):
            raise invalid(f"tools: the parameters of {tool.name!r} must have the type object.", "tools")


def _is_ruled(request: GenerationRequest) -> bool:
    """Whether a constraint holds from the first token on, so that there is no room for reasoning before it."""
    is_forced = request.tool_choice.mode in {ToolChoiceMode.REQUIRED, ToolChoiceMode.NAMED}
    return request.constraint is not None or (is_forced and bool(request.tools))


def _format(card: ModelCard) -> tuple[ToolFormat, bool]:
    """Return how the model writes calls, and whether its own template tells it of tools."""
    name, ways = card.tool_format, _ways(card)
    if not name and ways is not None:
        name = ways.tool_format
    elif not name and "tools" in card.capabilities:
        family = _family(card)
        name = family.tool_format if family is not None else ""
    return (format_named(name), True) if name else (GENERIC, False)


def _ways(card: ModelCard) -> TemplateWays | None:
    """What the template tells, read here or where the model is; None when nobody knows it."""
    if card.chat_template:
        return ways_of(card.chat_template, card.reasoning_open, card.reasoning_close)
    return card.template_ways


def _family(card: ModelCard) -> Family | None:
    return family_of((card.id, *card.aliases, card.display_name))


def _begins_inside(card: ModelCard) -> bool:
    """Whether output begins inside the reasoning when thinking is on."""
    ways = _ways(card)
    if ways is not None:
        return card.reasoning_begun or ways.begins_reasoning
    family = _family(card)
    return card.reasoning_begun or (family is not None and family.reasoning_begun)


def _may_reason(request: GenerationRequest, card: ModelCard) -> bool:
    return "reasoning" in card.capabilities and request.messages is not None


def _has_begun(request: GenerationRequest, card: ModelCard) -> bool:
    """Whether the prompt of this request ends inside the reasoning."""
    thinks = request.template_options.get("enable_thinking", True) is not False and not _is_ruled(request)
    return _begins_inside(card) and thinks and not request.continue_final


def _marks(request: GenerationRequest, card: ModelCard) -> ReasoningMarks | None:
    if not _may_reason(request, card):
        return None
    return ReasoningMarks(card.reasoning_open, card.reasoning_close, _has_begun(request, card))


def _own_stop(request: GenerationRequest, tool_format: ToolFormat, usable: tuple[Tool, ...]) -> str:
    """Return the string that ends an answer after its only call; empty when more may follow."""
    one_call = usable and not request.tool_choice.parallel
    return tool_format.closer if one_call and tool_format.closer not in request.stop else ""


def _parser(
    request: GenerationRequest,
    card: ModelCard,
    tool_format: ToolFormat,
    usable: tuple[Tool, ...],
    new_call_id: Callable[[], str],
) -> Callable[[AnswerEvent], list[AnswerEvent]]:
    marks = _marks(request, card)
    if marks is None and not usable:
        return _unparsed
    parser = partial(ToolCallParser, tool_format, usable, parallel=request.tool_choice.parallel)
    return AnswerParser(
        request.choices,
        splitter=partial(ReasoningSplitter, marks) if marks is not None else None,
        parser=parser if usable else None,
        tools=usable,
        new_call_id=new_call_id,
        own_stop=_own_stop(request, tool_format, usable),
    )


def _unparsed(event: AnswerEvent) -> list[AnswerEvent]:
    return [event]


def check_images(request: GenerationRequest, card: ModelCard) -> None:
    """Refuse images for a model that does not see.

    Raises:
        ApiError: 400.
    """
    if "vision" in card.capabilities:
        return
    for index, message in enumerate(request.messages or ()):
        if any(isinstance(part, ImagePart) for part in message.parts):
            raise invalid(
                f"messages[{index}].content: the model {card.id} does not see images.", f"messages[{index}].content"
            )

"""A chat template, rendered: Jinja from a model file or the catalog, so code from elsewhere, in a sandbox and on a clock.

Gives what the Hugging Face hub's renderer gives: the same block trimming, filters and globals (raise_exception,
strftime_now, tojson). Content is defused first (see vocabulary.py).
"""

from __future__ import annotations

import datetime
import json
import signal
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox

from saiserve.engines.llamacpp.template_caps import TemplateCaps, Tools, adapt, probe
from saiserve.engines.llamacpp.template_order import lost
from saiserve.engines.llamacpp.vocabulary import Markers, unused_character
from saiserve.engines.messages import Prompt

RENDER_S = 2.0
"""Longest time one rendering may take."""
COMPILE_S = 5.0
TEMPLATE_CHARACTERS_MAX = 500_000
RENDERED_CHARACTERS_MAX = 64 * 1024 * 1024
REPEAT_MAX = 100_000
"""Longest result of a multiplication of strings or lists inside a template."""
STRUCTURE_DEPTH_MAX = 64
LIST_CHANGES = frozenset({"append", "pop"})
"""Methods of lists that templates may call though they change them."""

REASONING_MARKS = (("<think>", "</think>"), ("<|START_THINKING|>", "<|END_THINKING|>"))
"""What surrounds reasoning, for templates that cannot leave it out themselves."""

NAME_FORBIDDEN = frozenset("<>|[]{}\n\r\t\x00")
"""Characters a role or a tool's name may not have: a template puts them beside its own markers."""


class TemplateError(Exception):
    """The template cannot be used on this conversation; the message is for the client. State unchanged."""


class PromptError(Exception):
    """The conversation itself is at fault; the message is for the client. State unchanged."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt's text. `split` stands where content was broken up and is not part of the text."""

    marked: str
    split: str

    @property
    def text(self) -> str:
        """The prompt as the model reads it."""
        return self.marked.replace(self.split, "") if self.split else self.marked


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The hub's settings, with multiplication bounded as `range` already is."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and not (abs(right) <= 64 and abs(left) <= 1_000_000):
            raise jinja2.TemplateRuntimeError("the power is too large")
        for one, other in ((left, right), (right, left)):
            if isinstance(one, (str, list, tuple)) and len(one) * other > REPEAT_MAX:
                raise jinja2.TemplateRuntimeError("the repetition is too long")
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Also two ways to change lists, by which some templates collect: what they are given is a copy."""
        return (attr in LIST_CHANGES and isinstance(obj, list)) or super().is_safe_attribute(obj, attr, value)


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.datetime.now().astimezone().strftime(layout)


def _dates() -> dict[str, str]:
    """Return what older templates read instead of calling `strftime_now`: Llama 3's `date_string`, Firefunction's `datetime`."""
    return {"date_string": _strftime_now("%d %b %Y"), "datetime": _strftime_now("%b %d %Y %H:%M:%S")}


def without_reasoning(source: str, text: str) -> str:
    """Return a prompt after which no reasoning follows: an open one is closed, one the model would begin is empty.

    A template that knows `enable_thinking` has seen to it already.
    """
    for opening, closing in REASONING_MARKS:
        if text.rstrip().endswith(opening):
            return text + closing
        begins = opening in source and closing in source and "enable_thinking" not in source
        if begins and not text.rstrip().endswith(closing):
            return text + opening + closing
    return text


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_plain
    )


def _plain(value: Any) -> Any:
    """What filters such as `map` and `select` give, as a list."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


class ChatTemplate:
    """One compiled template with the special tokens' texts it may name."""

    def __init__(self, source: str, *, bos: str, eos: str, markers: Markers) -> None:
        """Compile.

        Raises:
            TemplateError: not a Jinja template, or too long.
        """
        if len(source) > TEMPLATE_CHARACTERS_MAX:
            raise TemplateError(
                f"the chat template has {len(source)} characters; {TEMPLATE_CHARACTERS_MAX} are allowed"
            )
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            with time_limit(COMPILE_S):
                self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError, TimeoutError) as error:
            raise TemplateError(f"the model's chat template cannot be read: {error}") from error
        self._source = source
        self._specials = {"bos_token": bos, "eos_token": eos, "unk_token": "", "pad_token": ""}
        self._markers = markers
        self.caps = TemplateCaps()
        """What it can take; found by rendering, in the time there is."""
        with suppress(TimeoutError), time_limit(COMPILE_S):
            self.caps = probe(self._probed)

    def _probed(self, messages: Sequence[Mapping[str, Any]], tools: Tools) -> str:
        try:
            return self._template.render(self._variables({}, messages, tools, opened=True))
        except TimeoutError:
            raise
        except Exception as error:  # a template is code from elsewhere and may raise anything
            raise ValueError(str(error)) from error

    def render(self, prompt: Prompt) -> Rendered:
        """The prompt's text for a conversation.

        Raises:
            PromptError: a role or a tool's name could forge a marker.
            TemplateError: the template raised, ran too long or cannot leave the last message open.
        """
        assert prompt.messages is not None
        _check_names(prompt)
        try:
            with time_limit(RENDER_S):
                return self._render(prompt)
        except TimeoutError as error:
            raise TemplateError(f"the model's chat template ran longer than {RENDER_S} s on these messages") from error

    def _render(self, prompt: Prompt) -> Rendered:
        texts = list(_strings((prompt.messages, prompt.tools, prompt.template_options), 0))
        split = unused_character(texts)
        end = unused_character([*texts, split])
        messages = adapt([self._defused(message, split) for message in prompt.messages or ()], self.caps)
        tools = [self._defused(tool, split) for tool in prompt.tools]
        if prompt.continue_final:
            _mark_end(messages, end)
        options = self._defused(prompt.template_options, split)
        text = self._run(prompt, messages, tools, options)
        missing = lost(messages, self.caps.order)
        if missing is not None:
            raise TemplateError(f"this model's chat template leaves out {missing}")
        if prompt.continue_final:
            text, found, _ = text.rpartition(end)
            if not found:
                raise TemplateError("this model's chat template cannot leave the last message open")
        if not text:
            raise TemplateError("this model's chat template gives an empty prompt for these messages")
        return Rendered(text, split if split in text else "")

    def _defused(self, value: Any, split: str) -> Any:
        return _map_strings(value, lambda text: self._markers.defuse(text, split))

    def _run(self, prompt: Prompt, messages: list[Any], tools: list[Any], options: Mapping[str, Any]) -> str:
        opened = prompt.add_generation_prompt and not prompt.continue_final
        no_tools: Tools = [] if self.caps.empty_tools else None
        variables = self._variables(options, messages, tools or no_tools, opened=opened)
        try:
            text = self._template.render(variables)
        except jinja2.TemplateError as error:
            raise TemplateError(f"the model's chat template refuses these messages: {error.message}") from error
        except TimeoutError:
            raise
        except Exception as error:  # a template is code from elsewhere and may raise anything
            raise TemplateError(f"the model's chat template fails on these messages: {error}") from error
        if len(text) > RENDERED_CHARACTERS_MAX:
            raise TemplateError("the model's chat template gives too long a prompt for these messages")
        opens_turn = variables["add_generation_prompt"]
        is_off = opens_turn and options.get("enable_thinking") is False
        return without_reasoning(self._source, text) if is_off else text

    def _variables(
        self, options: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], tools: Tools, *, opened: bool
    ) -> dict[str, Any]:
        """What the hub's renderer gives a template, and what some families ask for: `functions`, dates, thinking or not.

        Thinking is on unless a request says otherwise: templates that ask `if enable_thinking` mean that by their default
        elsewhere, and llama-server does the same.
        """
        return {
            **self._specials,
            "functions": _to_json(tools, indent=2) if tools else "",
            **_dates(),
            "enable_thinking": True,
            **options,
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": opened,
        }


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError inside after `seconds`. By timer signal, so only in the process's main thread."""

    def expire(_number: int, _frame: types.FrameType | None) -> NoReturn:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _check_names(prompt: Prompt) -> None:
    for message in prompt.messages or ():
        role = message.get("role")
        if not isinstance(role, str) or not role or NAME_FORBIDDEN & set(role):
            raise PromptError("a message's role is not a plain word")
        for call in message.get("tool_calls") or ():
            _check_name(call.get("function", call) if isinstance(call, dict) else {})
        if "name" in message and message["name"] is not None:
            _check_name(message)
    for tool in prompt.tools:
        _check_name(tool.get("function", tool))


def _check_name(holder: Any) -> None:
    name = holder.get("name", "") if isinstance(holder, dict) else None
    if not isinstance(name, str) or NAME_FORBIDDEN & set(name):
        raise PromptError("a name contains characters that names may not have (< > | [ ] { } and line breaks)")


def _mark_end(messages: list[Any], end: str) -> None:
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or not isinstance(last.get("content"), str):
        raise TemplateError("only an assistant message with text can be continued")
    last["content"] = last["content"].rstrip() + end


def _strings(value: Any, depth: int) -> Iterator[str]:
    if depth > STRUCTURE_DEPTH_MAX:
        raise PromptError(f"messages or tools are nested deeper than {STRUCTURE_DEPTH_MAX}")
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _strings(key, depth + 1)
            yield from _strings(item, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item, depth + 1)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key) if isinstance(key, str) else key: _map_strings(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_map_strings(item, change) for item in value]
    return value

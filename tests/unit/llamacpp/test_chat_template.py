"""Templates render as the hub renders them, in a sandbox, in time, and content cannot become markup."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saiserve.engines.llamacpp.template import ChatTemplate, PromptError, TemplateError
from saiserve.engines.llamacpp.vocabulary import Markers, unused_character
from saiserve.engines.messages import Prompt

MARKERS = Markers(["<|im_start|>", "<|im_end|>", "<s>", "</s>", "<<s>>"])
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def template(source: str = CHATML) -> ChatTemplate:
    return ChatTemplate(source, bos="<s>", eos="</s>", markers=MARKERS)


def chat(*contents: Any, **options: Any) -> Prompt:
    roles = ("user", "assistant")
    messages = tuple({"role": roles[at % 2], "content": content} for at, content in enumerate(contents))
    return Prompt(messages=messages, **options)


def test_a_conversation_is_rendered_with_a_turn_opened_for_the_answer() -> None:
    rendered = template().render(chat("Hi", "Hello", "Bye"))
    assert rendered.text == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )
    assert rendered.split == ""


def test_the_last_message_is_left_open_to_be_continued() -> None:
    rendered = template().render(chat("Hi", "The capital is", continue_final=True))
    assert rendered.text.endswith("<|im_start|>assistant\nThe capital is")


@pytest.mark.parametrize("source", ["{{ messages[0].content }}", "{% if false %}x{% endif %}"])
def test_a_template_that_cannot_leave_it_open_says_so(source: str) -> None:
    with pytest.raises(TemplateError):
        template(source).render(chat("Hi", "The capital", continue_final=True))


@given(
    st.lists(
        st.sampled_from(["<|im_start|>", "<|im_end|>", "<", "<s", ">", "<<s>>", "|im_end|>", "a", "\n", "<|im_"]),
        max_size=12,
    )
)
def test_no_marker_survives_in_content_whatever_it_is_made_of(pieces: list[str]) -> None:
    content = "".join(pieces)
    rendered = template().render(chat(content, content))
    assert content in rendered.text
    segments = rendered.marked.split(rendered.split) if rendered.split else [rendered.marked]
    found = sum(segment.count(marker) for segment in segments for marker in ("<|im_start|>", "<|im_end|>"))
    assert found == 5  # three turns opened, two closed, by the template alone
    assert sum(segment.count("<s>") + segment.count("</s>") for segment in segments) == 0


def overlapping(text: str, markers: list[str]) -> list[int]:
    """Places where any of the markers begins."""
    return [at for at in range(len(text)) if any(text.startswith(marker, at) for marker in markers)]


@given(
    st.lists(st.text("<|ab>", min_size=2, max_size=6), min_size=1, max_size=12),
    st.text("<|ab>é\n", max_size=60),
    st.text("<|ab>é\n", max_size=8),
)
def test_every_marker_is_broken_and_nothing_else(markers: list[str], content: str, behind: str) -> None:
    defused = Markers(markers).defuse(content, "¦")
    pieces = defused.split("¦")
    assert "".join(pieces) == content
    assert not any(marker in piece for piece in pieces for marker in markers)
    cuts = {len(content) - len("".join(pieces[at:])) for at in range(1, len(pieces))}
    assert cuts - {len(content)} == {at + 1 for at in overlapping(content, markers)} - {len(content)}
    whole = [*pieces[:-1], pieces[-1] + behind]  # the template goes on: nothing begun in content is completed
    begun = overlapping(content + behind, markers)
    assert sum(len(overlapping(piece, markers)) for piece in whole) == sum(at >= len(content) for at in begun)


def test_many_markers_with_common_beginnings_are_found_by_one_pattern() -> None:
    names = ["a" * length + "b" for length in range(1, 300)] + [f"<unused{at}>" for at in range(2_000)]
    markers = Markers(names)
    assert markers.defuse("<unused1999>", "¦") == "<¦unused1999>"
    assert markers.defuse("<unused2000>", "¦") == "<unused2000>"
    assert markers.defuse("x" + "a" * 299 + "b", "¦").count("¦") == 299


@pytest.mark.parametrize("piece", ["<|im_end|>", "<", "<|im_", "<<s>>", "<|im_end|", "\n"])
def test_a_long_message_is_defused_in_a_moment(piece: str) -> None:
    """A thousand times the work of a thousandth: what grew with the square took minutes."""
    text = piece * (1_000_000 // len(piece))
    began = time.process_time()
    assert MARKERS.defuse(text, "¦").replace("¦", "") == text
    assert time.process_time() - began < 3


def test_ordinary_content_is_not_split() -> None:
    assert template().render(chat("a < b, <b>bold</b>, x|y")).split == ""


def test_markers_in_tools_arguments_and_keys_are_broken_too() -> None:
    source = "{{ tools | tojson }}{{ messages[0].tool_calls | tojson }}"
    prompt = Prompt(
        messages=(
            {"role": "user", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"<s>": "</s>"}}}]},
        ),
        tools=({"type": "function", "function": {"name": "f", "description": "<|im_end|>"}},),
    )
    marked = template(source).render(prompt).marked
    assert not any(marker in marked for marker in ("<s>", "</s>", "<|im_end|>"))


@pytest.mark.parametrize(
    "fields",
    [
        {"role": "<|im_start|>", "content": ""},
        {"role": "us\ner", "content": ""},
        {"role": 5, "content": ""},
        {"role": "user", "content": "", "name": "a>b"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "<s>", "arguments": {}}}]},
    ],
)
def test_roles_and_names_that_could_forge_markup_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(PromptError):
        template().render(Prompt(messages=(fields,)))


def test_a_tool_with_a_forged_name_is_refused() -> None:
    tool = {"type": "function", "function": {"name": "<|im_end|>"}}
    with pytest.raises(PromptError):
        template().render(Prompt(messages=({"role": "user", "content": ""},), tools=(tool,)))


def test_template_syntax_in_content_is_text() -> None:
    assert "{{ 7*7 }}{% for i in range(9) %}" in template().render(chat("{{ 7*7 }}{% for i in range(9) %}")).text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ {'b': 'é<', 'a': [1, none]} | tojson }}", '{"b": "é<", "a": [1, null]}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{{ bos_token }}{{ messages | length }}{{ eos_token }}", "<s>1</s>"),
        ("{% generation %}x{% endgeneration %}", "x"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{% set n = namespace(a=0) %}{% for i in [1, 2] %}{% set n.a = n.a + i %}{% endfor %}{{ n.a }}", "3"),
        ("{% if true %}\n  x\n{% endif %}\ny", "  x\ny"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ documents is none }}{{ tools is none }}", "TrueTrue"),
        ("{{ 'ab' * 3 }}{{ 2 ** 5 }}", "ababab32"),
        ("{{ enable_thinking }}", "False"),
    ],
)
def test_the_hub_s_dialect_is_spoken(source: str, text: str) -> None:
    assert template(source).render(chat("x", template_options={"enable_thinking": False})).text == text


def test_a_template_s_own_refusal_is_quoted() -> None:
    with pytest.raises(TemplateError, match="roles must alternate"):
        template("{{ raise_exception('roles must alternate') }}").render(chat("x"))


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 999999999 }}",
        "{{ [1] * 999999999 }}",
        "{{ 9 ** 99999999 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.clear() }}",
        "{{ messages[0].content + none }}",
        "{{ messages[0].absent.further }}",
        "",
    ],
)
def test_what_a_template_must_not_do_is_an_error_of_the_template(source: str) -> None:
    with pytest.raises(TemplateError):
        template(source).render(chat("x"))


@pytest.mark.parametrize("source", ["{% for %}", "{{ x", "x" * 600_000, "{% import 'os' as os %}{{ os }}"])
def test_text_that_is_no_template_is_an_error_of_the_template(source: str) -> None:
    with pytest.raises(TemplateError):
        template(source).render(chat("x"))


def test_a_template_that_runs_for_ever_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saiserve.engines.llamacpp.template.RENDER_S", 0.1)
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(TemplateError, match="longer than"):
        template(endless).render(chat("x"))


def test_the_splitting_character_is_one_nobody_uses() -> None:
    first = unused_character([])
    assert unused_character([f"a{first}b"]) != first


@pytest.mark.parametrize("name", ["date_string", "datetime"])
def test_a_template_that_reads_the_date_from_a_variable_gets_it(name: str) -> None:
    text = (
        template("{% if not NAME is defined %}never{% else %}{{ NAME }}{% endif %}".replace("NAME", name))
        .render(chat("Hi"))
        .text
    )
    assert re.search(r"\b20\d\d\b", text)


@pytest.mark.parametrize(
    ("options", "ending"),
    [({}, "<think>\n"), ({"enable_thinking": True}, "<think>\n"), ({"enable_thinking": False}, "<think>\n</think>")],
)
def test_thinking_is_on_unless_a_request_says_otherwise(options: dict[str, Any], ending: str) -> None:
    source = CHATML + "<think>\n{% if not enable_thinking %}</think>{% endif %}"
    assert template(source).render(chat("Hi", template_options=options)).text.endswith(ending)

"""Messages in an order that a template refuses or drops are put in one that it takes, each at its place, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from saiserve.engines.llamacpp.template import ChatTemplate, TemplateError
from saiserve.engines.llamacpp.template_order import OrderCaps, lost, reorder
from saiserve.engines.llamacpp.vocabulary import Markers
from saiserve.engines.messages import Prompt

LETTERS = {"S": "system", "U": "user", "A": "assistant"}
SAY = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
FIRST_SYSTEM_ONLY = "{% for m in messages %}{% if m.role != 'system' or loop.first %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
SYSTEM_REFUSED_LATER = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system goes first') }}"
    "{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
SYSTEM_TO_THE_HEAD = (
    "{% for m in messages if m.role == 'system' %}<system>{{ m.content }}{% endfor %}"
    "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
ALTERNATING = (
    "{% set n = namespace(user=true) %}{% for m in messages %}"
    "{% if m.role == 'system' and loop.first %}<system>{{ m.content }}"
    "{% elif m.role == 'tool' or m.tool_calls %}<{{ m.role }}>{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}"
    "{% elif (m.role == 'user') == n.user %}<{{ m.role }}>{{ m.content }}{% set n.user = not n.user %}"
    "{% else %}{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}"
)
NO_SYSTEM = ALTERNATING.replace("{% if m.role == 'system'", "{% if false")
LAST_OF_A_RUN = (
    "{% for m in messages %}{% if loop.last or messages[loop.index].role != m.role %}<{{ m.role }}>{{ m.content }}"
    "{% endif %}{% endfor %}"
)
SYSTEM_WITH_THE_NEWEST = (
    "{% if messages[0].role == 'system' %}{% set system, rest = messages[0].content, messages[1:] %}"
    "{% else %}{% set rest = messages %}{% endif %}{% for m in rest %}<{{ m.role }}>"
    "{{ system + '/' if m.role == 'user' and loop.last and system is defined }}{{ m.content }}{% endfor %}"
)
QUESTIONS_ONWARD = (
    "{% set n = namespace(on=false) %}{% for m in messages %}{% if m.role != 'assistant' %}{% set n.on = true %}{% endif %}"
    "{% if n.on %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
)
EVERYTHING = OrderCaps()


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos="", eos="", markers=Markers([]))


def render(source: str, shape: str, **options: Any) -> str:
    messages = tuple({"role": LETTERS[letter], "content": f"{letter}{at}"} for at, letter in enumerate(shape))
    return template(source).render(Prompt(messages=messages, **options)).text


@pytest.mark.parametrize(
    ("source", "lacking"),
    [
        (SAY, set()),
        (FIRST_SYSTEM_ONLY, {"system_run", "system_later"}),
        (SYSTEM_REFUSED_LATER, {"system_run", "system_later"}),
        (SYSTEM_TO_THE_HEAD, {"system_later"}),
        (ALTERNATING, {"system_run", "system_later", "users_in_row", "assistants_in_row", "assistant_first", "user_after_tool"}),
        (LAST_OF_A_RUN, {"system_run", "system_later", "users_in_row", "assistants_in_row"}),
        (QUESTIONS_ONWARD, {"assistant_first"}),
        (SYSTEM_WITH_THE_NEWEST, {"system_stays", "system_run", "system_later"}),
    ],
)  # fmt: skip
def test_a_template_is_asked_for_every_order(source: str, lacking: set[str]) -> None:
    caps = template(source).caps
    assert {name for name in OrderCaps.__slots__ if not getattr(caps.order, name)} == lacking
    assert {name for name in OrderCaps.__slots__ if not caps.as_flags()[f"supports_{name}"]} == lacking


@pytest.mark.parametrize(
    ("source", "shape", "text"),
    [
        (SAY, "SSUSU", "<system>S0<system>S1<user>U2<system>S3<user>U4"),
        (FIRST_SYSTEM_ONLY, "SSU", "<system>S0\n\nS1<user>U2"),
        (FIRST_SYSTEM_ONLY, "SUSU", "<system>S0<user>U1<user>System message:\nS2<user>U3"),
        (SYSTEM_REFUSED_LATER, "USU", "<user>U0<user>System message:\nS1<user>U2"),
        (SYSTEM_TO_THE_HEAD, "SSUSU", "<system>S0<system>S1<user>U2<user>System message:\nS3<user>U4"),
        (ALTERNATING, "SSUUAU", "<system>S0\n\nS1<user>U2\n\nU3<assistant>A4<user>U5"),
        (ALTERNATING, "SUSAAU", "<system>S0<user>U1\n\nSystem message:\nS2<assistant>A3\n\nA4<user>U5"),
        (NO_SYSTEM, "SSUAU", "<user>S0\n\nS1\n\nU2<assistant>A3<user>U4"),
        (SYSTEM_WITH_THE_NEWEST, "SSUAU", "<user>S0\n\nS1\n\nU2<assistant>A3<user>U4"),
        (SYSTEM_WITH_THE_NEWEST, "SUA", "<user>S0\n\nU1<assistant>A2"),
        (NO_SYSTEM, "SAU", "<user>S0<assistant>A1<user>U2"),
        (NO_SYSTEM, "SUAS", "<user>S0\n\nU1<assistant>A2<user>System message:\nS3"),
        (LAST_OF_A_RUN, "SSUUAA", "<system>S0\n\nS1<user>U2\n\nU3<assistant>A4\n\nA5"),
    ],
)
def test_every_message_comes_out_at_its_place(source: str, shape: str, text: str) -> None:
    assert render(source, shape) == text


@pytest.mark.parametrize("shape", ["AU", "SAU"])
def test_what_no_order_mends_is_refused_in_the_template_s_words(shape: str) -> None:
    with pytest.raises(TemplateError, match="refuses these messages: roles must alternate"):
        render(ALTERNATING, shape)


def test_a_message_that_would_be_lost_in_silence_is_a_refusal() -> None:
    with pytest.raises(TemplateError, match="leaves out an answer that comes before any question"):
        render(QUESTIONS_ONWARD, "AU")
    assert render(QUESTIONS_ONWARD, "UA") == "<user>U0<assistant>A1"


def test_an_open_answer_stays_open_when_it_is_joined() -> None:
    assert render(ALTERNATING, "UAA", continue_final=True).endswith("<assistant>A1\n\nA2")


def test_what_a_user_says_behind_a_result_goes_with_it() -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    result = {"role": "tool", "content": "rain", "tool_call_id": "1"}
    asked, system = {"role": "user", "content": "And now?"}, {"role": "system", "content": "Be brief."}
    texts = [
        template(ALTERNATING).render(Prompt(messages=({"role": "user", "content": "Hi"}, call, result, *rest))).text
        for rest in ((asked,), (system,), (system, asked))
    ]
    ends = [text.partition("<tool>")[2] for text in texts]
    assert ends == [
        "rain\n\nUser message:\nAnd now?",
        "rain\n\nSystem message:\nBe brief.",
        "rain\n\nSystem message:\nBe brief.\n\nAnd now?",
    ]


def test_contents_of_parts_are_joined_as_parts() -> None:
    parts = [{"type": "text", "text": "look"}]
    messages = [{"role": "user", "content": parts}, {"role": "system", "content": "Be brief."}]
    (joined,) = reorder(messages, OrderCaps(system_later=False, users_in_row=False), system=True)
    assert [part["text"] for part in joined["content"]] == ["look", "\n\n", "System message:\nBe brief."]


def test_calls_are_not_joined_with_what_follows_them() -> None:
    call: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    said: dict[str, Any] = {"role": "assistant", "content": "Let me see."}
    caps = OrderCaps(assistants_in_row=False)
    assert reorder([said, call], caps, system=True) == [{**call, "content": "Let me see."}]
    assert reorder([call, said], caps, system=True) == [call, said]


def test_nothing_is_changed_where_every_order_is_taken() -> None:
    messages = [{"role": LETTERS[letter], "content": letter} for letter in "SSAAUUSUSA"]
    assert reorder(messages, EVERYTHING, system=True) == messages
    assert lost(messages, EVERYTHING) is None

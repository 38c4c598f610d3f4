"""The chat templates in llama.cpp's source tree: each compiles, and shows the model all it can take of a conversation."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import Any

import pytest

from saiserve.engines.llamacpp.template import ChatTemplate, TemplateError
from saiserve.engines.llamacpp.template_caps import TemplateCaps
from saiserve.engines.llamacpp.vocabulary import Markers
from saiserve.engines.messages import Prompt
from tests.fixtures.llama_cpp_sources import sources

pytestmark = pytest.mark.slow

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "which"}},
            "required": ["city"],
        },
    },
}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Montélimar"}}}
SYSTEM = {"role": "system", "content": "Be terse, please."}
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "First question"},
    {"role": "assistant", "content": "First answer"},
    {"role": "user", "content": "Second question"},
]
USE: list[dict[str, Any]] = [
    {"role": "user", "content": "First question"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "name": "get_weather", "tool_call_id": "abcdefghi", "content": "It rains."},
]
WITHOUT_SYSTEM = {"google-gemma-2-2b-it"}
"""Their makers trained no system message; the others' caps must say they take one."""
WITHOUT_CALLS = {
    "HuggingFaceTB-SmolLM3-3B", "LFM2-8B-A1B", "LFM2.5-Instruct", "google-gemma-2-2b-it",
    "ibm-granite-granite-3.3-2B-Instruct", "llama-cpp-rwkv-world", "microsoft-Phi-3.5-mini-instruct",
}  # fmt: skip
"""They drop the calls an assistant made, or refuse them."""
ALTERNATING = {
    "Mistral-Small-3.2-24B-Instruct-2506", "google-gemma-2-2b-it", "mistralai-Ministral-3-14B-Reasoning-2512",
    "mistralai-Mistral-Nemo-Instruct-2407",
}  # fmt: skip
"""They want user and assistant in turn, the user first."""
NO_QUESTION = {"NVIDIA-Nemotron-Nano-v2", "Qwen3.5-4B"}
"""They refuse conversations in which no user speaks."""
LEAST = 60
"""Templates that the tree holds at least: an empty folder proves nothing."""


@pytest.fixture(scope="module")
def templates() -> dict[str, ChatTemplate]:
    found: dict[str, ChatTemplate] = {}
    for path in sorted((sources() / "models" / "templates").glob("*.jinja")):
        found[path.stem] = ChatTemplate(path.read_text("utf-8"), bos="<s>", eos="</s>", markers=Markers([]))
    assert len(found) >= LEAST
    return found


def render(template: ChatTemplate, messages: list[dict[str, Any]], *tools: dict[str, Any]) -> str:
    return template.render(Prompt(messages=tuple(messages), tools=tools)).text


def in_order(text: str, *words: str) -> bool:
    places = [text.find(word) for word in words]
    return -1 not in places and places == sorted(places)


def test_a_conversation_comes_out_whole_and_in_order(templates: dict[str, ChatTemplate]) -> None:
    for name, template in templates.items():
        text = render(template, TALK)
        assert in_order(text, "First question", "First answer", "Second question"), name


def test_a_system_message_reaches_the_model_with_or_without_a_role_for_it(templates: dict[str, ChatTemplate]) -> None:
    for name, template in templates.items():
        assert in_order(render(template, [SYSTEM, *TALK]), "Be terse, please.", "Second question"), name
    assert {name for name, template in templates.items() if not template.caps.system} == WITHOUT_SYSTEM


def test_tools_are_shown_where_the_caps_say_so(templates: dict[str, ChatTemplate]) -> None:
    for name, template in templates.items():
        if template.caps.tools:
            assert "get_weather" in render(template, TALK, TOOL), name
    assert sum(template.caps.tools for template in templates.values()) >= LEAST - 12


def test_calls_and_results_come_out_as_json_where_the_caps_say_so(templates: dict[str, ChatTemplate]) -> None:
    for name, template in templates.items():
        if not (template.caps.tool_calls or template.caps.tool_results):
            with suppress(TemplateError):
                render(template, USE, TOOL)
            continue
        text = render(template, USE, TOOL)
        if template.caps.tool_calls:
            assert "Montélimar" in text or "Mont\\u00e9limar" in text, name
            talk = text[text.find("First question") :]  # one prints the tools themselves as Python would
            assert "'city'" not in talk, name
            assert '\\"city' not in talk, name
        if template.caps.tool_results:
            assert "It rains." in text, name
    assert {name for name, template in templates.items() if not template.caps.tool_calls} == WITHOUT_CALLS


def test_the_last_answer_can_be_left_open_or_the_template_says_why(templates: dict[str, ChatTemplate]) -> None:
    left_open = 0
    for name, template in templates.items():
        messages = (*TALK, {"role": "assistant", "content": "It begins"})
        try:
            text = template.render(Prompt(messages=messages, continue_final=True)).text
        except TemplateError:
            continue
        assert text.endswith("It begins"), name
        left_open += 1
    assert left_open >= LEAST - 12


LETTERS = {"S": "system", "U": "user", "A": "assistant"}
SHAPES = [
    *("".join(letters) for count in (1, 2, 3) for letters in itertools.product("SUA", repeat=count)),
    "SSUAU", "UUAU", "USAU", "SUSA", "SAUS", "ASUA", "UAAS", "SUASU", "SUAUS", "SSUUASU", "SUSUSU", "UAUAAU", "SSSUSSAUU",
    "UTU", "SUTUS", "SSUTSUAU", "UTSAU", "SUTTU",
]  # fmt: skip
"""Conversations, a letter a message; T is a call with its result."""


def conversation(shape: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Messages of a shape with a word in each, and the words in order."""
    messages: list[dict[str, Any]] = []
    words = [f"word{place}." for place in range(len(shape))]
    for letter, word in zip(shape, words, strict=True):
        if letter == "T":
            messages.append({"role": "assistant", "content": "", "tool_calls": [CALL]})
            messages.append({"role": "tool", "name": "get_weather", "tool_call_id": CALL["id"], "content": word})
        else:
            messages.append({"role": LETTERS[letter], "content": word})
    return messages, words


@pytest.mark.parametrize("shape", SHAPES)
def test_in_any_order_all_messages_come_out_in_place_or_the_refusal_is_quoted(
    shape: str, templates: dict[str, ChatTemplate]
) -> None:
    messages, words = conversation(shape)
    refused: dict[str, str] = {}
    for name, template in templates.items():
        if "T" in shape and not (template.caps.tool_calls and template.caps.tool_results):
            continue
        try:
            text = template.render(Prompt(messages=tuple(messages), tools=(TOOL,) if "T" in shape else ())).text
        except TemplateError as error:
            refused[name] = str(error)
            continue
        assert in_order(text, *words), name
    answer_first = shape.lstrip("S").startswith("A")
    quoted = "the model's chat template refuses these messages: "
    assert all(reason.startswith(quoted) for reason in refused.values()), refused
    assert set(refused) <= (ALTERNATING if answer_first else set()) | (NO_QUESTION if "U" not in shape else set())


def test_the_head_of_a_prompt_stays_as_a_conversation_grows(templates: dict[str, ChatTemplate]) -> None:
    messages, _ = conversation("SSUAUASUAUSU")
    for name, template in templates.items():
        heads = {
            template.render(Prompt(messages=tuple(messages[:count]))).text.partition("word2.")[0]
            for count in range(3, len(messages) + 1)
            if messages[count - 1]["role"] != "assistant"
        }
        assert len(heads) == 1, name


def test_known_templates_have_known_orders(templates: dict[str, ChatTemplate]) -> None:
    def lacks(cap: str) -> set[str]:
        return {name for name, template in templates.items() if not getattr(template.caps.order, cap)}

    assert {"Qwen3.5-4B", "openai-gpt-oss-120b", "HuggingFaceTB-SmolLM3-3B", "MiniMax-M2"} <= lacks("system_run")
    assert "Qwen-Qwen3-0.6B" not in lacks("system_run") | lacks("system_later") | lacks("users_in_row")
    assert {"deepseek-ai-DeepSeek-V3.1"} <= lacks("system_later") - lacks("system_run")
    assert lacks("users_in_row") == lacks("assistants_in_row") == lacks("assistant_first") == ALTERNATING
    assert lacks("system_stays") == {"mistralai-Mistral-Nemo-Instruct-2407", *WITHOUT_SYSTEM}
    assert lacks("user_after_tool") == ALTERNATING - WITHOUT_SYSTEM


def test_known_templates_have_known_caps(templates: dict[str, ChatTemplate]) -> None:
    def caps(name: str) -> TemplateCaps:
        return templates[name].caps

    assert not caps("meetkai-functionary-medium-v3.2").object_arguments
    assert caps("deepseek-ai-DeepSeek-R1-Distill-Llama-8B").null_content
    assert not caps("meta-llama-Llama-3.1-8B-Instruct").parallel_calls
    assert caps("Qwen-Qwen3-0.6B").parallel_calls
    assert caps("NousResearch-Hermes-3-Llama-3.1-8B-tool_use").empty_tools
    assert caps("Qwen3.5-4B").typed_content
    assert not caps("Qwen-Qwen2.5-7B-Instruct").typed_content

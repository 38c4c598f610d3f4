"""The chat templates in llama.cpp's source tree: each compiles, and shows the model all it can take of a conversation."""

from __future__ import annotations

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

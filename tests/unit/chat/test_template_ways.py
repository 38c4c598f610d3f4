"""What a template tells, as a number and back, and which tags follow from it."""

from __future__ import annotations

import pytest

from saiserve.chat.template_ways import FORMAT_NUMBERS, TemplateWays, tags_of_template, ways_numbered, ways_of
from saiserve.chat.tool_formats import FORMATS
from tests.fixtures.tiny_models import LLAMA_CALLS, TEMPLATE, THINKING

SWITCHED_OFF = TEMPLATE.replace(
    "assistant\n", "assistant\n{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)


def test_every_tool_format_has_a_number() -> None:
    assert set(FORMAT_NUMBERS) == {"", *FORMATS}
    assert FORMAT_NUMBERS[:6] == ("", "hermes", "qwen_xml", "llama3", "mistral", "json"), "numbers never change"


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("name", FORMAT_NUMBERS)
def test_ways_come_back_from_their_number(name: str, begins: bool) -> None:
    ways = TemplateWays(begins, name)
    assert ways_numbered(ways.number) == ways
    assert 0 < ways.number < 128, "one byte of msgpack"
    assert ways_numbered(ways.number | 1 << 40) == ways, "bits of a newer node"


def test_what_is_not_known_stays_unknown_and_newer_formats_are_json() -> None:
    assert ways_numbered(0) is None
    assert ways_numbered(2) is None
    assert ways_of("") is None
    assert ways_numbered(1 | 31 << 2) == TemplateWays(False, "json")


@pytest.mark.parametrize(
    ("template", "ways", "tags"),
    [
        (TEMPLATE, TemplateWays(), set()),
        (THINKING, TemplateWays(begins_reasoning=True), {"reasoning"}),
        (SWITCHED_OFF, TemplateWays(), {"reasoning"}),
        (LLAMA_CALLS, TemplateWays(tool_format="llama3"), {"tools"}),
    ],
)
def test_a_template_tells_how_output_begins_how_calls_are_written_and_what_it_can(
    template: str, ways: TemplateWays, tags: set[str]
) -> None:
    assert ways_of(template) == ways
    assert tags_of_template(template) == tags


def test_what_rendering_found_out_outranks_the_words() -> None:
    assert tags_of_template(LLAMA_CALLS, {"supports_tools": False}) == set()
    assert tags_of_template("", {"supports_tools": True}) == set()

"""Every block and tool the official SDK can send: it is taken, and what it says is in the prompt or dropped for a reason told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import ContentBlockParam, ToolUnionParam
from anthropic.types.beta import BetaContentBlockParam, BetaToolUnionParam

from saiserve.api.context import Origin
from saiserve.api.messages_blocks import CALLS, DROPPED
from saiserve.api.messages_request import decode_messages
from saiserve.chat.request import GenerationRequest, ImagePart, Role
from saiserve.errors import ApiError
from tests.fixtures.sdk_shapes import Sample, members_of, type_of

ORIGIN = Origin("r1", "k", 1, lambda: 1, ())
BLOCKS = [*members_of(ContentBlockParam), *members_of(BetaContentBlockParam)]
TOOLS = [*members_of(ToolUnionParam), *members_of(BetaToolUnionParam)]
IMAGE = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
SOURCES = {"image": IMAGE, "document": {"type": "text", "media_type": "text/plain", "data": "mark-of-source"}}
BESIDE = {
    "id", "tool_use_id", "cache_control", "citations", "signature", "encrypted_content", "tool_changes", "caller", "source",
    "toolset_name", "transformations",
}  # fmt: skip
"""Members whose texts are not for a model, or that only tie blocks together."""
ASSISTANT = {*CALLS, "thinking", "redacted_thinking", "fallback", "compaction"}


def asked(*messages: Any, **fields: Any) -> GenerationRequest:
    hi = {"role": "user", "content": "hi"}
    body = {"model": "m", "max_tokens": 5, "messages": [hi, *messages], **fields}
    return decode_messages(json.dumps(body).encode(), ORIGIN)


def shown(request: GenerationRequest) -> str:
    """All texts that the prompt is made of, calls as they would be written."""
    parts = [message.text + message.reasoning for message in request.messages or ()]
    return "\n".join(
        parts + [call.name + call.arguments for message in request.messages or () for call in message.tool_calls]
    )


@pytest.mark.parametrize("block", BLOCKS, ids=[block.__name__ for block in BLOCKS])
@pytest.mark.parametrize("required_only", [True, False])
def test_every_block_of_the_sdk_is_taken_and_what_it_says_is_kept(block: Any, required_only: bool) -> None:
    kind = type_of(block)
    sample = Sample({"source": SOURCES[kind]} if kind in SOURCES else {}, required_only)
    value = sample.of(block)
    is_server_result = kind.endswith("_tool_result") and kind != "tool_result"
    role = "assistant" if kind in ASSISTANT or is_server_result else "user"
    if kind == "tool_result":
        value["content"] = "mark-of-content"
    request = asked({"role": role, "content": [value]})
    if kind == "image":
        assert isinstance((request.messages or ())[-1].parts[0], ImagePart)
    if kind in DROPPED:
        assert len(request.messages or ()) == 1
        return
    for path, mark in sample.marks.items():
        if not BESIDE & set(path.split(".")) and not (kind == "tool_result" and path.startswith("content")):
            assert mark in shown(request), path


def test_each_reason_for_dropping_belongs_to_a_block_the_sdk_has() -> None:
    assert set(DROPPED) - {"mid_conv_tool_change"} <= {type_of(block) for block in BLOCKS}


@pytest.mark.parametrize("tool", TOOLS, ids=[tool.__name__ for tool in TOOLS])
@pytest.mark.parametrize("required_only", [True, False])
def test_every_tool_of_the_sdk_is_shown_or_told_to_be_missing(tool: Any, required_only: bool) -> None:
    fixed = {
        "name": "the_tool",
        "defer_loading": False,
        "input_schema": {"type": "object"},
        "description": "what it does",
    }
    value = Sample(fixed, required_only).of(tool)
    request = asked(tools=[value])
    told = (request.messages or ())[0].text if len(request.messages or ()) > 1 else ""
    name = value.get("name", value.get("type", ""))
    is_searching = value.get("type", "").startswith("tool_search_")
    assert [one.name for one in request.tools] == [name] or name in told or is_searching


def test_what_a_server_ran_is_a_call_and_its_result_where_it_stood() -> None:
    found = [{"type": "web_search_result", "title": "t", "url": "u"}]
    turn = [
        {"type": "text", "text": "a"},
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": found},
        {"type": "mcp_tool_use", "id": "m1", "name": "get", "server_name": "files", "input": {}},
        {
            "type": "mcp_tool_result",
            "tool_use_id": "m1",
            "is_error": True,
            "content": [{"type": "text", "text": "gone"}],
        },
        {"type": "text", "text": "b"},
    ]
    _, first, one, second, two, last = asked({"role": "assistant", "content": turn}).messages or ()
    assert (first.text, [call.name for call in first.tool_calls]) == ("a", ["web_search"])
    assert (one.role, one.tool_call_id, json.loads(one.text)) == (Role.TOOL, "s1", found)
    assert (second.text, [call.name for call in second.tool_calls]) == ("", ["files__get"])
    assert (two.role, two.tool_call_id, two.text, two.is_error) == (Role.TOOL, "m1", "gone", True)
    assert (last.role, last.text) == (Role.ASSISTANT, "b")


TOOL = {"name": "one", "input_schema": {"type": "object"}}
NEW = {"type": "tool_definition", "definition": {"name": "new", "input_schema": {"type": "object"}}}


def change(kind: str, tool: dict[str, Any]) -> dict[str, Any]:
    return {"role": "system", "content": [{"type": f"tool_{kind}", "tool": tool}]}


def reference(name: str) -> dict[str, Any]:
    return {"type": "tool_reference", "name": name}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ([], ["one"]),
        ([change("addition", reference("two"))], ["one", "two"]),
        ([change("removal", reference("one"))], []),
        ([change("removal", reference("one")), change("addition", reference("one"))], ["one"]),
        ([change("addition", NEW)], ["one", "new"]),
        ([change("addition", NEW), change("removal", reference("new"))], ["one"]),
        (
            [{"role": "assistant", "content": [{"type": "compaction", "content": "s", "tool_changes": change("addition", NEW)["content"]}]}],
            ["one", "new"],
        ),
        (
            [{"role": "assistant", "content": [{"type": "tool_search_tool_result", "tool_use_id": "x", "content": {"type": "tool_search_tool_search_result", "tool_references": [{"type": "tool_reference", "tool_name": "two"}]}}]}],
            ["one", "two"],
        ),
    ],
)  # fmt: skip
def test_a_conversation_may_change_its_tools(changes: list[Any], names: list[str]) -> None:
    request = asked(
        *changes, {"role": "user", "content": "go"}, tools=[TOOL, {**TOOL, "name": "two", "defer_loading": True}]
    )
    assert [tool.name for tool in request.tools] == names


def test_a_summary_of_what_was_compacted_is_shown() -> None:
    request = asked({"role": "assistant", "content": [{"type": "compaction", "content": "so far"}]})
    assert (request.messages or ())[-1].text == "so far"


@pytest.mark.parametrize(
    "source",
    [
        {"type": "base64", "media_type": "application/pdf", "data": "QQ=="},
        {"type": "url", "url": "https://web.example/a.pdf"},
        {"type": "file", "file_id": "f"},
    ],
)
def test_documents_that_cannot_be_read_here_are_refused(source: dict[str, Any]) -> None:
    with pytest.raises(ApiError, match="only text documents"):
        asked({"role": "user", "content": [{"type": "document", "source": source}]})

"""Every item the official SDK can send: it is taken, and what it says is in the prompt or dropped for a reason told."""

from __future__ import annotations

import json
import typing
from typing import Any

import pytest
from openai.types.responses.response_input_item_param import ResponseInputItemParam

from saiserve.api.context import Origin
from saiserve.api.responses_calls import CALLS, DROPPED, LOADING, OUTPUTS
from saiserve.api.responses_references import response_id_of
from saiserve.api.responses_request import decode_response
from saiserve.api.responses_schema import Item
from saiserve.api.responses_tools import tool_set
from saiserve.chat.request import GenerationRequest, Role
from saiserve.errors import ApiError
from saiserve.limits import TOOLS_MAX
from tests.fixtures.sdk_shapes import PIXEL, Sample, type_of

ORIGIN = Origin("r1", "k", 1, lambda: 1, ())
ITEMS = typing.get_args(ResponseInputItemParam)
FIXED = {"image_url": PIXEL, "arguments": '{"mark": "arguments"}', "error": "mark-of-error"}
SAID = frozenset({"message", "reasoning"})
KNOWN = {*SAID, *CALLS, *OUTPUTS, *DROPPED, "mcp_approval_response", "item_reference", ""}
BESIDE = {
    "id", "call_id", "approval_request_id",  # tie items together
    "namespace", "server_label",  # part of a tool's name
    "caller", "created_by", "file_id", "container_id", "fingerprint", "encrypted_content",  # only OpenAI's servers know them
    "annotations", "logprobs", "acknowledged_safety_checks", "max_output_length",  # about what is said, not said
    "result", "svg_usage", "detail", "prompt_cache_breakpoint",
}  # fmt: skip
"""Members whose texts are not for a model."""


def decoded(*items: Any) -> GenerationRequest:
    return decode_response(json.dumps({"model": "m", "input": items}).encode(), ORIGIN).request


def shown(request: GenerationRequest) -> str:
    """All that the prompt is made of."""
    parts = [message.name + message.text + message.reasoning for message in request.messages or ()]
    calls = [call.name + call.arguments for message in request.messages or () for call in message.tool_calls]
    return "\n".join([*parts, *calls, *(f"{tool.name} {tool.description}" for tool in request.tools)])


@pytest.mark.parametrize("member", ITEMS, ids=[member.__name__ for member in ITEMS])
@pytest.mark.parametrize("required_only", [True, False])
def test_every_item_of_the_sdk_is_taken_and_what_it_says_is_kept(member: Any, required_only: bool) -> None:
    sample = Sample(FIXED, required_only)
    item = sample.of(member)
    kind = item.get("type", type_of(member))
    assert kind in KNOWN, f"{kind}: say in responses_calls how it is read"
    if kind == "item_reference" or (set(item) <= {"id", "type"} and kind not in DROPPED):
        with pytest.raises(ApiError, match="no kept response holds this item"):
            decoded(item)
        return
    prompt = shown(decoded(item))
    if kind in DROPPED:
        return
    beside = BESIDE | ({"summary"} if "content" in item else set()) - (
        {"result"} if kind == "program_output" else set()
    )
    for path, mark in sample.marks.items():
        if not beside & set(path.split(".")):
            assert mark in prompt, path


def test_each_reason_for_dropping_belongs_to_an_item_the_sdk_has() -> None:
    kinds = {type_of(member) for member in ITEMS}
    assert set(DROPPED) <= kinds
    assert set(CALLS) <= kinds
    assert set(OUTPUTS) <= kinds


def test_tools_that_items_load_can_be_called() -> None:
    tool = {"type": "function", "name": "found", "parameters": {"type": "object"}, "strict": False}
    for kind in sorted(LOADING):
        request = decoded({"type": kind, "role": "developer", "tools": [tool, tool]}, {"role": "user", "content": "x"})
        assert [one.name for one in request.tools] == ["found"]


def test_a_tool_that_is_loaded_again_stays_as_it_is_at_its_place() -> None:
    one, two = ({"type": "function", "name": name, "parameters": {"type": "object"}} for name in ("one", "two"))
    as_text = {"type": "custom", "name": "one"}
    tools = [Item(type="additional_tools", tools=given) for given in ([one, two], [one] * TOOLS_MAX, [as_text])]
    found = tool_set([], tools)
    assert [(tool.name, tool.parameters) for tool in found.tools] == [
        (name, {"type": "object"}) for name in ("one", "two")
    ]
    assert not found.custom


def test_a_result_in_the_call_itself_is_a_result_of_its_own() -> None:
    call = {"type": "mcp_call", "id": "c", "name": "n", "server_label": "s", "arguments": '{"a":1}', "output": "out"}
    said, came = decoded(call).messages or ()
    assert (said.tool_calls[0].name, said.tool_calls[0].arguments) == ("s__n", '{"a":1}')
    assert (came.role, came.tool_call_id, came.text) == (Role.TOOL, "c", "out")


@pytest.mark.parametrize(
    ("output", "answers"), [({}, "c2"), ({"name": "a"}, "c1"), ({"name": "z"}, ""), ({"call_id": "c1"}, "c1")]
)
def test_an_output_without_a_call_belongs_to_the_last_open_one(output: dict[str, Any], answers: str) -> None:
    calls = [
        {"type": "function_call", "call_id": f"c{n}", "name": name, "arguments": "{}"}
        for n, name in ((1, "a"), (2, "b"))
    ]
    request = decoded(*calls, {"type": "function_call_output", "output": "x", **output})
    assert (request.messages or ())[-1].tool_call_id == answers


def test_a_local_shells_output_names_the_item_of_its_call() -> None:
    call = {"type": "local_shell_call", "id": "i", "call_id": "c", "action": {"command": ["ls"]}, "status": "completed"}
    request = decoded(call, {"type": "local_shell_call_output", "id": "i", "output": "files"})
    assert (request.messages or ())[-1].tool_call_id == "c"


@pytest.mark.parametrize("kind", ["custom_tool_call_output", "shell_call_output", "apply_patch_call_output"])
def test_other_outputs_must_name_their_call(kind: str) -> None:
    with pytest.raises(ApiError) as caught:
        decoded({"type": kind, "status": "failed"})
    assert caught.value.param == "input[0].call_id"


def test_a_changed_effort_is_that_of_the_answer() -> None:
    change = {"type": "configuration_update", "reasoning": {"effort": "none"}}
    assert decoded({"role": "user", "content": "x"}, change).template_options == {
        "reasoning_effort": "none",
        "enable_thinking": False,
    }


@pytest.mark.parametrize(
    ("item_id", "response"), [("msg_abc_0", "resp_abc"), ("x", ""), ("msg_abc", ""), ("msg_a_x", "")]
)
def test_an_items_id_leads_to_its_response(item_id: str, response: str) -> None:
    assert response_id_of(item_id) == response

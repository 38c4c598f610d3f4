"""Requests in the shape chat templates expect."""

from __future__ import annotations

from saiserve.chat.prompt import prompt_of
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
from saiserve.engines.messages import Sampling


def request_of(**more: object) -> GenerationRequest:
    values: dict[str, object] = {"model": "m", "sampling": Sampling(seed=1), **more}
    return GenerationRequest(id="r", dialect=Dialect.CHAT, **values)  # type: ignore[arg-type]


def test_turns_tools_and_calls_become_plain_dicts() -> None:
    messages = (
        Message(Role.SYSTEM, (TextPart("be "), TextPart("brief"))),
        Message(Role.ASSISTANT, reasoning="hm", tool_calls=(ToolCall("c1", "add", '{"a": 1}'),)),
        Message(Role.TOOL, (TextPart("2"),), tool_call_id="c1", name="add"),
    )
    prompt = prompt_of(request_of(messages=messages, tools=(Tool("add", "adds", {"type": "object"}),)))
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    assert prompt.messages == (
        {"role": "system", "content": "be brief"},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "content": "2", "name": "add", "tool_call_id": "c1"},
    )
    assert prompt.tools[0]["function"]["name"] == "add"
    assert prompt.add_generation_prompt


def test_arguments_that_are_no_object_stay_text() -> None:
    for arguments in ("not json", "[1]", '"x"'):
        messages = (Message(Role.ASSISTANT, tool_calls=(ToolCall("c", "f", arguments),)),)
        prompt = prompt_of(request_of(messages=messages))
        assert prompt.messages is not None
        assert prompt.messages[0]["tool_calls"][0]["function"]["arguments"] == arguments


def test_tools_are_hidden_when_none_may_be_called() -> None:
    choice = ToolChoice(ToolChoiceMode.NONE)
    assert prompt_of(request_of(messages=(), tools=(Tool("f"),), tool_choice=choice)).tools == ()


def test_an_open_last_turn_asks_for_no_new_one() -> None:
    prompt = prompt_of(request_of(messages=(Message(Role.ASSISTANT, (TextPart("I "),)),), continue_final=True))
    assert prompt.continue_final
    assert not prompt.add_generation_prompt


def test_images_keep_their_place_and_bytes_become_data_urls() -> None:
    parts = (TextPart("see"), ImagePart("image/png", b"\x01"), ImagePart("image/png", url="https://x/y.png"))
    prompt = prompt_of(request_of(messages=(Message(Role.USER, parts),)))
    assert prompt.messages is not None
    content = prompt.messages[0]["content"]
    assert [part["type"] for part in content] == ["text", "image_url", "image_url"]
    assert content[1]["image_url"]["url"] == "data:image/png;base64,AQ=="


def test_raw_text_and_tokens_pass_as_they_are() -> None:
    assert prompt_of(request_of(prompt_text="x", template_options={"add_special": False})).text == "x"
    assert prompt_of(request_of(prompt_tokens=(1, 2))).tokens == (1, 2)

"""Every bounded field of the public APIs at its edges: the edge is taken, what lies beyond is 400 and named, null is absent."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from saiserve import limits
from saiserve.api.body import decode
from saiserve.api.chat_request import decode_chat
from saiserve.api.completions import decode_completion
from saiserve.api.context import Origin
from saiserve.api.embedding_inputs import inputs_of
from saiserve.api.embeddings import EmbeddingsBody
from saiserve.api.messages_request import decode_count, decode_messages
from saiserve.api.responses_request import decode_response
from saiserve.errors import ApiError, ErrorKind

ORIGIN = Origin("r1", "k", 1, lambda: 1, ())
HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "go", "parameters": {"type": "object"}}}
A_TOOL = {"name": "go", "input_schema": {"type": "object"}}
R_TOOL = {"type": "function", "name": "go", "parameters": {"type": "object"}}


def embeddings(data: bytes, _origin: Origin) -> Any:
    body = decode(data, EmbeddingsBody)
    return inputs_of(body.input)


DECODERS: dict[str, tuple[Callable[[bytes, Origin], Any], dict[str, Any]]] = {
    "chat": (decode_chat, {"model": "m", "messages": HI}),
    "completions": (decode_completion, {"model": "m", "prompt": "hi"}),
    "embeddings": (embeddings, {"model": "m", "input": "hi"}),
    "responses": (decode_response, {"model": "m", "input": "hi"}),
    "messages": (decode_messages, {"model": "m", "messages": HI, "max_tokens": 9}),
    "count_tokens": (decode_count, {"model": "m", "messages": HI}),
}


def ask(dialect: str, fields: dict[str, Any]) -> Any:
    decoder, base = DECODERS[dialect]
    return decoder(json.dumps({**base, **fields}).encode(), ORIGIN)


def named(
    name: str, good: list[Any], bad: list[Any], **beside: Any
) -> tuple[str, list[Any], list[Any], dict[str, Any]]:
    return name, good, bad, beside


SAMPLING = [
    named("temperature", [0, 2, 0.5], [-0.01, 2.01, "1", True]),
    named("top_p", [0, 1], [-0.1, 1.1, "1"]),
    named("frequency_penalty", [-2, 2], [-2.1, 2.1]),
    named("presence_penalty", [-2, 2], [-2.1, 2.1]),
    named("n", [1, limits.CHOICES_MAX], [0, limits.CHOICES_MAX + 1, 1.5]),
    named("seed", [0, 2**63 - 1, -1], [2**64, "1", 0.5]),
    named("stop", ["a", ["a"], ["a", "b", "c", "d"]], [5, [5], [""], ["a"] * (limits.STOP_STRINGS_MAX + 1)]),
    named("max_tokens", [1, 32_000], ["1", 1.5, -2]),
    named("stream", [True, False], ["yes", 1]),
    named("logit_bias", [{}, {"5": 100}, {"5": -100}], [{"5": 101}, {"5": "x"}, {"x": 1}, 3]),
]
REASONING = ["none", "minimal", "low", "medium", "high", "xhigh", "max"]
LIMITS = {
    "chat": [
        *SAMPLING,
        named("messages", [HI, HI * 3], [[], "hi", {}, [{"role": "robot", "content": "x"}], [{"content": "x"}], [5]]),
        named("max_completion_tokens", [1, 128_000], ["1", -2]),
        named("logprobs", [True, False], ["yes"]),
        named("top_logprobs", [0, 20], [-1, 21], logprobs=True),
        named("top_logprobs", [0], [1, 20]),
        named("reasoning_effort", REASONING, ["extreme", 3]),
        named("tools", [[TOOL], []], [[{}], [{"type": "function"}], "go"]),
        named(
            "tool_choice",
            ["none", "auto", "required", {"type": "function", "function": {"name": "go"}}],
            ["maybe", {"type": "function", "function": {"name": "other"}}, {"type": "x"}],
            tools=[TOOL],
        ),
        named("parallel_tool_calls", [True, False], ["no"]),
        named(
            "response_format",
            [
                {"type": "text"},
                {"type": "json_object"},
                {"type": "json_object", "schema": {"type": "object"}},
                {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
                {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}, "strict": True}},
            ],
            [{"type": "sound"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {}}, {}, "text"],
        ),
        named("stream_options", [{"include_usage": True}, {"include_obfuscation": False}, {}], [5]),
    ],
    "completions": [
        *(row for row in SAMPLING if row[0] != "n"),
        named("n", [1, 4], [0, limits.CHOICES_MAX + 1]),
        named("best_of", [0, 1], [-1, 21, 2]),
        named("logprobs", [0, 5], [-1, 21, "1"]),
        named("prompt", ["a", ["a", "b"], [1, 2], [[1], [2, 3]]], ["", [], [[]], [""], [-1], {}, 5]),
        named("echo", [True, False], ["yes"]),
    ],
    "embeddings": [
        named("input", ["a", ["a"], [1, 2], [[1], [2]], ["a"] * 2048], ["", [], [""], ["a"] * 2049, 5, {}]),
        named("encoding_format", ["float", "base64"], ["int8", 5]),
        named("dimensions", [1, 256], [0, -1, "1"]),
    ],
    "responses": [
        named("temperature", [0, 2], [-0.1, 2.1]),
        named("top_p", [0, 1], [-0.1, 1.1]),
        named("top_logprobs", [0, 20], [-1, 21]),
        named("max_output_tokens", [1, 16], [0, -1, "1"]),
        named("truncation", ["auto", "disabled"], ["sometimes", 5]),
        named("input", ["a", [{"role": "user", "content": "a"}]], [5, [5], [{"role": "robot", "content": "a"}]]),
        named("tools", [[R_TOOL], [{"type": "web_search"}], [{"type": "new_and_unknown"}]], [[5], "go"]),
        named(
            "tool_choice",
            ["none", "auto", "required", {"type": "function", "name": "go"}],
            ["maybe", {"type": "function", "name": "other"}],
            tools=[R_TOOL],
        ),
        named("reasoning", [{}, *({"effort": effort} for effort in REASONING)], [{"effort": "extreme"}, 5]),
        named("metadata", [{}, {"a": "b"}], [{"a": 5}, 5]),
        named("include", [[], ["reasoning.encrypted_content"], ["new.thing"]], ["all", [5]]),
    ],
    "messages": [
        named("max_tokens", [1, 128_000], [0, -1, "1", None]),
        named("temperature", [0, 1], [-0.1, 1.1]),
        named("top_p", [0, 1], [-0.1, 1.1]),
        named("top_k", [0, 40], [-1, "1"]),
        named("stop_sequences", [[], ["a"]], ["a", [5]]),
        named("messages", [HI, [*HI, {"role": "system", "content": "x"}]], [[], [{"role": "tool", "content": "x"}]]),
        named("system", ["a", [{"type": "text", "text": "a"}]], [5, [{"type": "image"}]]),
        named("tools", [[A_TOOL], [{"type": "web_search_20250305", "name": "w"}], [{"type": "new_1", "name": "x"}]], ["go"]),
        named(
            "tool_choice",
            [{"type": "auto"}, {"type": "any"}, {"type": "none"}, {"type": "tool", "name": "go"}],
            [{"type": "maybe"}, {"type": "tool", "name": "other"}, {"type": "tool"}, "auto"],
            tools=[A_TOOL],
        ),
        named("metadata", [{}, {"user_id": "u"}], [{"user_id": 5}, 5]),
        named("output_config", [{}, {"effort": "high"}], [5, {"format": {"type": "xml"}}, {"format": {"type": "json_schema"}}]),
    ],
    "count_tokens": [named("messages", [HI], [[]])],
}  # fmt: skip
ROWS = [(dialect, *row) for dialect, rows in LIMITS.items() for row in rows]


@pytest.mark.parametrize(("dialect", "name", "good", "bad", "beside"), ROWS, ids=[f"{r[0]}-{r[1]}" for r in ROWS])
def test_a_field_is_taken_up_to_its_edges_and_named_beyond(
    dialect: str, name: str, good: list[Any], bad: list[Any], beside: dict[str, Any]
) -> None:
    for value in good:
        ask(dialect, {**beside, name: value})
    for value in bad:
        with pytest.raises(ApiError) as caught:  # noqa: PT012  # or the value that was taken would not be named
            ask(dialect, {**beside, name: value})
            pytest.fail(f"{name} {value!r} was taken")
        assert caught.value.kind is ErrorKind.INVALID_REQUEST
        assert (caught.value.param or "").startswith(name), (value, caught.value.param)


OPTIONAL = sorted({(dialect, name) for dialect, name, *_ in ROWS if name not in DECODERS[dialect][1]})


@pytest.mark.parametrize(("dialect", "name"), OPTIONAL)
def test_null_is_absent(dialect: str, name: str) -> None:
    ask(dialect, {name: None})


@pytest.mark.parametrize("dialect", list(DECODERS))
def test_a_field_nobody_knows_is_ignored(dialect: str) -> None:
    ask(dialect, {"safeguards": {"x": [1]}, "a field": None})


@pytest.mark.parametrize(
    ("dialect", "missing"), [(dialect, name) for dialect, (_, base) in DECODERS.items() for name in base]
)
def test_what_is_required_is_missed_by_name(dialect: str, missing: str) -> None:
    decoder, base = DECODERS[dialect]
    body = {name: value for name, value in base.items() if name != missing}
    if (dialect, missing) in {("responses", "input"), ("embeddings", "model")}:
        decoder(json.dumps(body).encode(), ORIGIN)
        return
    with pytest.raises(ApiError) as caught:
        decoder(json.dumps(body).encode(), ORIGIN)
    assert caught.value.param == missing


@pytest.mark.parametrize("name", ["a", "a" * 64, "A_z-0"])
@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_names_of_functions_are_those_of_the_public_api(dialect: str, name: str) -> None:
    tools = {
        "chat": [{"type": "function", "function": {"name": name}}],
        "responses": [{"type": "function", "name": name}],
    }
    ask(dialect, {"tools": tools[dialect]})


@pytest.mark.parametrize("name", ["", "a" * 129, "a b", "<|im_start|>", "a\n", "ü"])
@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
def test_other_names_are_refused(dialect: str, name: str) -> None:
    tools = {
        "chat": [{"type": "function", "function": {"name": name}}],
        "responses": [{"type": "function", "name": name}],
        "messages": [{**A_TOOL, "name": name}],
    }
    with pytest.raises(ApiError) as caught:
        ask(dialect, {"tools": tools[dialect]})
    assert (caught.value.param or "").startswith("tools")

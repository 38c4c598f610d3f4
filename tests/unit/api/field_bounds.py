"""The bounded fields of the public APIs: for each dialect what is taken, up to the edge, and what is not, just beyond."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from saiserve import limits
from saiserve.api.body import decode
from saiserve.api.chat_request import decode_chat
from saiserve.api.completions import decode_completion
from saiserve.api.context import Origin
from saiserve.api.embedding_inputs import inputs_of
from saiserve.api.embeddings import EmbeddingsBody
from saiserve.api.messages_request import decode_count, decode_messages
from saiserve.api.native import InfillBody, decode_native
from saiserve.api.responses_request import decode_response

ORIGIN = Origin("r1", "k", 1, lambda: 1, ())
HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "go", "parameters": {"type": "object"}}}
A_TOOL = {"name": "go", "input_schema": {"type": "object"}}
R_TOOL = {"type": "function", "name": "go", "parameters": {"type": "object"}}


def embeddings(data: bytes, _origin: Origin) -> Any:
    return inputs_of(decode(data, EmbeddingsBody).input)


DECODERS: dict[str, tuple[Callable[[bytes, Origin], Any], dict[str, Any]]] = {
    "chat": (decode_chat, {"model": "m", "messages": HI}),
    "completions": (decode_completion, {"model": "m", "prompt": "hi"}),
    "embeddings": (embeddings, {"model": "m", "input": "hi"}),
    "responses": (decode_response, {"model": "m", "input": "hi"}),
    "messages": (decode_messages, {"model": "m", "messages": HI, "max_tokens": 9}),
    "count_tokens": (decode_count, {"model": "m", "messages": HI}),
    "native": (decode_native, {"model": "m", "prompt": "hi"}),
    "infill": (lambda data, _: decode(data, InfillBody), {"input_prefix": "a", "input_suffix": "b"}),
}
Row = tuple[str, list[Any], list[Any], dict[str, Any]]
"""A field, values that are taken, values that are not, and the fields that must stand beside it."""


def ask(dialect: str, fields: dict[str, Any]) -> Any:
    decoder, base = DECODERS[dialect]
    return decoder(json.dumps({**base, **fields}).encode(), ORIGIN)


def named(name: str, good: list[Any], bad: list[Any], **beside: Any) -> Row:
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
TIMES = 2**31 - 1
EXTRAS = [
    named("top_k", [-1, 0, 40, TIMES], [-2, TIMES + 1, "1", 0.5]),
    named("min_p", [0, 1], [-0.1, 1.1, "1"]),
    named("typical_p", [0, 1], [-0.1, 1.1, "1"]),
    named("repeat_penalty", [0.01, 10], [0, -1, 10.1, "1"]),
    named("repeat_last_n", [-1, 0, 64], [-2, TIMES + 1, 0.5]),
    named("dry_multiplier", [0, 100], [-0.1, 100.1]),
    named("dry_base", [0, 100], [-0.1, 100.1]),
    named("dry_allowed_length", [0, 10_000], [-1, 10_001, 0.5]),
    named("dry_penalty_last_n", [-1, 0], [-2, TIMES + 1]),
    named("dry_sequence_breakers", [[], ["a" * 64], ["a"] * 64], ["a", ["a" * 65], ["a"] * 65, [5]]),
    named("xtc_probability", [0, 1], [-0.1, 1.1]),
    named("xtc_threshold", [0, 1], [-0.1, 1.1]),
    named("mirostat", [0, 2], [-1, 3]),
    named("mirostat_tau", [0, 100], [-0.1, 100.1]),
    named("mirostat_eta", [0, 1], [-0.1, 1.1]),
    named("grammar", ['root ::= "a"'], ["a" * 262_145, 5]),
    named("json_schema", [{}, {"type": "object"}, {"enum": [None]}], ["a", 5]),
    named("n_probs", [0, 20], [-1, 21]),
    named("cache_prompt", [True, False], ["no"]),
    named(
        "lora",
        [[], [{"id": 0, "scale": 100}], [{"id": 0}] * 64],
        [[{"id": 0, "scale": 101}], [{"id": 0}] * 65, [{}], {}],
    ),
    named("samplers", [["top_k", "temperature"], "kt", ["k"] * 64], [5, [5], ["k"] * 65, "k" * 65]),
    named("id_slot", [-1, 0, 3], [-2, "0", 0.5]),
    named("ignore_eos", [True], ["yes"]),
    named("return_tokens", [True, False], ["yes", 1]),
    named("sse_ping_interval", [-1, 0, 30], [-2, "30"]),
]
CHAT_EXTRAS = [
    named("reasoning_format", ["none", "auto", "deepseek", "deepseek-legacy"], ["xml", 5]),
    named("parse_tool_calls", [True, False], ["yes"]),
    named("timings_per_token", [True], ["yes"]),
    named("return_progress", [True], ["yes"]),
    named("chat_template_kwargs", [{}, {"a": None}], ["a", [1]]),
    named("add_generation_prompt", [True, False], ["yes"]),
    named("continue_final_message", [False], ["yes", True]),
    named("verbose", [True], ["yes"]),
    named("reasoning_budget_tokens", [-1, 0, TIMES], [-2, TIMES + 1, "1"]),
    named("thinking_budget_tokens", [-1, 0, TIMES], [-2, TIMES + 1, "1"]),
]
STEERING = [
    named("safety_identifier", ["a"], [5]),
    named("service_tier", ["auto", "priority", "a-new-one"], [5]),
    named("moderation", [{}], [5]),
    named("prompt_cache_key", ["a"], [5]),
    named("prompt_cache_options", [{}], [5]),
    named("prompt_cache_retention", ["24h"], [5]),
    named("user", ["a"], [5]),
    named("store", [True, False], ["x"]),
]
NATIVE = [
    *EXTRAS,
    *(row for row in SAMPLING if row[0] != "logit_bias"),
    named("logit_bias", [{}, {"5": 100}, [["a", False]]], [{"5": 101}, 3]),
    named("n_predict", [-1, 1, TIMES], [-2, TIMES + 1, "1", 0]),
    named("n_cmpl", [1, limits.CHOICES_MAX], [0, limits.CHOICES_MAX + 1]),
    named("response_fields", [[], ["a" * 200], ["a"] * 100], ["a", ["a" * 201], ["a"] * 101, [5]]),
    named("post_sampling_probs", [True], ["yes"]),
    named("timings_per_token", [True], ["yes"]),
    named("return_progress", [True], ["yes"]),
    named("model", ["m"], [5]),
]
A_STEERING = [
    named("cache_control", [{"type": "ephemeral"}], [5]),
    named("context_management", [{"edits": []}], [5]),
    named("mcp_servers", [[], [{"type": "url"}]], [5, [5]]),
    named("speed", ["fast", "standard"], [5]),
    named(
        "thinking",
        [{"type": "adaptive"}, {"type": "enabled", "budget_tokens": 1}],
        [5, {"type": "x"}, {"type": "enabled", "budget_tokens": 0}],
    ),
    named("model", ["m"], [5]),
]
REASONING = ["none", "minimal", "low", "medium", "high", "xhigh", "max"]
LIMITS = {
    "chat": [
        *SAMPLING,
        *EXTRAS,
        *CHAT_EXTRAS,
        *STEERING,
        named("model", ["m"], [5]),
        named("modalities", [["text"], []], ["text", ["audio"], ["text", "audio"], [5]]),
        named("audio", [{"voice": "a", "format": "wav"}], [5]),
        named("metadata", [{}, {"a": "b"}, {"a": None}], [{"a": 5}, 5]),
        named("prediction", [{"type": "content", "content": "a"}], [5]),
        named("verbosity", ["low", "medium", "high"], ["loud", 5]),
        named("web_search_options", [{}], [5]),
        named("functions", [[{"name": "go"}], []], [[{}], "go", [{"name": "go"}] * (limits.TOOLS_MAX + 1)]),
        named("function_call", ["none", "auto", {"name": "go"}], [5], functions=[{"name": "go"}]),
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
            [
                "maybe",
                {"type": "function", "function": {"name": "other"}},
                {"type": "x"},
                {"type": "bogus", "function": {"name": "go"}},
                {"type": "custom", "function": {"name": "go"}},
            ],
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
                {"type": "json_schema", "json_schema": {"schema": {"enum": [None]}, "strict": None, "name": None}},
            ],
            [{"type": "sound"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {}}, {}, "text"],
        ),
        named("stream_options", [{"include_usage": True}, {"include_obfuscation": False}, {}], [5]),
    ],
    "completions": [
        *(row for row in SAMPLING if row[0] not in {"n", "max_tokens"}),
        *EXTRAS,
        named("model", ["m"], [5]),
        named("max_tokens", [0, 1, 32_000], ["1", 1.5, -2]),
        named("n_predict", [-1, 0, 1], ["1", 1.5, -2]),
        named("n", [1, 4], [0, limits.CHOICES_MAX + 1]),
        named("best_of", [0, 1], [-1, 21, 2]),
        named("logprobs", [0, 5, True, False], [-1, 6, "1"]),
        named("suffix", ["a", ""], [5]),
        named("stream_options", [{"include_usage": True}], [5]),
        named("timings_per_token", [True], ["yes"]),
        named("user", ["a"], [5]),
        named("prompt_cache_key", ["a"], [5]),
        named("prompt", ["a", ["a", "b"], [1, 2], [[1], [2, 3]]], ["", [], [[]], [""], [-1], {}, 5]),
        named("echo", [True, False], ["yes"]),
    ],
    "embeddings": [
        named("input", ["a", ["a"], [1, 2], [[1], [2]], ["a"] * 2048], ["", [], [""], ["a"] * 2049, 5, {}]),
        named("encoding_format", ["float", "base64"], ["int8", 5]),
        named("dimensions", [1, 256], [0, -1, "1"]),
        named("pooling", ["mean", "cls", "last", "none"], ["sum", 5]),
        named("user", ["a"], [5]),
        named("content", ["a"], []),
        named("model", ["m"], [5]),
    ],
    "responses": [
        *STEERING,
        named("model", ["m"], [5]),
        named("instructions", ["a"], [5]),
        named("stream", [True, False], ["yes"]),
        named("background", [False], [True, "yes"]),
        named("conversation", [], ["conv_1", {"id": "conv_1"}]),
        named("prompt", [], [{"id": "pmpt_1"}, 5]),
        named("previous_response_id", ["resp_1"], [5]),
        named("parallel_tool_calls", [True, False], ["no"]),
        named("max_tool_calls", [1, TIMES], [0, "x", TIMES + 1]),
        named("stream_options", [{}, {"include_obfuscation": False}], [5]),
        named("context_management", [[], [{"type": "compaction"}]], [5, [5]]),
        named("text", [{}, {"verbosity": "low"}, {"format": {"type": "text"}}], [5, {"verbosity": "loud"}, {"format": 5}]),
        named("timings_per_token", [True], ["yes"]),
        named("return_progress", [True], ["yes"]),
        named("temperature", [0, 2], [-0.1, 2.1]),
        named("top_p", [0, 1], [-0.1, 1.1]),
        named("top_logprobs", [0, 20], [-1, 21]),
        named("max_output_tokens", [1, 16, TIMES], [0, -1, "1", TIMES + 1]),
        named("truncation", ["auto", "disabled"], ["sometimes", 5]),
        named("input", ["a", [{"role": "user", "content": "a"}]], [5, [5], [{"role": "robot", "content": "a"}]]),
        named("tools", [[R_TOOL], [{"type": "web_search"}], [{"type": "new_and_unknown"}]], [[5], "go"]),
        named(
            "tool_choice",
            ["none", "auto", "required", {"type": "function", "name": "go"}],
            ["maybe", {"type": "function", "name": "other"}, {"type": "bogus"}, {"type": "web_search"}],
            tools=[R_TOOL],
        ),
        named("tool_choice", [{"type": "web_search_preview"}], [], tools=[{"type": "web_search_preview_2025_03_11"}]),
        named("reasoning", [{}, *({"effort": effort} for effort in REASONING)], [{"effort": "extreme"}, 5]),
        named("metadata", [{}, {"a": "b"}], [{"a": 5}, 5]),
        named("include", [[], ["reasoning.encrypted_content"], ["new.thing"]], ["all", [5]]),
    ],
    "messages": [
        *A_STEERING,
        named("container", ["c", {"id": "c"}], [5]),
        named("diagnostics", [{}], [5]),
        named("inference_geo", ["eu"], [5]),
        named("service_tier", ["auto", "standard_only"], [5]),
        named("user_profile_id", ["a"], [5]),
        named("workspace_id", ["a"], [5]),
        named("stream", [True, False], ["yes"]),
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
        named("metadata", [{}, {"user_id": "u"}, {"user_id": None}], [{"user_id": 5}, 5]),
        named("output_config", [{}, {"effort": "high"}], [5, {"format": {"type": "xml"}}, {"format": {"type": "json_schema"}}]),
    ],
    "count_tokens": [*A_STEERING, named("messages", [HI], [[]])],
    "native": [*NATIVE, named("prompt", ["a", [1], [["a", 1]]], ["", [], 5])],
    "infill": [
        named("input_prefix", ["a", ""], [5]),
        named("input_suffix", ["a", ""], [5]),
        named("input_extra", [[], [{"text": "a"}] * limits.PROMPTS_MAX], [5, [{}], [{"text": "a"}] * (limits.PROMPTS_MAX + 1)]),
    ],
}  # fmt: skip

"""OpenAI Responses: the body's schema. Items and tools of unknown types are the decoder's business."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from saiserve import limits
from saiserve.api.sampling import Effort, Fraction, Temperature, Verbosity


class Content(msgspec.Struct):
    """One content part of an item."""

    type: str
    text: str | None = None
    refusal: str = ""
    image_url: str | None = None


class EffortBody(msgspec.Struct):
    """`reasoning` of a `configuration_update`."""

    effort: Effort | None = None


class Item(msgspec.Struct):
    """One input item; which fields are set depends on `type`, a message may go without.

    The fields from `action` on are what calls of hosted tools hold; see `responses_calls`.
    """

    type: str = "message"
    id: str = ""
    role: str = ""
    content: str | list[Content] | None = None
    call_id: str = ""
    name: str = ""
    namespace: str = ""
    arguments: str | dict[str, Any] | None = None
    input: Any = None
    output: str | list[dict[str, Any]] | dict[str, Any] | None = None
    summary: list[Content] = []
    encrypted_content: str | None = None
    status: str = ""
    tools: list[dict[str, Any]] = []
    reasoning: EffortBody | None = None
    approval_request_id: str = ""
    approve: bool = False
    reason: str = ""
    server_label: str = ""
    action: Any = None
    actions: Any = None
    pending_safety_checks: Any = None
    environment: Any = None
    operation: Any = None
    queries: Any = None
    code: str | None = None
    revised_prompt: str | None = None
    size: str | None = None
    quality: str | None = None
    background: str | None = None
    output_format: str | None = None
    result: str | None = None
    results: Any = None
    outputs: Any = None
    error: Any = None


class Grammar(msgspec.Struct):
    """The format of a custom tool's input."""

    type: str = "text"
    syntax: str = ""
    definition: str = ""


class ToolBody(msgspec.Struct):
    """One entry of `tools`."""

    type: str
    name: str = ""
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool = False
    format: Grammar | None = None
    tools: list[dict[str, Any]] = []


class ToolChoiceBody(msgspec.Struct):
    """The object form of `tool_choice`."""

    type: str
    name: str = ""
    namespace: str = ""
    mode: str = "auto"
    tools: list[dict[str, Any]] = []


class FormatBody(msgspec.Struct):
    """`text.format`."""

    type: str = "text"
    name: str = ""
    schema: dict[str, Any] | None = None
    strict: bool = False


class TextBody(msgspec.Struct):
    """`text`."""

    format: FormatBody | None = None
    verbosity: Verbosity | None = None


class ReasoningBody(msgspec.Struct):
    """`reasoning`."""

    effort: Effort | None = None
    summary: str = ""


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_obfuscation: bool = False


class ResponsesBody(msgspec.Struct, kw_only=True):
    """The body of `POST /v1/responses`; fields not listed are ignored.

    The fields from `context_management` on are read only to be checked: they steer OpenAI's servers.
    """

    model: str | None = None
    input: str | Annotated[list[Item], Meta(max_length=limits.MESSAGES_MAX)] | None = None
    instructions: str | None = None
    tools: Annotated[list[ToolBody], Meta(max_length=limits.TOOLS_MAX)] = []
    tool_choice: str | ToolChoiceBody | None = None
    parallel_tool_calls: bool = True
    max_output_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    temperature: Temperature | None = None
    top_p: Fraction | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    text: TextBody | None = None
    reasoning: ReasoningBody | None = None
    include: list[str] = []
    store: bool = True
    stream: bool = False
    background: bool = False
    previous_response_id: str | None = None
    conversation: Any = None
    metadata: dict[str, str] | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    user: str = ""
    prompt_cache_key: str = ""
    timings_per_token: bool = False
    return_progress: bool = False
    prompt: dict[str, Any] | None = None
    max_tool_calls: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    safety_identifier: str | None = None
    stream_options: StreamOptions | None = None
    context_management: list[dict[str, Any]] | None = None
    moderation: dict[str, Any] | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    service_tier: str | None = None

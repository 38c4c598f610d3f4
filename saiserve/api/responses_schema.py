"""OpenAI Responses: the body's schema. Items and tools of unknown types are the decoder's business."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from saiserve import limits
from saiserve.api.sampling import Effort, Fraction, Temperature


class Content(msgspec.Struct):
    """One content part of an item."""

    type: str
    text: str | None = None
    refusal: str = ""
    image_url: str | None = None


class Item(msgspec.Struct):
    """One input item; which fields are set depends on `type`, a message may go without."""

    type: str = "message"
    id: str = ""
    role: str = ""
    content: str | list[Content] | None = None
    call_id: str = ""
    name: str = ""
    namespace: str = ""
    arguments: str | None = None
    input: Any = None
    output: str | list[Content] | None = None
    summary: list[Content] = []
    encrypted_content: str | None = None


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
    verbosity: str = ""


class ReasoningBody(msgspec.Struct):
    """`reasoning`."""

    effort: Effort | None = None
    summary: str = ""


class ResponsesBody(msgspec.Struct, kw_only=True):
    """The body of `POST /v1/responses`; fields not listed are ignored."""

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

"""Chat Completions: the body's schema. Which fields must be set together is the decoder's business."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from saiserve import limits
from saiserve.api.body import told
from saiserve.api.sampling import Choices, Count, Effort, SamplingFields, Verbosity
from saiserve.api.tool_names import NAME_PATTERN


class ImageUrl(msgspec.Struct):
    """An image part's address."""

    url: str
    detail: str = "auto"


class ContentPart(msgspec.Struct):
    """One part of a message; which fields are set depends on `type`."""

    type: Annotated[str, told("text", "input_text", "output_text", "refusal", "image_url")]
    text: str | None = None
    image_url: ImageUrl | str | None = None
    refusal: str | None = None


class FunctionCallBody(msgspec.Struct):
    """A call the assistant made earlier."""

    name: str
    arguments: str | dict[str, Any] = ""


class CustomCallBody(msgspec.Struct):
    """A free-form call the assistant made earlier."""

    name: str
    input: str = ""


class ToolCallBody(msgspec.Struct):
    """One entry of an assistant message's `tool_calls`."""

    id: str = ""
    type: str = "function"
    function: FunctionCallBody | None = None
    custom: CustomCallBody | None = None


class ChatMessageBody(msgspec.Struct):
    """One message."""

    role: Annotated[str, told("developer", "system", "user", "assistant", "tool", "function")]
    content: str | list[ContentPart] | None = None
    name: str = ""
    tool_calls: list[ToolCallBody] = []
    tool_call_id: str = ""
    function_call: FunctionCallBody | None = None
    reasoning_content: str = ""
    reasoning: Any = None
    refusal: str | None = None


class FunctionBody(msgspec.Struct):
    """A function the model may call."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN)]
    description: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool = False


class Grammar(msgspec.Struct):
    """A grammar by its text."""

    syntax: str = ""
    definition: str = ""


class CustomFormat(msgspec.Struct):
    """The format of a free-form tool's input."""

    type: str = "text"
    grammar: Grammar | None = None


class CustomToolBody(msgspec.Struct):
    """A free-form tool; its input is text."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN)]
    description: str = ""
    format: CustomFormat | None = None


class ToolBody(msgspec.Struct):
    """One entry of `tools`."""

    type: Annotated[str, told("function", "custom")]
    function: FunctionBody | None = None
    custom: CustomToolBody | None = None


class NamedFunction(msgspec.Struct):
    """The function a `tool_choice` names."""

    name: str


class ToolChoiceBody(msgspec.Struct):
    """The object form of `tool_choice`."""

    type: Annotated[str, told("function", "custom", "allowed_tools")]
    function: NamedFunction | None = None
    custom: NamedFunction | None = None
    allowed_tools: dict[str, Any] | None = None
    mode: str = ""
    tools: list[dict[str, Any]] = []


class JsonSchemaBody(msgspec.Struct):
    """`response_format.json_schema`."""

    schema: dict[str, Any] | None = None
    name: str = ""
    strict: bool = False
    description: str = ""


class ResponseFormatBody(msgspec.Struct):
    """`response_format`; `schema` beside `json_object` is llama.cpp's form."""

    type: Annotated[str, told("text", "json_object", "json_schema")]
    json_schema: JsonSchemaBody | None = None
    schema: dict[str, Any] | None = None


class StreamOptions(msgspec.Struct):
    """`stream_options`."""

    include_usage: bool = False
    include_obfuscation: bool = False


class ChatBody(SamplingFields, kw_only=True):
    """The body of `POST /v1/chat/completions`; fields not listed are ignored.

    The fields from `audio` on are read only to be checked: what they ask of OpenAI's servers has no meaning here.
    """

    messages: Annotated[list[ChatMessageBody], Meta(min_length=1, max_length=limits.MESSAGES_MAX)]
    model: str | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    n: Choices = 1
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    tools: Annotated[list[ToolBody], Meta(max_length=limits.TOOLS_MAX)] = msgspec.field(default_factory=list)
    tool_choice: str | ToolChoiceBody | None = None
    parallel_tool_calls: bool = True
    functions: Annotated[list[FunctionBody], Meta(max_length=limits.TOOLS_MAX)] = msgspec.field(default_factory=list)
    function_call: str | NamedFunction | None = None
    response_format: ResponseFormatBody | None = None
    reasoning_effort: Effort | None = None
    reasoning_budget_tokens: Count | None = None
    thinking_budget_tokens: Count | None = None
    user: str = ""
    prompt_cache_key: str = ""
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    verbose: bool = False
    timings_per_token: bool = False
    return_progress: bool = False
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None
    moderation: dict[str, Any] | None = None
    parse_tool_calls: bool = True
    prediction: dict[str, Any] | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    reasoning_format: Literal["none", "auto", "deepseek", "deepseek-legacy"] = "auto"
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool = False
    verbosity: Verbosity | None = None
    web_search_options: dict[str, Any] | None = None

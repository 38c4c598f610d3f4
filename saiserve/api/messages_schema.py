"""Anthropic Messages: the body's schema. Blocks and tools of unknown types are the decoder's business."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from saiserve import limits
from saiserve.api.body import told
from saiserve.api.sampling import Fraction


class ImageSource(msgspec.Struct):
    """Where an image or document comes from."""

    type: str
    media_type: str = ""
    data: str = ""
    url: str = ""
    file_id: str = ""
    content: str | list[Any] = ""


class ToolBody(msgspec.Struct):
    """A tool: without `type`, or with `custom`, the client's own; else one of Anthropic's typed tools."""

    name: Annotated[str, Meta(min_length=1, max_length=128)] = ""
    type: str = "custom"
    description: str = ""
    input_schema: dict[str, Any] | None = None
    defer_loading: bool = False
    strict: bool = False


class ToolChange(msgspec.Struct):
    """The tool that a `tool_addition` or `tool_removal` means: one by its name, or a new one by its definition."""

    type: str
    name: str = ""
    definition: ToolBody | None = None


class Block(msgspec.Struct):
    """One content block; which fields are set depends on `type`."""

    type: str
    text: str | None = None
    source: ImageSource | str | None = None
    title: str = ""
    context: str = ""
    content: Any = None
    thinking: str = ""
    signature: str = ""
    id: str = ""
    name: str = ""
    input: Any = None
    tool_use_id: str = ""
    tool_name: str = ""
    server_name: str = ""
    is_error: bool = False
    tool: ToolChange | None = None
    tool_changes: list[Block] = []


class MessageBody(msgspec.Struct):
    """One message."""

    role: Annotated[str, told("user", "assistant", "system")]
    content: str | list[Block]


class ToolChoiceBody(msgspec.Struct):
    """`tool_choice`."""

    type: str
    name: str = ""
    disable_parallel_tool_use: bool = False


THINKING = ("enabled", "disabled", "adaptive", "between_tools")


class ThinkingBody(msgspec.Struct):
    """`thinking`."""

    type: Annotated[str, told(*THINKING)]
    budget_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class FormatBody(msgspec.Struct):
    """`output_config.format`."""

    type: str
    schema: dict[str, Any] | None = None


class OutputConfigBody(msgspec.Struct):
    """`output_config`."""

    effort: str = ""
    format: FormatBody | None = None


class MetadataBody(msgspec.Struct):
    """`metadata`."""

    user_id: str = ""


class CountBody(msgspec.Struct, kw_only=True):
    """The body of `POST /v1/messages/count_tokens`; fields not listed are ignored.

    The fields from `cache_control` on are read only to be checked: they steer Anthropic's servers.
    """

    messages: Annotated[list[MessageBody], Meta(min_length=1, max_length=limits.MESSAGES_MAX)]
    model: str | None = None
    system: str | list[Block] | None = None
    tools: Annotated[list[ToolBody], Meta(max_length=limits.TOOLS_MAX)] = []  # msgspec copies it
    tool_choice: ToolChoiceBody | None = None
    thinking: ThinkingBody | None = None
    output_config: OutputConfigBody | None = None
    cache_control: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    mcp_servers: list[dict[str, Any]] | None = None
    speed: str | None = None


class MessagesBody(CountBody, kw_only=True):
    """The body of `POST /v1/messages`; fields not listed are ignored.

    The fields from `container` on are read only to be checked: they steer Anthropic's servers.
    """

    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    stream: bool = False
    stop_sequences: list[str] = msgspec.field(default_factory=list)
    temperature: Fraction | None = None
    top_p: Fraction | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    metadata: MetadataBody | None = None
    container: str | dict[str, Any] | None = None
    diagnostics: dict[str, Any] | None = None
    inference_geo: str | None = None
    service_tier: str | None = None
    user_profile_id: str | None = None
    workspace_id: str | None = None

"""How long an answer may be at a target: what the client asks for, within what the model can."""

from __future__ import annotations

from typing import Final

from saiserve.chat.request import GenerationRequest
from saiserve.engines.upstream.targets import TargetModel

BYTES_PER_TOKEN: Final = 4
ROOM_LEAST: Final = 256
"""An estimate never leaves less room than this: only the target counts exactly, and it says when nothing fits."""


def answer_limit(request: GenerationRequest, model: TargetModel) -> int | None:
    """The limit to send; None when the client gave none. Agents ask for 32,000 tokens whatever the model has left."""
    if request.max_tokens is None:
        return None
    limit = request.max_tokens
    if model.output_tokens:
        limit = min(limit, model.output_tokens)
    if model.context_tokens:
        limit = min(limit, max(ROOM_LEAST, model.context_tokens - estimated_prompt_tokens(request)))
    return limit


def estimated_prompt_tokens(request: GenerationRequest) -> int:
    """Tokens of a prompt, at four bytes each: for a target that only tells at the end."""
    size = len((request.prompt_text or "").encode("utf-8", "surrogatepass")) + 4 * len(request.prompt_tokens or ())
    for message in request.messages or ():
        size += 16 + len(message.text.encode("utf-8", "surrogatepass"))
        size += sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    size += sum(len(tool.name) + len(tool.description) + len(str(tool.parameters)) for tool in request.tools)
    return max(1, size // BYTES_PER_TOKEN)

"""Names of tools and ids of calls in the alphabets that public APIs take, and back again."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from blake3 import blake3

from saiserve.chat.request import Tool

NAME_CHARACTERS_MAX: Final = 64
"""OpenAI's limit, the tighter one."""
ID_CHARACTERS_MAX: Final = 64
_OTHER: Final = re.compile(r"[^a-zA-Z0-9_-]")


class ToolNames:
    """The tools of one request under names a target takes: unchanged where they can be, else shortened with a hash.

    Equal names give equal results in every request, so that a conversation's calls keep matching its tools.
    """

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = {sent_name(tool.name): tool for tool in tools}

    def given(self, name: str) -> tuple[str, str]:
        """The client's (name, namespace) of a tool the target called; unknown names stay as they are."""
        tool = self._tools.get(name)
        if tool is None:
            return name, ""
        bare = tool.name.removeprefix(f"{tool.namespace}__") if tool.namespace else tool.name
        return bare, tool.namespace


def sent_name(name: str) -> str:
    """The name under which a target knows a tool."""
    return _fitted(name, NAME_CHARACTERS_MAX)


def sent_id(call_id: str) -> str:
    """The id of a call in a target's alphabet; the same for the call and its result."""
    return _fitted(call_id, ID_CHARACTERS_MAX) or "call_0"


def _fitted(text: str, limit: int) -> str:
    plain = _OTHER.sub("_", text)
    if plain == text and len(text) <= limit:
        return text
    mark = blake3(text.encode("utf-8", "surrogatepass")).hexdigest(length=4)
    return f"{plain[: limit - len(mark) - 1]}_{mark}"

"""What tools may be called, in every dialect alike: OpenAI's names and the dotted ones of MCP servers."""

from __future__ import annotations

import re
from typing import Final

from saiserve.api.body import invalid

NAME_PATTERN: Final = r"^[a-zA-Z0-9_\-.:/]{1,128}$(?!\n)"  # a plain $ lets one line end pass
_NAME: Final = re.compile(NAME_PATTERN)


def check_tool_name(name: str, at: str) -> None:
    """Refuse a tool without a name, or with one that could be more than a name in a template.

    Raises:
        ApiError: 400 that names `at`.
    """
    if not name:
        raise invalid(f"{at}: this field is required.", at)
    if not _NAME.fullmatch(name):
        raise invalid(f"{at}: a tool's name has 1 to 128 letters, digits, '_', '-', '.', ':' or '/'.", at)

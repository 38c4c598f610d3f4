"""Tool calls in the form a chat client asked for: functions, free-form (custom) tools, or the older `function_call`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from saiserve.api.gathered import GatheredCall
from saiserve.chat.events import ToolCallDelta, ToolCallStarted

NO_ARGUMENTS = "{}"
"""What a call without arguments says, so that it is JSON all the same."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """How calls are written: `legacy` for bodies with `functions`, `custom` names the free-form tools."""

    legacy: bool = False
    custom: frozenset[str] = frozenset()

    def message_fields(self, calls: list[GatheredCall]) -> dict[str, Any]:
        """Return what calls add to a whole message."""
        if self.legacy:
            first = calls[0]
            return {"function_call": {"name": first.name, "arguments": first.arguments or NO_ARGUMENTS}}
        return {"tool_calls": [self._whole(call) for call in calls]}

    def _whole(self, call: GatheredCall) -> dict[str, Any]:
        if call.name in self.custom:
            custom = {"name": call.name, "input": free_form_input(call.arguments)}
            return {"id": call.id, "type": "custom", "custom": custom}
        function = {"name": call.name, "arguments": call.arguments or NO_ARGUMENTS}
        return {"id": call.id, "type": "function", "function": function}


class CallStream:
    """The deltas of one choice's calls: id, type and name once, arguments as they come, a free-form input whole."""

    def __init__(self, form: CallForm) -> None:
        self._form = form
        self._open: ToolCallStarted | None = None
        self._pieces: list[str] = []

    def start(self, event: ToolCallStarted) -> Iterable[dict[str, Any]]:
        """Yield the deltas that begin a call, after what ends the one before."""
        yield from self.close()
        self._open = event
        self._pieces = []
        if self._form.legacy:
            if event.index == 0:
                yield {"function_call": {"name": event.name, "arguments": ""}}
        elif event.name not in self._form.custom:
            function = {"name": event.name, "arguments": ""}
            yield {"tool_calls": [{"index": event.index, "id": event.id, "type": "function", "function": function}]}

    def add(self, event: ToolCallDelta) -> Iterable[dict[str, Any]]:
        """Yield the delta for a piece of arguments."""
        if event.arguments and self._open is not None:
            self._pieces.append(event.arguments)
            if self._open.name not in self._form.custom or self._form.legacy:
                yield from self._arguments(event.index, event.arguments)

    def close(self) -> Iterable[dict[str, Any]]:
        """Yield what is still owed to the open call."""
        last, self._open = self._open, None
        if last is None:
            return
        if last.name in self._form.custom and not self._form.legacy:
            custom = {"name": last.name, "input": free_form_input("".join(self._pieces))}
            yield {"tool_calls": [{"index": last.index, "id": last.id, "type": "custom", "custom": custom}]}
        elif not self._pieces:
            yield from self._arguments(last.index, NO_ARGUMENTS)

    def _arguments(self, index: int, arguments: str) -> Iterable[dict[str, Any]]:
        if not self._form.legacy:
            yield {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}
        elif index == 0:
            yield {"function_call": {"arguments": arguments}}


def free_form_input(arguments: str) -> str:
    """Return the text a model put into a free-form tool's one argument; what is not that comes as it is."""
    try:
        parsed = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return arguments
    value = parsed.get("input") if isinstance(parsed, dict) else None
    return value if isinstance(value, str) else arguments

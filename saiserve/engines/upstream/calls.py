"""Tool calls of an upstream's stream put in order: one open at a time, indexes from 0, each call's name once.

Servers repeat ids on every piece, leave indexes out, give two calls the same one, send a call whole, or interleave the
pieces of parallel calls. The order of the canonical events is the order in which calls began; pieces of a later call
wait until the one before it is complete.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from saiserve.chat.events import AnswerEvent, ToolCallDelta, ToolCallStarted
from saiserve.engines.upstream.faults import UpstreamFault
from saiserve.engines.upstream.names import ToolNames
from saiserve.errors import ErrorKind
from saiserve.limits import UPSTREAM_CALLS_MAX


@dataclass(slots=True)
class _Call:
    key: int | None
    id: str = ""
    name: str = ""
    waiting: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    index: int | None = None
    """Its number once it was begun."""

    @property
    def is_complete(self) -> bool:
        """Whether its arguments are whole JSON."""
        try:
            msgspec.json.decode("".join([*self.sent, *self.waiting]))
        except msgspec.DecodeError:
            return False
        return True


class CallOrder:
    """The calls of one choice."""

    def __init__(self, choice: int, names: ToolNames, new_id: Callable[[], str]) -> None:
        self._choice = choice
        self._names = names
        self._new_id = new_id
        self._calls: list[_Call] = []
        self._current = 0
        self._begun = 0

    @property
    def is_open(self) -> bool:
        """Whether more may be said to the call that was begun last."""
        return any(call.index is None or not call.is_complete for call in self._calls[self._current :])

    def add(self, key: int | None, call_id: str, name: str, arguments: str) -> list[AnswerEvent]:
        """Take a piece: `key` is the stream's own number of the call, None when it gives none."""
        call = self._find(key, call_id)
        call.id = call.id or call_id
        call.name = call.name or name
        if arguments:
            call.waiting.append(arguments)
        return self._flow()

    def finish(self) -> list[AnswerEvent]:
        """All that waits: no more will come."""
        return self._flow(is_end=True)

    def _find(self, key: int | None, call_id: str) -> _Call:
        """The call a piece belongs to: the last of its number, unless it comes with an id of its own."""
        of_key = [call for call in self._calls if call.key == key]
        last = of_key[-1] if of_key else None
        if last is not None and not (call_id and last.id and call_id != last.id):
            return last
        if len(self._calls) >= UPSTREAM_CALLS_MAX:
            raise UpstreamFault(ErrorKind.UPSTREAM_FAILED, f"the upstream made over {UPSTREAM_CALLS_MAX} tool calls")
        call = _Call(key)
        self._calls.append(call)
        return call

    def _flow(self, *, is_end: bool = False) -> list[AnswerEvent]:
        events: list[AnswerEvent] = []
        while self._current < len(self._calls):
            call = self._calls[self._current]
            if call.index is None and call.name:
                call.index, self._begun = self._begun, self._begun + 1
                name, namespace = self._names.given(call.name)
                events.append(ToolCallStarted(self._choice, call.index, call.id or self._new_id(), name, namespace))
            if call.index is not None and call.waiting:
                events.append(ToolCallDelta(self._choice, call.index, "".join(call.waiting)))
                call.sent += call.waiting
                call.waiting = []
            is_last = self._current == len(self._calls) - 1
            if not is_end and (is_last or call.index is None or not call.is_complete):
                break
            self._current += 1
        return events

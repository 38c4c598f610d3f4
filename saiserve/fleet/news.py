"""Tells the fleet view what attempts learn, and attempts what the fleet view learns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import trio

from saiserve.chat.request import GenerationRequest
from saiserve.engines.messages import Load
from saiserve.fleet.view import FleetView
from saiserve.routing.candidate import Candidate, Placement, RoutingRequest

DESCRIBED_MAX = 4096
"""Requests whose description is kept; longer-lived ones are described again."""


class News:
    """The dispatcher's window on a `FleetView`; see `saiserve.dispatch.ports.FleetNews`.

    Args:
        view: this node's view.
        clock: int nanoseconds.
        describe: what routing may see of a request.
    """

    def __init__(
        self, view: FleetView, clock: Callable[[], int], describe: Callable[[GenerationRequest], RoutingRequest]
    ) -> None:
        self._view = view
        self._clock = clock
        self._describe = describe
        self._described: OrderedDict[str, RoutingRequest] = OrderedDict()
        self._open: dict[str, list[str]] = {}
        self._count = 0
        self._change = trio.Event()

    def describe(self, request: GenerationRequest) -> RoutingRequest:
        """The routing side of a request, computed once."""
        known = self._described.get(request.id)
        if known is None:
            known = self._described[request.id] = self._describe(request)
            if len(self._described) > DESCRIBED_MAX:
                self._described.popitem(last=False)
        return known

    def started(self, candidate: Candidate, request: GenerationRequest) -> None:
        """An attempt goes to a candidate: it counts as load there until `ended`."""
        self._count += 1
        attempt = f"{candidate.id}#{self._count}"
        self._open.setdefault(candidate.id, []).append(attempt)
        tokens = max(0, self.describe(request).prompt_tokens - candidate.held_tokens)
        self._view.note_started(self._clock(), candidate.id, tokens, attempt)

    def ended(self, candidate: Candidate, *, is_broken: bool) -> None:
        """The attempt is over. A broken way is the membership's to judge; the load goes either way."""
        attempts = self._open.get(candidate.id)
        if attempts:
            self._view.note_finished(self._clock(), attempts.pop(0))
            if not attempts:
                del self._open[candidate.id]
        self.changed_now()

    def reported(self, candidate: Candidate, load: Load) -> None:
        """The place said how busy it is."""
        if candidate.placement is not Placement.UPSTREAM:  # what it has besides ours is unknown
            self._view.note_load(self._clock(), candidate.node, candidate.model, load)

    def cached(self, candidate: Candidate, request: GenerationRequest, prompt_tokens: int, cached_tokens: int) -> None:
        """How much of a prompt the place really held."""
        self._view.note_held(self._clock(), self.describe(request).marks, candidate.id, cached_tokens)

    def is_dead(self, candidate: Candidate) -> bool:
        """Whether the candidate's member is DEAD or LEFT in this node's view."""
        return candidate.placement is not Placement.UPSTREAM and self._view.is_gone(candidate.node)

    async def changed(self) -> None:
        """Wait until a member's state or somebody's load changed."""
        await self._change.wait()

    def changed_now(self) -> None:
        """Wake all that wait for a change."""
        self._change.set()
        self._change = trio.Event()

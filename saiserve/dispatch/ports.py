"""What the dispatcher needs of the node around it: a router, the fleet's news, and engines behind candidates.

`saiserve.fleet` and the node's composition give the real ones, tests give fakes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Protocol

from saiserve.chat.events import AnswerEvent
from saiserve.chat.request import GenerationRequest
from saiserve.engines.messages import Load
from saiserve.engines.spoken import Source
from saiserve.routing.ask import Ask, Reply
from saiserve.routing.candidate import Candidate
from saiserve.routing.decision import Decision

Route = Callable[[GenerationRequest], Awaitable[Decision]]
"""Decide where a request may run, from what is known now. Asked again whenever an answer needs another place."""

Steps = Callable[[GenerationRequest], Generator[Ask, Reply | None, Decision]]
"""The same where a strategy may need a model's answer first: see `saiserve.routing.chain.route`."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A request as one model is to see it, and the parser of what that model says."""

    request: GenerationRequest
    parse: Callable[[AnswerEvent], list[AnswerEvent]]


Fit = Callable[[GenerationRequest, str], Fitted | None]
"""Fit a request to the ways of the model that will serve it (its id); None when that was done before."""

Places = Callable[[Candidate, GenerationRequest], Source | None]
"""The engine behind a candidate, None when it is gone. For peers it carries the request's key name along."""


class FleetNews(Protocol):
    """What attempts tell the fleet's view and what it tells them. None of these may block or raise."""

    def started(self, candidate: Candidate, request: GenerationRequest) -> None:
        """An attempt goes to a candidate: it counts as load there until `ended`."""
        ...

    def ended(self, candidate: Candidate, *, is_broken: bool) -> None:
        """The attempt is over. `is_broken`: the way to the place or the place itself failed."""
        ...

    def reported(self, candidate: Candidate, load: Load) -> None:
        """The place said how busy it is. The load of a last message is told after `ended`."""
        ...

    def cached(self, candidate: Candidate, request: GenerationRequest, prompt_tokens: int, cached_tokens: int) -> None:
        """How much of a prompt the place really held."""
        ...

    def is_dead(self, candidate: Candidate) -> bool:
        """Whether the candidate's member is DEAD or LEFT in this node's view."""
        ...

    async def changed(self) -> None:
        """Wait until a member's state or somebody's load changed. Cancel to give up."""
        ...

"""What routing answers: where to try, in order, or a refusal, and the reasons for both."""

from __future__ import annotations

from dataclasses import dataclass

from saiserve.errors import ApiError, ErrorKind
from saiserve.routing.candidate import Candidate, RoutingRequest


@dataclass(frozen=True, slots=True)
class Ranked:
    """A candidate that is still in. Lower bands come first; `cost` orders inside a band, in the last orderer's unit."""

    candidate: Candidate
    band: int = 0
    cost: float = 0.0
    reasons: tuple[str, ...] = ()
    """One phrase per strategy that placed it, `strategy: phrase`."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A candidate that is out, by whom and why. It never comes back."""

    candidate: Candidate
    by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nobody may serve the request; becomes an error of this kind."""

    kind: ErrorKind
    message: str
    retry_after_s: float | None = None

    def as_error(self) -> ApiError:
        """The error to be told to the client."""
        param = "model" if self.kind is ErrorKind.MODEL_NOT_FOUND else None
        return ApiError(self.kind, self.message, param=param, retry_after_s=self.retry_after_s)


def not_held(request: RoutingRequest) -> Refusal:
    """No member holds what is asked for."""
    names = ", ".join(repr(model) for model in request.wanted)
    words = f"no member of this cluster holds the model {names}: GET /v1/models lists those it holds"
    return Refusal(ErrorKind.MODEL_NOT_FOUND, words)


@dataclass(frozen=True, slots=True)
class Step:
    """What one strategy did, for the trace."""

    by: str
    kept: int
    """Candidates in the slate afterwards."""
    bands: int
    first: str
    """Id of the candidate in front afterwards; empty when there is none."""
    dropped: tuple[tuple[str, str], ...] = ()
    """(candidate id, reason) of those it dropped."""
    note: str = ""
    """`asked`, `draft kept`, `answer failed: …`; empty for strategies that only look."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of a chain: either `attempts` is not empty or `refusal` is set, never both."""

    attempts: tuple[Ranked, ...]
    """Where to try, best first. The dispatcher bounds how many it uses."""
    refusal: Refusal | None
    labels: tuple[tuple[str, str], ...] = ()
    """What strategies want recorded (tier, arm, …), by name."""
    dropped: tuple[Dropped, ...] = ()
    trace: tuple[Step, ...] = ()
    draft_kept: bool = False
    """The held draft is the answer: go on with it and start no new attempt unless it breaks."""

    @property
    def first(self) -> Candidate | None:
        """The candidate to try first."""
        return self.attempts[0].candidate if self.attempts else None

    def label(self, name: str) -> str:
        """The value of a label, empty when it was not set."""
        return dict(self.labels).get(name, "")

"""What is known of one member, and what follows from it for placing requests there."""

from __future__ import annotations

from dataclasses import dataclass, field

from saiserve.fleet.facts import ModelFact, ModelState, NodeFacts, NodeVitals
from saiserve.fleet.load_ledger import SECOND, EffectiveLoad
from saiserve.limits import HOLDER_DOWN_S, HOLDER_LEFT_S, LOOP_LAG_S, VITALS_STALE_S
from saiserve.routing.candidate import Residence
from swimcluster.member import Member, MemberState, Reachability

_RESIDENCE = {
    ModelState.READY: Residence.READY,
    ModelState.LOADING: Residence.LOADING,
    ModelState.DRAINING: Residence.UNAVAILABLE,
    ModelState.LOADABLE: Residence.LOADABLE,
    ModelState.FAILED: Residence.UNAVAILABLE,
}


@dataclass(slots=True)
class NodeRecord:
    """One member: what membership says, what it says of itself, and when it went."""

    name: str
    is_local: bool = False
    member: Member | None = None
    advertised: NodeFacts = field(default_factory=NodeFacts)
    """From metadata; perhaps cut short."""
    full: NodeFacts | None = None
    """Fetched whole, if it ever was."""
    vitals: NodeVitals | None = None
    vitals_at: int = 0
    gone_at: int | None = None
    fault: str = ""
    """Why its metadata or vitals could not be read."""

    @property
    def facts(self) -> NodeFacts:
        """The full facts while they are of the version in force, what was advertised otherwise."""
        return self.full if self.full is not None and self.full.version >= self.advertised.version else self.advertised

    @property
    def has_left(self) -> bool:
        """Whether it went on purpose."""
        return self.member is not None and self.member.state is MemberState.LEFT

    @property
    def retention(self) -> int:
        """Nanoseconds for which its models stay known after it went."""
        return int((HOLDER_LEFT_S if self.has_left else HOLDER_DOWN_S) * SECOND)

    @property
    def is_reachable(self) -> bool:
        """Whether requests may go there. A member nobody probed yet gets the benefit of the doubt."""
        if self.is_local:
            return True
        return self.member is not None and self.member.reachability in (Reachability.DIRECT, Reachability.UNKNOWN)

    def fact(self, model: str) -> ModelFact | None:
        """What it says of a model; None when it does not hold it."""
        return next((fact for fact in self.facts.models if fact.id == model), None)

    def residence(self, fact: ModelFact) -> tuple[Residence, str]:
        """Whether it can serve the model, and why not."""
        if not self.is_local:
            if self.gone_at is not None:
                return Residence.UNAVAILABLE, "left" if self.has_left else "down"
            if self.member is not None and self.member.state is MemberState.SUSPECT:
                return Residence.UNAVAILABLE, "suspected"
            if not self.is_reachable:
                return Residence.UNAVAILABLE, "not directly reachable"
        if self.facts.draining:
            return Residence.UNAVAILABLE, "draining"
        residence = _RESIDENCE[fact.state]
        if residence is Residence.LOADING and fact.waits:
            residence = Residence.ARRIVING
        return residence, "" if residence is Residence.READY else fact.state.name.lower()

    def lag(self, now: int, load: EffectiveLoad) -> str:
        """Why its load is not to be trusted; empty when it is."""
        if self.is_local:
            return ""
        if self.vitals is None and not load.is_reported:
            return "no load report yet"
        if self.vitals is not None and (now - self.vitals_at) / SECOND > VITALS_STALE_S:
            return "old load report"
        if self.vitals is not None and self.vitals.loop_lag_ms >= LOOP_LAG_S * 1_000:
            return "its event loop lags"
        return ""

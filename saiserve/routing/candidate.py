"""What routing knows of a place a request could run, and of the request: frozen, complete, without prompt text."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from blake3 import blake3


class Placement(enum.StrEnum):
    """Where a candidate is, seen from this node."""

    LOCAL = "local"
    PEER = "peer"
    UPSTREAM = "upstream"


class Residence(enum.StrEnum):
    """Whether the model is there."""

    READY = "ready"
    ARRIVING = "arriving"
    """Being loaded because somebody asked for it: requests wait there."""
    LOADING = "loading"
    LOADABLE = "loadable"
    """Not resident, but this place can load it."""
    UNAVAILABLE = "unavailable"
    """It is known to hold the model but is down, suspected or draining: a reason for 503 rather than 404."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One place that might run the request. Rates are tokens per second; 0 means unknown."""

    id: str
    """Unique in a slate: node name + model, or upstream target."""
    node: str
    """Member name; for upstreams the target's name."""
    model: str
    """Canonical model id."""
    placement: Placement
    residence: Residence
    reachable: bool
    """Directly reachable in this node's own experience."""
    draining: bool = False
    digest: bytes = b""
    """Eight bytes over model file and template; equal digests may continue each other's answers."""
    tags: frozenset[str] = frozenset()
    """Capabilities: chat, vision, tools, embeddings, …"""
    context_tokens: int = 0
    """0 = unknown."""
    lanes: int = 1
    busy: float = 0.0
    """Effective load in lanes: last report + own starts − own finishes since; may exceed `lanes`."""
    queued_tokens: int = 0
    prefill_rate: float = 0.0
    decode_rate: float = 0.0
    lagging: bool = False
    """Ramping up, or its event loop or vitals lag: one band down."""
    held_tokens: int = 0
    """Tokens of this request's prefix it is believed to hold."""
    home_rank: int | None = None
    """Place in the rendezvous order for the request's prefix: 0 and 1 are homes, None is none."""
    price_in: float = 0.0
    price_out: float = 0.0
    """Currency units per million tokens; local is free."""
    load_age_s: float = 0.0
    """Seconds by which the load report may be out of date; 0 for this node's own engines."""
    note: str = ""
    """Why it is unavailable or lagging, for people."""


@dataclass(frozen=True, slots=True)
class History:
    """What the conversation so far looks like: counts, never text. All zero on a first turn."""

    turns: int = 0
    """Assistant messages in the request."""
    tool_calls: int = 0
    tool_errors: int = 0
    previous_tokens: int = 0
    """Estimated tokens of the previous turn's prompt: up to, not including, the last assistant message."""
    tokens: int = 0
    """Estimated tokens up to and including the last assistant message: what the last server may still hold."""


@dataclass(frozen=True, slots=True)
class RoutingRequest:
    """What routing may look at. `marks` is the keyed prefix chain, shortest first, as (digest, tokens up to there)."""

    id: str
    model: str
    """As asked, alias resolved."""
    traits: frozenset[str] = frozenset()
    """Needs: chat, vision, tools, schema, embeddings, …"""
    marks: tuple[tuple[bytes, int], ...] = ()
    conversation: str = ""
    prompt_tokens: int = 0
    """Estimated when not counted."""
    models: tuple[str, ...] = ()
    """Models that may answer, where a route names several; empty: `model` alone."""
    fallbacks: tuple[str, ...] = ()
    """Models a route explicitly allows instead, in order, once none of `models` can serve."""
    upstreams: frozenset[str] = frozenset()
    """Names of the upstream targets the route allows; all others are never used."""
    scaffold: bytes = b""
    """The first mark of a long shared head (tools, system text); empty when there is none."""
    opening: bytes = b""
    """The mark at the end of the first user message: the same in every turn of a conversation."""
    history: History = History()

    @property
    def wanted(self) -> tuple[str, ...]:
        """Models asked for, without fallbacks."""
        return self.models or (self.model,)

    def draw(self, salt: str) -> float:
        """A number in [0, 1) that depends on the request id and `salt` alone, so that decisions replay."""
        return _unit(self.id, salt)

    def conversation_draw(self, salt: str) -> float:
        """The same for every request of one conversation; falls back to the request id."""
        return _unit(self.conversation or self.id, salt)


def _unit(text: str, salt: str) -> float:
    digest = blake3(f"{salt}\x00{text}".encode()).digest(length=7)
    return (int.from_bytes(digest, "big") >> 3) / (1 << 53)

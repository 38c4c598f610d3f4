"""Arbitrary candidates and requests, sane and insane."""

from __future__ import annotations

from hypothesis import strategies as st

from saiserve.routing.candidate import Candidate, History, Placement, Residence, RoutingRequest

MODELS = ("a", "b", "c")
NODES = tuple(f"n{number}" for number in range(6))
TAGS = ("chat", "vision", "tools", "embeddings", "schema")

numbers = st.floats(allow_nan=True, allow_infinity=True) | st.floats(0, 1000)
counts = st.integers(-5, 10_000)


@st.composite
def candidates(draw: st.DrawFn) -> Candidate:
    node, model = draw(st.sampled_from(NODES)), draw(st.sampled_from(MODELS))
    placement = draw(st.sampled_from(Placement))
    return Candidate(
        id=f"{model}@{placement}:{node}",
        node=node,
        model=model,
        placement=placement,
        residence=draw(st.sampled_from(Residence)),
        reachable=draw(st.booleans()),
        draining=draw(st.booleans()),
        tags=frozenset(draw(st.sets(st.sampled_from(TAGS)))),
        context_tokens=draw(counts),
        lanes=draw(st.integers(-1, 64)),
        busy=draw(numbers),
        queued_tokens=draw(counts),
        prefill_rate=draw(numbers),
        decode_rate=draw(numbers),
        lagging=draw(st.booleans()),
        held_tokens=draw(counts),
        home_rank=draw(st.none() | st.integers(0, 5)),
        price_in=draw(numbers),
        price_out=draw(numbers),
        load_age_s=draw(st.floats(0, 10)),
    )


@st.composite
def requests(draw: st.DrawFn) -> RoutingRequest:
    turns = draw(st.integers(0, 5))
    previous, tokens, prompt = sorted(draw(st.tuples(*[st.integers(0, 10_000)] * 3)))
    return RoutingRequest(
        id=draw(st.text(max_size=8)),
        model=draw(st.sampled_from(MODELS)),
        traits=frozenset(draw(st.sets(st.sampled_from(TAGS)))),
        conversation=draw(st.text(max_size=4)),
        prompt_tokens=prompt,
        models=tuple(draw(st.lists(st.sampled_from(MODELS), max_size=3))),
        fallbacks=tuple(draw(st.lists(st.sampled_from(MODELS), max_size=2))),
        upstreams=frozenset(draw(st.sets(st.sampled_from(NODES), max_size=3))),
        history=History(turns, draw(st.integers(0, 5)), draw(st.integers(0, 3)), previous, tokens)
        if turns
        else History(),
    )


slates = st.lists(candidates(), max_size=6)


@st.composite
def calm_fleets(draw: st.DrawFn) -> tuple[Candidate, ...]:
    """Ready, reachable peers with one model and possible numbers."""
    names = draw(st.lists(st.sampled_from(NODES), min_size=2, unique=True))
    return tuple(
        Candidate(
            id=f"a@{name}",
            node=name,
            model="a",
            placement=Placement.PEER,
            residence=Residence.READY,
            reachable=True,
            lanes=draw(st.integers(1, 16)),
            busy=float(draw(st.integers(0, 40))),
            queued_tokens=draw(st.integers(0, 5_000)),
            prefill_rate=draw(st.floats(10, 5_000)),
            decode_rate=draw(st.floats(1, 200)),
        )
        for name in names
    )

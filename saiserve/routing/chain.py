"""Runs a chain of strategies over a slate and returns a decision. Pure: no I/O, no clock, no prompt text."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace

from saiserve.errors import ErrorKind
from saiserve.limits import DRAFT_ROUNDS_MAX, ROUTE_RETRY_AFTER_S
from saiserve.routing.ask import Ask, Keep, More, Reply
from saiserve.routing.candidate import Candidate, RoutingRequest
from saiserve.routing.decision import Decision, Refusal, Step, not_held
from saiserve.routing.slate import Slate, is_lawful

Strategy = Callable[[Slate, RoutingRequest], Slate | Ask]
"""Looks at a slate and a request and returns a narrower or better ordered slate, or asks a model first."""


class StrategyError(Exception):
    """A strategy raised or broke a law of the chain; nothing was sent. The fault is the strategy's, by name."""


def route(chain: Sequence[Strategy], slate: Slate, request: RoutingRequest) -> Generator[Ask, Reply | None, Decision]:
    """Run the chain; yields each `Ask` and expects its `Reply`, or None when no usable answer came in time.

    Total on any input with the built-in strategies. The decision is a function of (chain, slate, request, replies).

    Raises:
        StrategyError: a strategy raised, brought a candidate back, merged bands or dropped one without a reason.
    """
    trace: list[Step] = []
    for index, strategy in enumerate(chain):
        if slate.refusal is not None or not slate.ranked:
            break
        name = strategy_name(strategy)
        before = slate.under(name)
        outcome, note = _call(strategy, name, before, request), ""
        if isinstance(outcome, Ask):
            outcome, note, kept = yield from _ask(outcome, before, chain[index + 1 :], request)
            if kept is not None:
                trace.append(_step(name, before, kept, note))
                return _decision(kept, request, trace, draft_kept=True)
        if not is_lawful(before, outcome):
            raise StrategyError(f"strategy {name!r} broke a law of the chain: see docs/routing.md, Laws")
        trace.append(_step(name, before, outcome, note))
        slate = outcome
    return _decision(slate, request, trace, draft_kept=False)


def decide(chain: Sequence[Strategy], candidates: Iterable[Candidate], request: RoutingRequest) -> Decision:
    """Run a chain that asks nothing; a strategy that asks all the same is told that no answer came."""
    steps = route(chain, Slate.of(candidates, request), request)
    try:
        next(steps)
        while True:
            steps.send(None)
    except StopIteration as stop:
        decision: Decision = stop.value
        return decision


def strategy_name(strategy: Strategy) -> str:
    """The name shown in traces: the `name` attribute where there is one, or the function's own."""
    name = getattr(strategy, "name", None) or getattr(strategy, "__name__", None)
    return str(name or type(strategy).__name__)


def _call(strategy: Strategy, name: str, slate: Slate, request: RoutingRequest) -> Slate | Ask:
    try:
        return strategy(slate, request)
    except Exception as error:
        raise StrategyError(f"strategy {name!r} raised {type(error).__name__}: {error}") from error


def _ask(
    ask: Ask, before: Slate, rest: Sequence[Strategy], request: RoutingRequest
) -> Generator[Ask, Reply | None, tuple[Slate, str, Slate | None]]:
    """Put the question and read the reply: the slate to go on with, a note, and the draft's slate if it is kept."""
    if not is_lawful(before, ask.slate) or not is_lawful(before, ask.if_failed):
        return ask.slate, "asked", None
    placed = ask.slate
    if ask.question is None:
        for strategy in rest:
            name = strategy_name(strategy)
            outcome = _call(strategy, name, placed.under(name), request)
            placed = outcome.if_failed if isinstance(outcome, Ask) else outcome
        if not placed.ranked:
            return ask.if_failed, "nowhere to draft", None
    ask = replace(ask, attempts=placed.ranked)
    for _ in range(DRAFT_ROUNDS_MAX):
        reply = yield ask
        if reply is None:
            return ask.if_failed, "no usable answer", None
        verdict = ask.decide(reply)
        if isinstance(verdict, Keep):
            if ask.question is not None:
                return ask.if_failed, "a side answer cannot be kept", None
            return placed, "draft kept", placed
        if isinstance(verdict, Slate):
            return verdict, "asked", None
        ask = replace(ask, draft_tokens=max(1, verdict.tokens if isinstance(verdict, More) else 1))
    return ask.if_failed, "still undecided", None


def _step(name: str, before: Slate, after: Slate, note: str) -> Step:
    return Step(
        by=name,
        kept=len(after.ranked),
        bands=len({r.band for r in after.ranked}),
        first=after.ranked[0].candidate.id if after.ranked else "",
        dropped=tuple((d.candidate.id, d.reason) for d in after.dropped[len(before.dropped) :]),
        note=note,
    )


def _decision(slate: Slate, request: RoutingRequest, trace: list[Step], *, draft_kept: bool) -> Decision:
    refusal = slate.refusal
    if refusal is None and not slate.ranked:
        refusal = _nobody_left(slate, request)
    return Decision(
        attempts=() if refusal is not None else slate.ranked,
        refusal=refusal,
        labels=slate.labels,
        dropped=slate.dropped,
        trace=tuple(trace),
        draft_kept=draft_kept and refusal is None,
    )


def _nobody_left(slate: Slate, request: RoutingRequest) -> Refusal:
    if not slate.dropped:
        return not_held(request)
    last = slate.dropped[-1]
    return Refusal(
        ErrorKind.MODEL_UNAVAILABLE,
        f"nothing can serve this request now: {last.reason} ({last.by})",
        ROUTE_RETRY_AFTER_S,
    )

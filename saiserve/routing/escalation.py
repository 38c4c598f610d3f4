"""Staged escalation: cheap and fast first, the stronger tier when the conversation or the answer calls for it.

`escalate_on_signals` is a function of the history alone, so every node decides alike and nothing is stored: a signal
that was in the history stays there. `escalate_on_answer` lets the weak tier begin and looks at what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from saiserve.routing.ask import Ask, Keep, More, Reply
from saiserve.routing.candidate import RoutingRequest
from saiserve.routing.chain import Strategy
from saiserve.routing.slate import Slate
from saiserve.routing.tiers import Tier, check_tiers, prefer_tier


@dataclass(frozen=True, slots=True)
class Signals:
    """Counts in the history from which on a tier is called for; 0 switches a signal off."""

    tool_calls: int = 1
    tool_errors: int = 1
    turns: int = 0
    prompt_tokens: int = 0

    def show(self, request: RoutingRequest) -> tuple[str, ...]:
        """The signals that show in a request, by name."""
        history = request.history
        seen = {
            "tool_calls": history.tool_calls,
            "tool_errors": history.tool_errors,
            "turns": history.turns,
            "prompt_tokens": request.prompt_tokens,
        }
        return tuple(name for name, count in seen.items() if 0 < getattr(self, name) <= count)


def escalate_on_signals(tiers: Sequence[Tier], signals: Sequence[Signals]) -> Strategy:
    """A strategy that picks the strongest tier one of whose signals shows; `signals[i]` calls for `tiers[i + 1]`.

    Raises:
        ValueError: tiers are malformed or there is not one entry of signals for each tier but the first.
    """
    check_tiers(tiers)
    if len(signals) != len(tiers) - 1:
        raise ValueError("signals: give one entry for each tier but the weakest")

    def by_signals(slate: Slate, request: RoutingRequest) -> Slate:
        shown = [entry.show(request) for entry in signals]
        picked = max((number for number, names in enumerate(shown, start=1) if names), default=0)
        placed = prefer_tier(slate, tiers, picked)
        return placed.label("escalated_by", ",".join(shown[picked - 1])) if picked else placed

    by_signals.name = "escalate_on_signals"  # type: ignore[attr-defined]
    return by_signals


Verdict = Callable[[Reply], bool | None]
"""Whether a draft is good enough; None: not to be told yet."""


def confident(logprob_min: float = -1.5) -> Verdict:
    """A verdict by the draft's mean log-probability (natural logarithm).

    A draft that calls tools or ended without text is not good enough, and neither is one without log-probabilities.
    """

    def verdict(reply: Reply) -> bool | None:
        if reply.tool_calls or (reply.finished and not reply.text.strip()):
            return False
        return reply.mean_logprob is not None and reply.mean_logprob >= logprob_min

    return verdict


def escalate_on_answer(tiers: Sequence[Tier], *, verdict: Verdict | None = None, draft_tokens: int = 48) -> Strategy:
    """A strategy that holds back the weakest tier's first tokens, then keeps the draft or goes to the next tier.

    The client sees nothing of a draft that is dropped. Without a candidate in the weakest tier nothing is asked; when
    the draft fails, the stronger tier answers.

    Raises:
        ValueError: fewer than two tiers, or `draft_tokens` outside 8–256.
    """
    check_tiers(tiers)
    if len(tiers) < 2 or not 8 <= draft_tokens <= 256:
        raise ValueError("escalate_on_answer: give at least two tiers and 8 to 256 draft_tokens")
    good = verdict or confident()
    weak = frozenset(tiers[0].models)

    def by_answer(slate: Slate, request: RoutingRequest) -> Slate | Ask:
        stronger = prefer_tier(slate, tiers, 1)
        drafting = slate.keep(lambda c: c.model in weak, "not of the drafting tier").label("tier", tiers[0].name)
        if not drafting.ranked or len(drafting.ranked) == len(slate.ranked):
            return stronger.label("draft", "none")

        def read(reply: Reply) -> Keep | More | Slate:
            answer = good(reply)
            if answer is None and not reply.finished:
                return More(draft_tokens)
            return Keep() if answer else stronger.label("draft", "dropped")

        return Ask(drafting.label("draft", "kept"), None, read, stronger.label("draft", "failed"), draft_tokens)

    by_answer.name = "escalate_on_answer"  # type: ignore[attr-defined]
    return by_answer

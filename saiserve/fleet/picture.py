"""The fleet as `/cluster/state` shows it: plain data, one entry per member."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from saiserve.fleet.facts import ModelFact
from saiserve.fleet.load_ledger import SECOND, EffectiveLoad
from saiserve.fleet.record import NodeRecord

LoadOf = Callable[[str], EffectiveLoad]
"""Effective load by model id at one node."""


def member_state(now: int, name: str, node: NodeRecord, load_of: LoadOf) -> dict[str, Any]:
    """One member. Loads are effective loads; `vitals_age_s`, `reachability` and `rtt_ms` are the viewer's own.

    Of a member that is not alive, load and vitals are null: what it said last says nothing of now.
    """
    member, facts = node.member, node.facts
    state = "alive" if member is None else member.state.name.lower()
    if node.gone_at is not None and state not in ("dead", "left"):
        state = "dead"
    is_alive = state == "alive"
    vitals = node.vitals if is_alive else None
    models = [_model_state(fact, load_of(fact.id) if is_alive else None) for fact in facts.models]
    reachability = "local" if node.is_local else member.reachability.value if member is not None else "none"
    return {
        "name": name,
        "address": facts.advertise or (str(member.address) if member is not None else ""),
        "state": state,
        "local": node.is_local,
        "draining": facts.draining,
        "engine": not facts.no_engine,
        "models": models,
        "lanes": facts.lanes,
        "busy": sum(model["busy"] for model in models) if is_alive else None,
        "load": _share(models) if is_alive else None,
        "cpu_percent": vitals.cpu_percent if vitals else None,
        "ram_used_mib": vitals.ram_used_mib if vitals else None,
        "ram_total_mib": vitals.ram_total_mib if vitals else None,
        "loop_lag_ms": vitals.loop_lag_ms if vitals else None,
        "vitals_age_s": round(max(0, now - node.vitals_at) / SECOND, 3) if vitals else None,
        "reachability": reachability,
        "rtt_ms": round(member.rtt_s * 1000, 3) if member is not None and member.rtt_s is not None else None,
        "fault": node.fault or None,
    }


def _model_state(fact: ModelFact, load: EffectiveLoad | None) -> dict[str, Any]:
    return {
        "id": fact.id,
        "state": fact.state.name.lower(),
        "digest": fact.digest.hex(),
        "context_tokens": fact.context,
        "capabilities": sorted(fact.tags),
        "lanes": (load.lanes if load else 0) or fact.lanes,
        "busy": load.busy if load else None,
        "queued_tokens": load.queued_tokens if load else None,
        "prefill_rate": load.prefill_rate if load else None,
        "decode_rate": load.decode_rate if load else None,
    }


def _share(models: Sequence[Mapping[str, Any]]) -> float:
    """Busy lanes over lanes, all models together; above 1 when requests wait."""
    lanes = sum(model["lanes"] for model in models)
    return round(sum(model["busy"] for model in models) / lanes, 3) if lanes else 0.0

"""Every metric of a node, by name, in one table; rendered in the Prometheus text format.

Values are read when somebody asks. Labels are model ids, names of upstream targets, member states and a fixed set of
words, never client text, so the number of series is bounded by what this node itself holds.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from saiserve.node import Node
from swimcluster.prometheus_text import prometheus_text

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


ENGINE_COUNTERS: Final[dict[str, str]] = {
    "steps": "Batches computed.",
    "prefill_tokens": "Prompt tokens computed.",
    "decode_tokens": "Tokens generated.",
    "drafted": "Tokens guessed ahead.",
    "draft_hits": "Those of them that were right.",
    "prefix_hit_tokens": "Prompt tokens reused instead of computed.",
    "host_hit_tokens": "Those of them that came back from host memory.",
    "waits_for_prefix": "Requests that waited for a prefix another was computing.",
    "finished": "Answers that ended by themselves.",
    "cancelled": "Answers that were cancelled.",
    "refused": "Requests refused for a full queue.",
    "requeues": "Requests put back into the queue for lack of room.",
    "no_room": "Batches that found no room in the KV cache.",
    "clears": "Times the KV cache was cleared for an output that was no number.",
    "copies": "Prefixes shared between sequences.",
    "gate_refusals": "Prefixes that could not be reused safely and were computed again.",
    "moves_to_host": "Prefixes moved to host memory.",
    "moves_from_host": "Prefixes moved back from host memory.",
    "host_evictions": "Prefixes dropped from host memory.",
    "step_seconds": "Time of steps, what lies between them included.",
    "llama_seconds": "Time of steps inside llama.cpp.",
    "sampling_seconds": "Time of steps spent on drawing tokens.",
    "python_seconds": "Processor time of steps outside llama.cpp: scheduling, sampling, messages.",
}
"""Running totals an engine reports by these names; they begin at 0 with each engine process."""
ENGINE_GAUGES: Final[dict[str, str]] = {
    "cells_idle": "KV cells that hold prefixes nobody uses now.",
    "host_bytes": "Bytes of prefixes in host memory.",
    "batch_rows": "Tokens computed in one step, lately.",
}
ENGINE_HISTOGRAMS: Final[dict[str, str]] = {
    "queue_seconds": "Time from a request's coming to the engine to its start.",
    "first_token_seconds": "Time from a request's coming to the engine to its first token.",
}
"""Reported as `NAME_sum` and `NAME_le_BOUND`: see saiserve/engines/waits.py."""


UPSTREAM_HISTOGRAMS: Final[dict[str, str]] = {
    "first_word_seconds": "Time from a request's going to the target to its first word.",
    "answer_seconds": "Time from a request's going to the target to the end of a complete answer.",
}


class Kind(enum.Enum):
    """What a value means over time."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Definition:
    """One metric: its name without `_total`, what it says, its labels."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


METRICS: Final[tuple[Definition, ...]] = (
    Definition("saiserve_requests", Kind.COUNTER, "Requests that entered here and ended, by outcome.", ("model", "outcome")),
    Definition("saiserve_prompt_tokens", Kind.COUNTER, "Prompt tokens of requests that entered here.", ("model",)),
    Definition("saiserve_cached_tokens", Kind.COUNTER, "Prompt tokens of those that came from a prefix cache.", ("model",)),
    Definition("saiserve_completion_tokens", Kind.COUNTER, "Tokens sent to clients that entered here.", ("model",)),
    Definition("saiserve_failovers", Kind.COUNTER, "Attempts after the first of requests that entered here.", ("model",)),
    Definition("saiserve_in_flight", Kind.GAUGE, "Attempts of requests that entered here, running now."),
    Definition("saiserve_engine_lanes", Kind.GAUGE, "Streams the engine serves at once.", ("model",)),
    Definition("saiserve_engine_busy_lanes", Kind.GAUGE, "Lanes in use.", ("model",)),
    Definition("saiserve_engine_queued", Kind.GAUGE, "Requests waiting for a lane.", ("model",)),
    Definition("saiserve_engine_queued_tokens", Kind.GAUGE, "Prompt tokens not yet computed.", ("model",)),
    Definition("saiserve_engine_prefill_rate", Kind.GAUGE, "Prompt tokens per second, measured.", ("model",)),
    Definition("saiserve_engine_decode_rate", Kind.GAUGE, "Tokens per second of one stream alone, measured.", ("model",)),
    Definition("saiserve_engine_cells", Kind.GAUGE, "KV cells by use.", ("model", "use")),
    *(Definition(f"saiserve_engine_{name}", Kind.COUNTER, text, ("model",)) for name, text in ENGINE_COUNTERS.items()),
    *(Definition(f"saiserve_engine_{name}", Kind.GAUGE, text, ("model",)) for name, text in ENGINE_GAUGES.items()),
    *(Definition(f"saiserve_engine_{name}", Kind.HISTOGRAM, text, ("model",)) for name, text in ENGINE_HISTOGRAMS.items()),
    Definition("saiserve_engine_crashes", Kind.COUNTER, "Engine processes that ended on their own.", ("model",)),
    Definition("saiserve_model_loads", Kind.COUNTER, "Times a model was loaded, by outcome.", ("model", "outcome")),
    Definition("saiserve_model_load_fraction", Kind.GAUGE, "How far a model's load is; 1 once it serves, 0 while it is not resident.", ("model",)),
    Definition("saiserve_model_load_seconds", Kind.GAUGE, "What its last load took.", ("model",)),
    Definition("saiserve_model_memory_bytes", Kind.GAUGE, "Memory a model counts for in the budget now.", ("model",)),
    Definition("saiserve_model_evictions", Kind.COUNTER, "Idle models that were unloaded for another."),
    Definition("saiserve_memory_budget_bytes", Kind.GAUGE, "Memory for all models together."),
    Definition("saiserve_upstream_requests", Kind.COUNTER, "Requests sent to an upstream target, by how they ended.", ("upstream", "outcome")),
    Definition("saiserve_upstream_tokens", Kind.COUNTER, "Tokens of complete answers as the target counted them, by kind.", ("upstream", "kind")),
    Definition("saiserve_upstream_in_flight", Kind.GAUGE, "Requests at the target now.", ("upstream",)),
    Definition("saiserve_upstream_resting", Kind.GAUGE, "1 while the target rests after faults in a row, 0 while it is asked.", ("upstream",)),
    Definition("saiserve_upstream_rests", Kind.COUNTER, "Times the target began to rest.", ("upstream",)),
    *(Definition(f"saiserve_upstream_{name}", Kind.HISTOGRAM, text, ("upstream",)) for name, text in UPSTREAM_HISTOGRAMS.items()),
    Definition("saiserve_members", Kind.GAUGE, "Members as this node sees them, by state.", ("state",)),
    Definition("saiserve_loop_lag_p99_seconds", Kind.GAUGE, "Lateness of the event loop, 99th percentile of the last minute."),
    Definition("saiserve_loop_lag_max_seconds", Kind.GAUGE, "Worst lateness of the event loop in the last minute."),
)  # fmt: skip
"""docs/metrics.md lists them; a test walks both."""

Sample = tuple[tuple[str, ...], float]


@dataclass(slots=True)
class Tally:
    """What entered at this node, by model; `add` is called once per ended request."""

    requests: dict[tuple[str, str], float]
    totals: dict[tuple[str, str], float]

    @staticmethod
    def empty() -> Tally:
        """A tally of nothing."""
        return Tally({}, {})

    def add(self, model: str, outcome: str, **tokens: int) -> None:
        """Count one ended request. `tokens` are of: prompt, cached, completion, and failovers."""
        self.requests[model, outcome] = self.requests.get((model, outcome), 0.0) + 1
        for name, amount in tokens.items():
            self.totals[name, model] = self.totals.get((name, model), 0.0) + amount


class NodeMetrics:
    """Reads a node and renders what it found."""

    def __init__(self, node: Node, tally: Tally) -> None:
        self._node = node
        self._tally = tally
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self) -> bytes:
        """The exposition text; where this node is in a cluster, with what swimcluster counts (docs/metrics.md)."""
        cluster = self._node.cluster
        membership = prometheus_text(cluster).encode() if cluster is not None else b""
        return bytes(generate_latest(self._registry)) + membership

    def collect(self) -> Iterator[Metric]:
        """All families, in the table's order; prometheus_client's collector protocol."""
        samples = self._samples()
        for definition in METRICS:
            family: CounterMetricFamily | GaugeMetricFamily
            if definition.kind is Kind.HISTOGRAM:
                yield self._histogram(definition)
                continue
            if definition.kind is Kind.COUNTER:
                family = CounterMetricFamily(definition.name, definition.help, labels=definition.labels)
            else:
                family = GaugeMetricFamily(definition.name, definition.help, labels=definition.labels)
            for labels, value in samples.get(definition.name, ()):
                family.add_metric(labels, value)
            yield family

    def _histogram(self, definition: Definition) -> HistogramMetricFamily:
        family = HistogramMetricFamily(definition.name, definition.help, labels=definition.labels)
        name = definition.name.removeprefix("saiserve_engine_").removeprefix("saiserve_upstream_")
        start = f"{name}_le_"
        for label, counters in self._classes(name):
            classes = [(key.removeprefix(start), count) for key, count in counters.items() if key.startswith(start)]
            family.add_metric((label,), buckets=classes or [("+Inf", 0.0)], sum_value=counters.get(f"{name}_sum", 0.0))
        return family

    def _classes(self, name: str) -> Iterable[tuple[str, dict[str, float]]]:
        """Whose times they are, and how many fell into each class."""
        if name in ENGINE_HISTOGRAMS:
            for model, resident in sorted(self._node.residents.models.items()):
                yield model, getattr(resident.source, "counters", {})
            return
        for target, state in sorted(self._node.upstreams.states.items()):
            waits = {"first_word_seconds": state.tally.first_word, "answer_seconds": state.tally.answer}[name]
            yield target, waits.values(name)

    def _samples(self) -> dict[str, list[Sample]]:
        found: dict[str, list[Sample]] = {}
        for name, labels, value in (
            *self._entered(),
            *self._engines(),
            *self._models(),
            *self._upstreams(),
            *self._fleet(),
        ):
            found.setdefault(name, []).append((labels, value))
        return found

    def _entered(self) -> Iterable[tuple[str, tuple[str, ...], float]]:
        for labels, value in sorted(self._tally.requests.items()):
            yield "saiserve_requests", labels, value
        for (name, model), value in sorted(self._tally.totals.items()):
            yield f"saiserve_{name}", (model,), value
        yield "saiserve_in_flight", (), float(self._node.view.in_flight)

    def _engines(self) -> Iterable[tuple[str, tuple[str, ...], float]]:
        for model, resident in sorted(self._node.residents.models.items()):
            load = resident.load
            label = (model,)
            yield "saiserve_engine_lanes", label, float(load.lanes)
            yield "saiserve_engine_busy_lanes", label, float(load.busy)
            yield "saiserve_engine_queued", label, float(load.queued)
            yield "saiserve_engine_queued_tokens", label, float(load.queued_tokens)
            yield "saiserve_engine_prefill_rate", label, load.prefill_rate
            yield "saiserve_engine_decode_rate", label, load.decode_rate
            yield "saiserve_engine_cells", (model, "used"), float(load.cells_used)
            yield "saiserve_engine_cells", (model, "free"), float(load.cells_total - load.cells_used)
            yield "saiserve_engine_crashes", label, float(getattr(resident.source, "crashes", 0))
            counters = getattr(resident.source, "counters", {})
            for name in (*ENGINE_COUNTERS, *ENGINE_GAUGES):
                yield f"saiserve_engine_{name}", label, float(counters.get(name, 0.0))

    def _models(self) -> Iterable[tuple[str, tuple[str, ...], float]]:
        residents = self._node.residents
        for model, resident in sorted(residents.models.items()):
            yield "saiserve_model_loads", (model, "ready"), float(resident.loads)
            yield "saiserve_model_loads", (model, "failed"), float(resident.load_failures)
            yield "saiserve_model_load_fraction", (model,), resident.fraction
            yield "saiserve_model_load_seconds", (model,), resident.load_s
            yield "saiserve_model_memory_bytes", (model,), float(resident.held_bytes)
        yield "saiserve_model_evictions", (), float(residents.loader.evictions)
        yield "saiserve_memory_budget_bytes", (), float(residents.loader.budget_bytes)

    def _upstreams(self) -> Iterable[tuple[str, tuple[str, ...], float]]:
        for target, state in sorted(self._node.upstreams.states.items()):
            for outcome, count in state.tally.requests.items():
                yield "saiserve_upstream_requests", (target, outcome.value), float(count)
            for kind, tokens in state.tally.tokens.items():
                yield "saiserve_upstream_tokens", (target, kind), float(tokens)
            yield "saiserve_upstream_in_flight", (target,), float(state.running)
            yield "saiserve_upstream_resting", (target,), float(state.is_resting)
            yield "saiserve_upstream_rests", (target,), float(state.tally.rests)

    def _fleet(self) -> Iterable[tuple[str, tuple[str, ...], float]]:
        states: dict[str, int] = {"alive": 0, "suspect": 0, "dead": 0, "left": 0}
        for member in self._node.view.state(0)["members"]:
            states[member["state"]] = states.get(member["state"], 0) + 1
        for state, count in states.items():
            yield "saiserve_members", (state,), float(count)
        yield "saiserve_loop_lag_p99_seconds", (), self._node.lag.percentile(0.99)
        yield "saiserve_loop_lag_max_seconds", (), self._node.lag.percentile(1.0)

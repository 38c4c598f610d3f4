"""What a node of ours counted while it was measured, from the text of its `/metrics`. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

PREFIX: Final = "saiserve_engine_"
QUEUE_SHARE: Final = 0.9
"""Share of requests that started within `queue_s_p90`."""


def counted(metrics: str) -> dict[str, float]:
    """Numbers of the engines and of the node's event loop, by the names `saiserve bench --json` gives them.

    Raises:
        ValueError: not the text format.
    """
    totals: dict[str, float] = {}
    cells: dict[str, float] = {}
    classes: dict[float, float] = {}
    for name, labels, value in _samples(metrics):
        if name == "cells":
            cells[labels.get("use", "")] = cells.get(labels.get("use", ""), 0.0) + value
        elif name == "queue_seconds_bucket":
            bound = float(labels["le"])
            classes[bound] = classes.get(bound, 0.0) + value
        else:
            totals[name] = totals.get(name, 0.0) + value
    busy = totals.get("step_seconds_total", 0.0)
    rows = totals.get("prefill_tokens_total", 0.0) + totals.get("decode_tokens_total", 0.0)
    return {
        "rows_per_step": rows / max(totals.get("steps_total", 0.0), 1.0),
        "python_share": totals.get("python_seconds_total", 0.0) / busy if busy else 0.0,
        "prefix_hit_tokens": totals.get("prefix_hit_tokens_total", 0.0),
        "lanes": totals.get("lanes", 0.0),
        "queue_s_mean": totals.get("queue_seconds_sum", 0.0) / max(totals.get("queue_seconds_count", 0.0), 1.0),
        "queue_s_p90": _within(classes, QUEUE_SHARE),
        "cells_used": cells.get("used", 0.0),
        "cells_idle": totals.get("cells_idle", 0.0),
        "cells_total": sum(cells.values()),
        "loop_lag_s_p99": totals.get("saiserve_loop_lag_p99_seconds", 0.0),
        "loop_lag_s_max": totals.get("saiserve_loop_lag_max_seconds", 0.0),
    }


def _samples(metrics: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            yield sample.name.removeprefix(PREFIX), sample.labels, sample.value


def _within(classes: dict[float, float], share: float) -> float:
    """The upper bound of the first class by which this share is reached; the last finite one when none does. 0: nothing."""
    total = max(classes.values(), default=0.0)
    if not total:
        return 0.0
    finite = sorted(bound for bound in classes if bound != float("inf"))
    reached = (bound for bound in finite if classes[bound] >= share * total)
    return next(reached, finite[-1] if finite else 0.0)

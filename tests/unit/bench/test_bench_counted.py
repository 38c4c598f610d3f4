"""What `saiserve bench` reads out of a node's metrics."""

from __future__ import annotations

import pytest

from saiserve.bench.counted import counted

METRICS = """\
# TYPE saiserve_engine_lanes gauge
saiserve_engine_lanes{model="m"} 16.0
# TYPE saiserve_engine_cells gauge
saiserve_engine_cells{model="m",use="used"} 300.0
saiserve_engine_cells{model="m",use="free"} 700.0
# TYPE saiserve_engine_cells_idle gauge
saiserve_engine_cells_idle{model="m"} 250.0
# TYPE saiserve_engine_steps_total counter
saiserve_engine_steps_total{model="m"} 50.0
# TYPE saiserve_engine_prefill_tokens_total counter
saiserve_engine_prefill_tokens_total{model="m"} 400.0
# TYPE saiserve_engine_decode_tokens_total counter
saiserve_engine_decode_tokens_total{model="m"} 100.0
# TYPE saiserve_engine_step_seconds_total counter
saiserve_engine_step_seconds_total{model="m"} 4.0
# TYPE saiserve_engine_python_seconds_total counter
saiserve_engine_python_seconds_total{model="m"} 0.1
# TYPE saiserve_engine_prefix_hit_tokens_total counter
saiserve_engine_prefix_hit_tokens_total{model="m"} 77.0
# TYPE saiserve_engine_queue_seconds histogram
saiserve_engine_queue_seconds_bucket{le="0.01",model="m"} 5.0
saiserve_engine_queue_seconds_bucket{le="0.1",model="m"} 9.0
saiserve_engine_queue_seconds_bucket{le="+Inf",model="m"} 10.0
saiserve_engine_queue_seconds_count{model="m"} 10.0
saiserve_engine_queue_seconds_sum{model="m"} 2.5
# TYPE saiserve_loop_lag_p99_seconds gauge
saiserve_loop_lag_p99_seconds 0.002
# TYPE saiserve_loop_lag_max_seconds gauge
saiserve_loop_lag_max_seconds 0.03
"""


def test_steps_queue_cells_and_lag_are_read() -> None:
    assert counted(METRICS) == {
        "rows_per_step": 10.0,
        "python_share": 0.025,
        "prefix_hit_tokens": 77.0,
        "lanes": 16.0,
        "queue_s_mean": 0.25,
        "queue_s_p90": 0.1,
        "cells_used": 300.0,
        "cells_idle": 250.0,
        "cells_total": 1000.0,
        "loop_lag_s_p99": 0.002,
        "loop_lag_s_max": 0.03,
    }


@pytest.mark.parametrize(
    ("within", "bound"), [(0.0, 0.1), (10.0, 0.01)], ids=["few within any class", "all within the first"]
)
def test_the_bound_is_a_finite_class(within: float, bound: float) -> None:
    told = METRICS.replace('le="0.01",model="m"} 5.0', f'le="0.01",model="m"}} {within}').replace(
        'le="0.1",model="m"} 9.0', f'le="0.1",model="m"}} {within}'
    )
    assert counted(told)["queue_s_p90"] == bound


def test_a_node_that_counted_nothing_gives_zeros() -> None:
    assert set(counted("").values()) == {0.0}

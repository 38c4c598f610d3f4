"""`python -m benchmarks engine [--json] [--quick] [--rounds N] [ROW ...]`: the engine beside llama-server, as clients have it.

A ROW is an experiment (`decode`), or one of a model (`decode-smol`, `decode-gemma`); none: all. `make peers` builds the
llama-server. Both run on this machine, are asked in turn, and are set alike: see docs/engine-benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

import trio

from benchmarks.engine import bursts, pauses, steps, talks
from benchmarks.engine.rows import Row, as_json, render
from benchmarks.engine.scale import Experiment, Scale
from benchmarks.engine.servers import MODELS, PeerMissingError

EXPERIMENTS = (*bursts.EXPERIMENTS, *talks.EXPERIMENTS, *steps.EXPERIMENTS, *pauses.EXPERIMENTS)


def chosen(names: list[str]) -> list[tuple[Experiment, str]]:
    """The experiments of these names, each with its model.

    Raises:
        ValueError: a name is unknown.
    """
    table = {f"{experiment.name}-{model}": (experiment, model) for experiment in EXPERIMENTS for model in MODELS}
    if not names:
        return list(table.values())
    picked = []
    for name in names:
        found = [entry for full, entry in table.items() if name in (full, entry[0].name)]
        if not found:
            raise ValueError(f"{name!r} is none of {', '.join(experiment.name for experiment in EXPERIMENTS)}")
        picked += found
    return picked


async def measure(experiments: list[tuple[Experiment, str]], scale: Scale) -> list[Row]:
    """Run them one after the other."""
    rows: list[Row] = []
    started = time.monotonic()
    for experiment, model in experiments:
        found = await experiment.measure(model, scale)
        rows += found
        print(render(found, head=not rows[len(found) :]), flush=True)
        print(f"{experiment.name}-{model}: {time.monotonic() - started:.0f} s so far", file=sys.stderr, flush=True)
    return rows


def main() -> int:
    """Return 0 when every bound holds, 1 when one does not, 2 when it cannot be measured."""
    parser = argparse.ArgumentParser(prog="benchmarks engine", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="experiments; default: all")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that all works, says little")
    parser.add_argument("--rounds", type=int, help="rounds in turn; default: each experiment's own")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    parsed = parser.parse_args()
    try:
        rows = trio.run(measure, chosen(parsed.rows), Scale(parsed.quick, parsed.rounds))
    except (ValueError, PeerMissingError) as error:
        print(error, file=sys.stderr)
        return 2
    holds = all(row.holds is not False for row in rows)
    if parsed.json:
        machine = {"cores": os.cpu_count(), "load_average": os.getloadavg()[0]}
        parameters = {"quick": parsed.quick, "rounds": parsed.rounds}
        rows_out = [as_json(row) for row in rows]
        print(json.dumps({"machine": machine, "parameters": parameters, "rows": rows_out, "holds": holds}))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())

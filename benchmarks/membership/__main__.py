"""Measure both sides in turn and print the table; see `benchmarks.membership`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from typing import Any

from benchmarks.membership.loopback import isolation
from benchmarks.membership.table import as_json, render, rows

MISSING = "kinship is not installed: install this project with its `bench` extra"


def life(side: str, parsed: argparse.Namespace, prefix: tuple[str, ...]) -> dict[str, Any]:
    """Run one life of one side in a process of its own.

    Raises:
        subprocess.CalledProcessError: it failed; it said why on standard error.
        subprocess.TimeoutExpired: it took more than ten minutes.
    """
    command = [*prefix, sys.executable, "-m", "benchmarks.membership.life", "--side", side]
    command += ["--members", str(parsed.members), "--steady", str(parsed.steady)]
    command += ["--changes", str(parsed.changes), "--patience", str(parsed.patience)]
    command += ["--isolated"] if prefix else []
    output = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=600).stdout
    measured: dict[str, Any] = json.loads(output.splitlines()[-1])
    return measured


def main() -> int:
    """Return 0 when every bound holds, 1 when one does not, 2 when the other side is missing."""
    parser = argparse.ArgumentParser(prog="benchmarks.membership", description=__doc__)
    parser.add_argument("--members", type=int, default=8, help="members of a cluster, at least 6")
    parser.add_argument("--rounds", type=int, default=3, help="lives of each side, in turn")
    parser.add_argument("--steady", type=float, default=8.0, help="seconds of the idle cluster that are metered")
    parser.add_argument("--changes", type=int, default=6, help="metadata changes per life")
    parser.add_argument("--patience", type=float, default=10.0, help="seconds to wait for a returning member")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    parsed = parser.parse_args()
    if parsed.members < 6:
        parser.error("--members must be at least 6: several are killed and the rest must see it")
    if importlib.util.find_spec("kinship") is None:
        print(MISSING, file=sys.stderr)
        return 2
    prefix = isolation()
    if not prefix:
        print("no network of our own may be made here: traffic is not counted", file=sys.stderr)
    lives: dict[str, list[dict[str, Any]]] = {"ours": [], "theirs": []}
    started = time.monotonic()
    for number in range(1, parsed.rounds + 1):
        for side, done in lives.items():
            done.append(life(side, parsed, prefix))
            print(f"round {number} {side}: {time.monotonic() - started:.0f} s so far", file=sys.stderr, flush=True)
    table = rows(lives["ours"], lives["theirs"])
    holds = all(item.holds is not False for item in table)
    print(f"{parsed.members} members, {parsed.rounds} rounds, load average {os.getloadavg()[0]:.1f}")
    print(render(table, parsed.patience))
    if parsed.json:
        parameters = {name: getattr(parsed, name) for name in ("members", "rounds", "steady", "changes", "patience")}
        print(json.dumps({"parameters": parameters, "rows": [as_json(item) for item in table], "holds": holds}))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())

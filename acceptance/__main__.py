"""`python -m acceptance [--quick] [NAME ...]`: one line per promise, kept or not; exit code 1 when one is not."""

from __future__ import annotations

import argparse
import sys
import time
import traceback

import trio

from acceptance import clients, cluster, engine, failover, first_run, openapi, schemas
from acceptance.check import Check, Scale, SkippedError
from saiserve.bench.processes import stop_like_ctrl_c

CHECKS: tuple[Check, ...] = (
    *first_run.CHECKS,
    *clients.CHECKS,
    *cluster.CHECKS,
    *failover.CHECKS,
    *engine.CHECKS,
    *schemas.CHECKS,
    *openapi.CHECKS,
)
CHECK_S = 3600.0


async def _all(checks: list[Check], scale: Scale) -> int:
    failures = 0
    for check in checks:
        started = time.monotonic()
        try:
            with trio.fail_after(CHECK_S):
                word, seen = "ok", await check.run(scale)
        except SkippedError as reason:
            word, seen = "skip", str(reason)
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - a failed check must not hide the others
            failures += 1
            word, seen = "FAIL", _reason(error)
        print(f"{word:4} {check.name}: {check.promise}\n     {seen} ({time.monotonic() - started:.0f} s)", flush=True)
    print(f"{len(checks) - failures} passed, {failures} failed")
    return 1 if failures else 0


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, AssertionError) and str(error):
        return str(error)
    return "".join(traceback.format_exception(error))[-3000:]


def main() -> int:
    """Run the named checks, or all."""
    parser = argparse.ArgumentParser(prog="python -m acceptance", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and this checkout instead of a clean clone")
    parser.add_argument("names", nargs="*", help=", ".join(check.name for check in CHECKS))
    parsed = parser.parse_args()
    unknown = set(parsed.names) - {check.name for check in CHECKS}
    if unknown:
        parser.error(f"no such check: {', '.join(sorted(unknown))}")
    chosen = [check for check in CHECKS if not parsed.names or check.name in parsed.names]
    stop_like_ctrl_c()
    return trio.run(_all, chosen, Scale(is_full=not parsed.quick))


if __name__ == "__main__":
    sys.exit(main())

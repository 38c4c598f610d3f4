"""Schemathesis over the served OpenAPI document, against a node that forwards to another."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import trio

from acceptance.check import Check, Scale, SkippedError
from acceptance.cluster import UNHURRIED_S, wait_view
from acceptance.nodes import API_KEY, CLUSTER_SECRET, fleet

MODEL: Final = "simulated:sim?decode_rate=100000&prefill_rate=10000000&answer_tokens=4"
CHECKS_RUN: Final = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
CONFIG: Final = '[checks.not_a_server_error]\nexpected-statuses = ["2xx", "3xx", "4xx", 501]\n'
"""501 is llama-server's answer, and ours on its routes, for what a model cannot do, such as filling in."""
CASES_FULL: Final = 10_000
CASES_QUICK: Final = 50
GENERATOR_FAULT: Final = "SystemError: AST constructor recursion depth mismatch"
"""Python 3.11's parser, when the generator of cases describes a deep one to itself; nothing was asked then."""
SEED: Final = int(os.environ.get("SEED", "1"))
EXAMPLES_FULL: Final = 300
"""Random cases for each operation, beside some 5,600 systematic ones for all."""
EXAMPLES_QUICK: Final = 6


def _command(url: str, report: Path, scale: Scale) -> list[str]:
    phases = "coverage,fuzzing" if scale.is_full else "fuzzing"
    headers = (f"Authorization: Bearer {API_KEY}", f"x-api-key: {API_KEY}", f"X-SAI-Cluster: {CLUSTER_SECRET}")
    return [
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(report.with_name("schemathesis.toml"))),
        *("run", f"{url}/openapi.json"),
        *("--exclude-path", "/admin/models/load"),  # a random word must not make a node fetch what is called so
        *(word for header in headers for word in ("--header", header)),
        *("--checks", CHECKS_RUN, "--phases", phases, "--continue-on-failure", "--no-color"),
        *("--max-examples", str(scale.pick(EXAMPLES_FULL, EXAMPLES_QUICK)), "--seed", str(SEED), "--workers", "2"),
        *("--request-timeout", "300", "--report", "json", "--report-json-path", str(report)),
    ]


async def _fuzz(scale: Scale) -> str:
    if importlib.util.find_spec("schemathesis") is None:
        raise SkippedError("schemathesis is not installed; it is in the extra dev")
    async with fleet() as group:
        entry = await group.start_ready("entry", "none", seeds="")
        worker = await group.start_ready("worker", MODEL)
        await wait_view([entry, worker], {"entry", "worker"}, UNHURRIED_S)
        report = group.folder / "report.json"
        report.with_name("schemathesis.toml").write_text(CONFIG, "utf-8")
        command = _command(entry.url, report, scale)
        done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False, cwd=group.folder)
        said = done.stdout.decode("utf-8", "replace") + done.stderr.decode("utf-8", "replace")
        assert report.exists(), said[-3000:]
        return _judged(json.loads(report.read_text("utf-8")), said, scale)


def _judged(report: dict[str, Any], said: str, scale: Scale) -> str:
    cases = report["test_cases"]
    assert not report["failures"], f"seed {SEED}: {report['failures']}\n{said[-12000:]}"
    # The report only counts errors; what was said has each one's last line.
    errors = sum(error["count"] for error in report["errors"])
    assert errors <= said.count(GENERATOR_FAULT), f"seed {SEED}: {report['errors']}\n{said[-12000:]}"
    operations = report["operations"]
    assert operations["tested"] == operations["selected"] == operations["total"] - 1, (
        operations
    )  # one is left out above
    wanted = scale.pick(CASES_FULL, CASES_QUICK)
    assert cases["generated"] >= wanted, f"only {cases['generated']} of {wanted} cases were made"
    return (
        f"seed {SEED}: {cases['generated']} cases over {report['operations']['tested']} operations, nothing undeclared"
    )


CHECKS = (
    Check("openapi", "no server fault, no undeclared status and no schema violation in 10,000 generated requests", _fuzz),
)  # fmt: skip

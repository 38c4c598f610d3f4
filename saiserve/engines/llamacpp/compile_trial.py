"""Compiles a constraint in a process of its own first, where time and memory have an end: a thread cannot be stopped.

`python -m saiserve.engines.llamacpp.compile_trial` reads `{"grammar", "limits", "cpu_s"}` as JSON and ends with status 0 when
the constraint was compiled, well or badly, within `cpu_s` and `MEMORY_BYTES`. It knows no vocabulary but bytes: what
compiling costs hardly depends on it.
"""

from __future__ import annotations

import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
from hashlib import blake2b
from pathlib import Path
from typing import Any

CPU_S = 3
"""Processor seconds a constraint may take."""
MEMORY_BYTES = 512 * 1024 * 1024
WALL_S = 30.0
"""Seconds on the clock, for a machine that is busy otherwise."""
VERDICTS_MAX = 256
"""Constraints whose verdicts are remembered."""
TOO_COSTLY = (
    f"compiling it takes more than {CPU_S} s of computing or {MEMORY_BYTES >> 20} MiB of memory: "
    "its repetitions, multiples or combined parts are too large together"
)
FAULTS = {-signal.SIGXCPU: TOO_COSTLY, -signal.SIGKILL: TOO_COSTLY, -signal.SIGABRT: TOO_COSTLY}
"""Ends that a constraint itself brings about: they are remembered."""
UNTRIED = "whether it can be compiled could not be tried, as this machine is too busy: send it again"
NO_STATUS = -1_000
STATM = Path("/proc/self/statm")
"""How much memory a process has; memory is not bounded where nothing says it."""
TOKEN_IDS = re.compile(r"<\[[\d,\s-]*\]>")
"""Token ids in a grammar, which the trial's vocabulary does not have."""


class CompileTrial:
    """Verdicts on constraints, by trying them. Two threads at once may try the same one twice."""

    def __init__(self, limits: dict[str, Any]) -> None:
        """`limits` are llguidance's."""
        self._limits = limits
        self._verdicts: dict[bytes, str | None] = {}

    def fault(self, grammar: str) -> str | None:
        """Why the grammar is not compiled; None when it may be. Waits for `WALL_S` at most."""
        digest = blake2b(grammar.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if digest in self._verdicts:
            return self._verdicts[digest]
        status = self._try(grammar)
        verdict = FAULTS.get(status, UNTRIED) if status else None
        if status == 0 or status in FAULTS:
            if len(self._verdicts) >= VERDICTS_MAX:
                self._verdicts = {}
            self._verdicts[digest] = verdict
        return verdict

    def _try(self, grammar: str) -> int:
        """Exit status of the trial; `NO_STATUS` where it did not end or begin."""
        root = str(Path(__file__).parents[3])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
        given = json.dumps({"grammar": TOKEN_IDS.sub("<[1]>", grammar), "limits": self._limits, "cpu_s": CPU_S})
        try:
            return subprocess.run(
                [sys.executable, "-m", "saiserve.engines.llamacpp.compile_trial"],
                input=given.encode(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
                timeout=WALL_S,
                check=False,
            ).returncode
        except (subprocess.TimeoutExpired, OSError):
            return NO_STATUS


def main() -> int:
    """Entry point of the process."""
    given = json.load(sys.stdin)
    import llguidance

    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = math.ceil(used.ru_utime + used.ru_stime) + given["cpu_s"]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    if STATM.exists():
        space = int(STATM.read_text().split()[0]) * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (space, space))
    limits = llguidance.LLParserLimits(**given["limits"])
    llguidance.LLMatcher(llguidance.LLTokenizer("byte"), given["grammar"], log_level=0, limits=limits)
    return 0


if __name__ == "__main__":
    os._exit(main())

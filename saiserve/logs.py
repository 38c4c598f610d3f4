"""Log lines: one physical line per record, whatever a client managed to put into it.

Plain standard-library logging on stderr. Control characters are escaped, so that no text can forge a line or move a
terminal's cursor; records over `LINE_CHARACTERS_MAX` are cut.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Final

LINE_CHARACTERS_MAX: Final = 4_096
ROUTE_LOGGER: Final = "saiserve.route"
"""One record per routed request, at INFO; silent unless SAI_ROUTE_LOG=1."""

_ESCAPES: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    10: "\\n",
    13: "\\r",
    9: " ",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


def one_line(text: str) -> str:
    """`text` as one printable line of bounded length; line breaks become `\\n`, controls `\\x1b` and the like."""
    cut = text if len(text) <= LINE_CHARACTERS_MAX else text[: LINE_CHARACTERS_MAX - 1] + "…"
    return cut.translate(_ESCAPES)


class LineFormatter(logging.Formatter):
    """`2026-11-29T14:00:00Z INFO saiserve.node: text`, tracebacks folded into the same line."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%SZ"
    default_msec_format = None

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line."""
        return one_line(super().format(record))


def set_up_logging(level: str, *, route_log: bool) -> None:
    """Send this process's records to stderr, at `level` (debug, info, warning, error)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in ("saiserve", "swimcluster"):
        logging.getLogger(name).setLevel(level.upper())
    logging.getLogger(ROUTE_LOGGER).setLevel(logging.INFO if route_log else logging.CRITICAL)

"""What keeps an error nobody foresaw with the request it happened to, in every kind of worker."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

logger = logging.getLogger("saiserve.engine")
Given = ParamSpec("Given")
Result = TypeVar("Result")

STOPS: Final = (KeyboardInterrupt, SystemExit)
"""Not a request's fault. Everything else is, a panic of native code too, which is no Exception."""
FAULTS_MAX: Final = 8
"""Batches in a row that could not be computed for an error of our own: then the process is what is broken."""


class Guard:
    """Does a worker's work for single requests and for batches. `fail` ends a request with a sentence."""

    def __init__(self, fail: Callable[[str, str], None]) -> None:
        self._fail = fail
        self._faults = 0

    def request(self, request_id: str, act: Callable[Given, None], *given: Given.args, **named: Given.kwargs) -> None:
        """Do something for one request; an error nobody foresaw is the end of that request alone."""
        try:
            act(*given, **named)
        except STOPS:
            raise
        except BaseException as error:  # noqa: BLE001 - see STOPS
            self.fault(request_id, error)

    def fault(self, request_id: str, error: BaseException) -> None:
        """An error nobody foresaw, while this request was served."""
        logger.error("request %s failed", request_id, exc_info=error)
        self._fail(request_id, f"an error inside the engine ({type(error).__name__})")

    def batch(
        self, tokens: int, act: Callable[Given, Result], *given: Given.args, **named: Given.kwargs
    ) -> Result | None:
        """Compute a batch of so many tokens; None after an error, and each of its requests is to be tried alone."""
        try:
            result = act(*given, **named)
        except STOPS:
            raise
        except BaseException:
            self._faults += 1
            if self._faults == FAULTS_MAX:
                raise
            logger.exception("a batch of %d tokens was not computed", tokens)
            return None
        self._faults = 0
        return result

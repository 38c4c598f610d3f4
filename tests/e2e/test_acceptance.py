"""The promises of the walk-through, at the size of a test run."""

from __future__ import annotations

import pytest

from acceptance.__main__ import CHECKS
from acceptance.check import Check, Scale, SkippedError


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
async def test_a_promise_is_kept(check: Check) -> None:
    try:
        print(await check.run(Scale(is_full=False)))
    except SkippedError as reason:
        pytest.skip(str(reason))

"""What a machine that stood still may have spoilt is measured again; what is wrong is wrong at once."""

from __future__ import annotations

import pytest
import trio

from acceptance.check import LateError, Scale, at_best


def measuring(*faults: type[AssertionError] | None) -> tuple[list[int], object]:
    left, tries = list(faults), []

    async def measure() -> int:
        tries.append(1)
        fault = left.pop(0)
        if fault:
            raise fault("so it was")
        return len(tries)

    return tries, measure


async def test_one_measurement_in_time_is_enough() -> None:
    _, measure = measuring(LateError, LateError, None)
    assert await at_best(measure) == 3  # type: ignore[arg-type]


async def test_what_is_late_each_time_is_told() -> None:
    tries, measure = measuring(LateError, LateError, LateError, None)
    with pytest.raises(LateError):
        await at_best(measure)  # type: ignore[arg-type]
    assert len(tries) == 3


async def test_a_nursery_does_not_hide_that_it_was_late() -> None:
    tries: list[int] = []

    async def fail(kind: type[AssertionError]) -> None:
        raise kind("so it was")

    async def measure() -> None:
        tries.append(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail, LateError)
            if len(tries) == 2:
                nursery.start_soon(fail, AssertionError)

    with pytest.raises(BaseExceptionGroup):
        await at_best(measure)
    assert len(tries) == 2


async def test_anything_else_is_told_at_once_and_a_full_run_measures_once() -> None:
    tries, measure = measuring(AssertionError, None)
    with pytest.raises(AssertionError):
        await at_best(measure)  # type: ignore[arg-type]
    assert len(tries) == 1
    tries, measure = measuring(LateError, None)
    with pytest.raises(LateError):
        await at_best(measure, Scale(is_full=True).times)  # type: ignore[arg-type]
    assert len(tries) == 1

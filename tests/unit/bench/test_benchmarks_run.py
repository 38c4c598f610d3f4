"""Every name that `python -m benchmarks` offers is one it can run."""

from __future__ import annotations

from typing import get_type_hints

import pytest

from benchmarks.__main__ import module_of, names


@pytest.mark.parametrize("name", names())
def test_a_benchmark_has_a_main_that_gives_an_exit_code(name: str) -> None:
    assert get_type_hints(module_of(name).main)["return"] is int

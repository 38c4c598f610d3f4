"""A pytest plugin for llama.cpp's server tests: nothing is fetched before them."""

from __future__ import annotations

import sys

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems() -> None:
    """Take away the step that downloads every preset's model."""
    presets = sys.modules["utils"].ServerPreset
    presets.load_all = staticmethod(lambda: None)

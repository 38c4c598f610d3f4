"""llama.cpp's own server tests pass against a node at least as often as is promised (docs/llama-server-tests.md)."""

from __future__ import annotations

import os

import pytest

from tests.peers.llama_server_tests import TESTS, run_file

GOALS = {
    "template": 35,
    "compat_anthropic": 24,
    "security": 24,
    "chat_completion": 33,
    "completion": 28,
    "tokenize": 2,
    "basic": 4,
    "embedding": 26,
    "rerank": 12,
    "ignore_eos": 1,
}
"""Tests that must pass; docs/llama-server-tests.md says of each that is left out why."""


@pytest.mark.slow
@pytest.mark.skipif(
    "PEER_TESTS" not in os.environ or not TESTS.exists(), reason="a quarter of an hour: `make peer-tests`"
)
@pytest.mark.parametrize("file", list(GOALS))
def test_llama_cpps_own_tests_pass_as_often_as_promised(file: str) -> None:
    outcome = run_file(file)
    assert outcome.passed >= GOALS[file], f"failed: {', '.join(outcome.failed)}"

"""llama.cpp's own server tests pass against a node at least as often as is promised (docs/llama-server-tests.md)."""

from __future__ import annotations

import os

import pytest

from tests.peers.llama_server_tests import TESTS, run_file

GOALS = {
    "template": 35,
    "compat_anthropic": 24,
    "security": 23,
    "chat_completion": 33,
    "completion": 21,
    "tokenize": 2,
}
"""Tests that must pass. Those that contradict the public APIs are left out: two images and an empty conversation on
Messages, two assistant messages and joined text parts on chat."""


@pytest.mark.slow
@pytest.mark.skipif(
    "PEER_TESTS" not in os.environ or not TESTS.exists(), reason="a quarter of an hour: `make peer-tests`"
)
@pytest.mark.parametrize("file", list(GOALS))
def test_llama_cpps_own_tests_pass_as_often_as_promised(file: str) -> None:
    outcome = run_file(file)
    assert outcome.passed >= GOALS[file], f"failed: {', '.join(outcome.failed)}"

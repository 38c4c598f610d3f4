"""The line to try that a node prints is one a shell can run, once it is told what the node may not print."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from saiserve.serve import banner
from tests.fakes.node import make_node

ONE, TWO = "one-key-of-more-than-16", "two-keys-of-more-than-16"


@pytest.mark.parametrize(
    ("models", "keys", "header", "words"),
    [
        ("simulated:sim", ONE, "$API_KEY", "Try, in a terminal with API_KEY set to a client key of this node:"),
        ("simulated:sim", f"a:{ONE},b:{TWO}", "$KEY", "Try, in a terminal with KEY set to a client key of this node:"),
        ("none", ONE, "$API_KEY", "and MODEL set to one that http://127.0.0.1:8081/v1/models lists:"),
    ],
)
def test_what_is_not_printed_is_a_variable_that_is_named(
    models: str, keys: str, header: str, words: str, tmp_path: Path
) -> None:
    node = make_node(models, tmp_path, API_KEY=keys)
    text = banner(node.settings, node)
    assert words in text
    assert not any(secret in text for secret in (ONE, TWO))
    command = shlex.split(text[text.index("curl") :].replace("\\\n", ""))
    assert f"Authorization: Bearer {header}" in command
    body = json.loads(command[command.index("-d") + 1])
    assert body["model"] == ("sim" if models != "none" else "$MODEL")
    assert ('"\'"$MODEL"\'"' in text) == (models == "none")


def test_a_node_without_models_says_so(tmp_path: Path) -> None:
    node = make_node("none", tmp_path)
    assert "serves no model of its own at" in banner(node.settings, node)

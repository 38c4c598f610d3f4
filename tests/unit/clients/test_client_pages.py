"""The pages that configure clients hold what the tests that run those clients take from them."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from tests.api.agents import AGENTS, PAGES, Agent, fill

ROOT = Path(__file__).parents[3]
VALUES = {
    "URL": "http://127.0.0.1:1",
    "KEY": "secret-key",
    "MODEL": "some-model",
    "WINDOW": "8192",
    "OUTPUT": "512",
    "PROMPT": "What now? Say it.",
}


@pytest.fixture(params=AGENTS, ids=lambda agent: agent.name)
def agent(request) -> Agent:
    return request.param


def test_the_versions_told_are_those_installed() -> None:
    package = json.loads((ROOT / "tools/clients/package.json").read_text("utf-8"))
    page = (PAGES / "README.md").read_text("utf-8")
    told = dict(re.findall(r"(Claude Code|Codex|OpenCode) (\d+\.\d+\.\d+)", page))
    names = {"Claude Code": "@anthropic-ai/claude-code", "Codex": "@openai/codex", "OpenCode": "opencode-ai"}
    assert {names[name]: version for name, version in told.items()} == package["dependencies"]


def test_a_page_gives_the_key_the_url_and_the_model_and_leaves_no_blank(agent: Agent, tmp_path: Path) -> None:
    agent.write_config(VALUES, tmp_path)
    files = [path.read_text("utf-8") for path in tmp_path.rglob("*") if path.is_file()]
    given = "\n".join([*files, *agent.environment(VALUES, tmp_path).values()])
    for name in ("URL", "KEY", "MODEL"):
        assert VALUES[name] in given, name
    assert not re.search(r"\b(URL|KEY|MODEL|WINDOW|OUTPUT|PROMPT)\b", given)


def test_a_page_has_a_command_for_scripts_with_the_prompt_as_one_word(agent: Agent) -> None:
    for small in (False, True):
        command = agent.command(VALUES, small=small)
        assert Path(command[0]).name == agent.name
        assert command.count(VALUES["PROMPT"]) == 1


def test_configuration_files_are_what_their_format_says() -> None:
    by_name = {agent.name: agent for agent in AGENTS}
    codex = tomllib.loads(fill(by_name["codex"].blocks("toml")[0], VALUES))
    assert codex["model_providers"]["saiserve"]["base_url"] == "http://127.0.0.1:1/v1"
    opencode = json.loads(fill(by_name["opencode"].blocks("json")[0], VALUES))
    assert opencode["provider"]["saiserve"]["models"]["some-model"]["limit"] == {"context": 8192, "output": 512}


def test_only_claude_code_has_a_base_url_without_v1() -> None:
    for agent in AGENTS:
        text = (PAGES / agent.page).read_text("utf-8")
        assert ("URL/v1" in text) is (agent.name != "claude")

"""Claude Code, Codex and OpenCode themselves against a served application: an answer, a tool round trip, an overflow,
a run that is stopped.

Needs the three packages (`SAISERVE_CLIENTS` is the folder whose `node_modules` holds them; docs/clients/README.md names
the versions) and a network of loopback alone, so that nothing leaves the machine:
`unshare --net sh -c 'ip link set lo up && exec python -m pytest -m slow tests/api/test_coding_agents.py'`.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from saiserve.api.service import ModelCard
from saiserve.chat.events import Started, TextDelta
from saiserve.chat.request import GenerationRequest, Role
from saiserve.errors import ApiError, ErrorKind
from tests.api.serving import KEY, Served, served_elsewhere
from tests.fakes.service import Pause, ScriptedService, Step, saying

CLIENTS = Path(os.environ.get("SAISERVE_CLIENTS", "/nonexistent")) / "node_modules" / ".bin"


def only_loopback() -> bool:
    return len(Path("/proc/net/route").read_text().splitlines()) == 1


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CLIENTS.is_dir(), reason="SAISERVE_CLIENTS is not set"),
    pytest.mark.skipif(not only_loopback(), reason="the network reaches beyond loopback"),
]

MODEL = "smol"
RUN_S = 90
CARDS = (ModelCard(id=MODEL, created=1, context_tokens=200_000, capabilities=frozenset({"chat", "tools"})),)


@dataclass(frozen=True)
class Agent:
    """One client: how it is started for a prompt, and its tool that runs a command."""

    name: str
    command: Callable[[Served, Path, str], list[str]]
    environment: Callable[[Served, Path], dict[str, str]]
    tool: str
    """Its tool that runs a command; empty when its name depends on the version."""
    argument: str
    """Where the command goes in the call."""


def claude_command(served: Served, home: Path, prompt: str) -> list[str]:
    options = ["--bare", "--tools", "Bash", "--allowedTools", "Bash", "--max-turns", "4"]
    return [str(CLIENTS / "claude"), "-p", prompt, "--model", MODEL, "--output-format", "json", *options]


def claude_environment(served: Served, home: Path) -> dict[str, str]:
    quiet = dict.fromkeys(("DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING"), "1")
    return {
        "ANTHROPIC_BASE_URL": served.url,
        "ANTHROPIC_AUTH_TOKEN": KEY,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "1",
        **quiet,
    }


def codex_command(served: Served, home: Path, prompt: str) -> list[str]:
    return [
        str(CLIENTS / "codex"),
        "exec",
        "--skip-git-repo-check",
        "--json",
        "--dangerously-bypass-approvals-and-sandbox",
        prompt,
    ]


def codex_environment(served: Served, home: Path) -> dict[str, str]:
    folder = home / "codex"
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(
        f'model = "{MODEL}"\nmodel_provider = "saiserve"\ncheck_for_update_on_startup = false\nweb_search = "disabled"\n'
        "[analytics]\nenabled = false\n"
        f'[model_providers.saiserve]\nname = "saiserve"\nbase_url = "{served.url}/v1"\nenv_key = "SAISERVE_KEY"\n'
        f'wire_api = "responses"\nmodel_catalog_url = "{served.url}/v1/models"\nrequest_max_retries = 1\n'
        "stream_max_retries = 1\n"
    )
    return {"CODEX_HOME": str(folder), "SAISERVE_KEY": KEY}


def opencode_command(served: Served, home: Path, prompt: str) -> list[str]:
    return [str(CLIENTS / "opencode"), "run", "--format", "json", prompt]


def opencode_environment(served: Served, home: Path) -> dict[str, str]:
    config = {
        "autoupdate": False,
        "share": "disabled",
        "model": f"saiserve/{MODEL}",
        "small_model": f"saiserve/{MODEL}",
        "permission": "allow",
        "provider": {
            "saiserve": {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": f"{served.url}/v1", "apiKey": KEY},
                "models": {MODEL: {"tool_call": True, "limit": {"context": 200_000, "output": 4096}}},
            }
        },
    }
    (home / "opencode.json").write_text(json.dumps(config))
    names = ("AUTOUPDATE", "MODELS_FETCH", "DEFAULT_PLUGINS", "LSP_DOWNLOAD")
    return {f"OPENCODE_DISABLE_{name}": "1" for name in names}


AGENTS = [
    Agent("claude", claude_command, claude_environment, "Bash", "command"),
    Agent("codex", codex_command, codex_environment, "", "cmd"),
    Agent("opencode", opencode_command, opencode_environment, "bash", "command"),
]


@pytest.fixture(params=AGENTS, ids=lambda agent: agent.name)
def agent(request) -> Agent:
    return request.param


def start(agent: Agent, served: Served, home: Path, prompt: str) -> subprocess.Popen[bytes]:
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], **agent.environment(served, home)}
    return subprocess.Popen(
        agent.command(served, home, prompt),
        cwd=home,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def run(agent: Agent, served: Served, home: Path, prompt: str) -> str:
    process = start(agent, served, home, prompt)
    try:
        output, _ = process.communicate(timeout=RUN_S)
    finally:
        process.kill()
        process.wait()
    return output.decode("utf-8", "replace")


def test_a_plain_answer_is_shown(agent, tmp_path):
    with served_elsewhere(ScriptedService(saying("Marmalade is ready."), cards=CARDS)) as served:
        assert "Marmalade is ready." in run(agent, served, tmp_path, "What is ready?")
        assert any("What is ready?" in message.text for r in served.service.requests for message in r.messages)


def test_a_tool_is_called_run_and_its_output_comes_back(agent, tmp_path):
    def script(request: GenerationRequest) -> Sequence[Step]:
        results = [message for message in request.messages if "tool-said-42" in message.text]
        if results:
            return saying("It printed tool-said-42, as hoped.")(request)
        names = [name for name in (agent.tool, "exec_command", "shell_command", "shell") if name]
        text = "".join(message.text for message in request.messages)
        name = next((name for name in names if f'"name": "{name}"' in text), None)
        if name is None:
            return saying("A title")(request)
        call = {"name": name, "arguments": {agent.argument: "echo tool-said-$((40+2))", "description": "say it"}}
        if name == "shell_command":
            call["arguments"] = {"command": "echo tool-said-$((40+2))"}
        return saying(f"<tool_call>\n{json.dumps(call)}\n</tool_call>")(request)

    with served_elsewhere(ScriptedService(script, cards=CARDS)) as served:
        assert "as hoped" in run(agent, served, tmp_path, "Run the command.")
        assert any(message.role is Role.USER for r in served.service.requests for message in r.messages)


def test_an_overflow_is_recognised_and_not_tried_for_ever(agent, tmp_path):
    overflow = ApiError(ErrorKind.CONTEXT_TOO_LONG, "too long", prompt_tokens=9_000, context_tokens=8_192)
    with served_elsewhere(ScriptedService(lambda request: [overflow], cards=CARDS)) as served:
        output = run(agent, served, tmp_path, "Anything.").lower()
        assert any(word in output for word in ("too long", "context window", "contextoverflow", "context")), output
        assert len(served.service.requests) < 8


def test_stopping_the_agent_stops_its_answer(agent, tmp_path):
    endless = [Started(1, 0), TextDelta(0, "Once "), Pause(3600)]
    with served_elsewhere(ScriptedService(lambda request: endless, cards=CARDS)) as served:
        process = start(agent, served, tmp_path, "Tell me a story.")
        try:
            wait_for(lambda: served.service.requests)
            time.sleep(1)
        finally:
            os.killpg(process.pid, 9)
            process.communicate()
        wait_for(lambda: len(served.service.ended) == len(served.service.requests))
        assert set(served.service.ended) == {"cancelled"}


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + RUN_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)

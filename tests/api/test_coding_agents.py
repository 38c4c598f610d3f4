"""Claude Code, Codex and OpenCode themselves against two nodes, entering at the one that does not have the model.

`make clients` installs them and runs this. By hand: `SAISERVE_CLIENTS` is the folder whose `node_modules` holds them,
and the network must be loopback alone, so that nothing leaves the machine (docs/clients/README.md has the command).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from tests.api.agents import AGENTS, CLIENTS, Agent, Pair, end_group, scripted_nodes, two_nodes


def only_loopback() -> bool:
    return len(Path("/proc/net/route").read_text().splitlines()) == 1


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CLIENTS.is_dir(), reason="SAISERVE_CLIENTS is not set"),
    pytest.mark.skipif(not only_loopback(), reason="the network reaches beyond loopback"),
]

RUN_S = 180.0
REAL_MODEL_RUN_S = 400.0
SAID = "tool-said-42"
COMMAND = "echo tool-said-$((40+2))"


@pytest.fixture(params=AGENTS, ids=lambda agent: agent.name)
def agent(request) -> Agent:
    return request.param


@pytest.fixture
def home(tmp_path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def check_forwarded(pair: Pair) -> None:
    outcomes = pair.outcomes()
    assert outcomes, pair.entry.log_text()
    assert all(outcome.startswith("done at worker;") for outcome in outcomes), outcomes


async def test_a_plain_answer_is_shown(agent, home, tmp_path):
    rules = [{"when": ["What is ready?"], "say": "Marmalade naïve 😀 is ready."}]
    async with scripted_nodes(tmp_path, rules) as pair:
        output = await pair.run(agent, home, "What is ready?", seconds=RUN_S)
        assert "Marmalade naïve 😀 is ready." in output or spelled(output), output
        check_forwarded(pair)


def spelled(output: str) -> bool:
    """Whether the answer is in what a client printed as JSON with escapes."""
    return json.dumps("Marmalade naïve 😀 is ready.")[1:-1] in output


async def test_a_tool_is_called_run_and_its_output_comes_back(agent, home, tmp_path):
    rules = [{"when": [SAID], "say": f"It printed {SAID}, as hoped."}]
    for tool in agent.tools:
        arguments = {"cmd" if tool == "exec_command" else "command": COMMAND, "description": "say it"}
        call = json.dumps({"name": tool, "arguments": arguments})
        rules.append({"when": ["Run the command.", f'"name": "{tool}"'], "say": f"<tool_call>\n{call}\n</tool_call>"})
    async with scripted_nodes(tmp_path, rules) as pair:
        output = await pair.run(agent, home, "Run the command.", seconds=RUN_S)
        assert f"It printed {SAID}, as hoped." in output, output
        check_forwarded(pair)
        assert len(pair.outcomes()) >= 2


async def test_an_overflow_is_told_in_the_clients_own_words_and_not_tried_for_ever(agent, home, tmp_path):
    async with scripted_nodes(tmp_path, [], context=64) as pair:
        output = await pair.run(agent, home, "Anything. " * 40, seconds=RUN_S)
        assert agent.overflow in output.lower(), output
        assert 1 <= len(pair.refusals()) < 8, pair.refusals()
        assert not pair.outcomes()


async def test_a_client_that_is_killed_stops_its_answer_on_the_other_node(agent, home, tmp_path):
    rules = [{"when": ["Tell me a story."], "say": "Once upon a time. " * 500}]
    async with scripted_nodes(tmp_path, rules, options="decode_rate=4") as pair:
        async with pair.started(agent, home, "Tell me a story.") as process:
            await wait_for(pair.busy, RUN_S)
            await trio.sleep(1)
            end_group(process.pid)
            await wait_for(lambda: becomes_idle(pair), 5)
        outcomes = pair.outcomes()
        assert outcomes
        assert all(outcome.startswith("cancelled at worker;") for outcome in outcomes), outcomes


async def becomes_idle(pair: Pair) -> bool:
    return await pair.busy() == 0


async def wait_for(condition: Callable[[], object], seconds: float) -> None:
    with trio.move_on_after(seconds):
        while not await condition():  # type: ignore[misc]
            await trio.sleep(0.1)
        return
    raise AssertionError(f"it did not happen in {seconds} s")


@pytest.mark.parametrize("agent", AGENTS[:2], ids=lambda agent: agent.name)
async def test_smollm2_answers_in_the_small_form(agent, home):
    async with two_nodes("smollm2-135m", "smollm2-135m", window=8_192, output=512, THREADS="2") as pair:
        prompt = "Say hello in one short sentence."
        output = await pair.run(agent, home, prompt, seconds=REAL_MODEL_RUN_S, small=True)
        assert answer_of(agent, output).strip(), output
        check_forwarded(pair)


def answer_of(agent: Agent, output: str) -> str:
    """The final text a client printed; AssertionError when its run failed."""
    records = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    if agent.name == "claude":
        assert records[-1]["subtype"] == "success", output
        assert not records[-1]["is_error"], output
        return str(records[-1]["result"])
    assert records[-1]["type"] == "turn.completed", output
    texts = [record["item"]["text"] for record in records if record.get("item", {}).get("type") == "agent_message"]
    return "".join(texts)

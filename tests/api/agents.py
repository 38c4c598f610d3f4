"""Claude Code, Codex and OpenCode as the pages in docs/clients configure them, and two nodes for them to talk to."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from acceptance.cluster import wait_view
from acceptance.nodes import API_KEY, Fleet, Node, fleet

PAGES = Path(__file__).parents[2] / "docs" / "clients"
CLIENTS = Path(os.environ.get("SAISERVE_CLIENTS", "/nonexistent")) / "node_modules" / ".bin"


@dataclass(frozen=True)
class Agent:
    """One client, known by its page and by what only it says or has."""

    name: str
    page: str
    overflow: str
    """How it says, in its own words, that the prompt is too long."""
    tools: tuple[str, ...]
    """Its tool that runs a command, whose name may depend on the configuration."""
    config: str = ""
    """Where its configuration file goes, below its home."""

    def blocks(self, *languages: str) -> list[str]:
        """The page's code blocks in these languages."""
        text = (PAGES / self.page).read_text("utf-8")
        found = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        return [body for language, body in found if language in languages]

    def environment(self, values: Mapping[str, str], home: Path) -> dict[str, str]:
        """What the page exports, and the little a clean home needs."""
        exports = re.findall(r"^export (\w+)=(\S+)", "".join(self.blocks("sh")), re.MULTILINE)
        return {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "CODEX_HOME": str(home / "codex"),
            **{name: fill(value, values) for name, value in exports},
        }

    def command(self, values: Mapping[str, str], *, small: bool) -> list[str]:
        """The page's command for a script: the first for full prompts, the last for small models."""
        lines = [line for block in self.blocks("sh") for line in block.splitlines() if "PROMPT" in line]
        words = [fill(word, values) for word in shlex.split(lines[-1 if small else 0])]
        return [str(CLIENTS / words[0]), *words[1:]]

    def write_config(self, values: Mapping[str, str], home: Path) -> None:
        """Put the page's configuration file where the client looks for it."""
        if self.config:
            (home / self.config).parent.mkdir(parents=True, exist_ok=True)
            (home / self.config).write_text(fill(self.blocks("toml", "json")[0], values), "utf-8")


def fill(text: str, values: Mapping[str, str]) -> str:
    """Put values in the place of the pages' capital words."""
    return re.sub(rf"\b({'|'.join(values)})\b", lambda match: values[match[1]], text)


AGENTS = [
    Agent("claude", "claude-code.md", "prompt is too long", ("Bash",)),
    Agent(
        "codex", "codex.md", "context window", ("exec_command", "shell_command", "shell"), config="codex/config.toml"
    ),
    Agent("opencode", "opencode.md", "contextoverflowerror", ("bash",), config="opencode.json"),
]


@dataclass
class Pair:
    """A node without the model, where requests enter, and the node that has it."""

    entry: Node
    worker: Node
    model: str
    window: int
    output: int

    def values(self, prompt: str) -> dict[str, str]:
        """What the pages' capital words stand for here."""
        numbers = {"WINDOW": str(self.window), "OUTPUT": str(self.output)}
        return {"URL": self.entry.url, "KEY": API_KEY, "MODEL": self.model, "PROMPT": prompt, **numbers}

    async def run(self, agent: Agent, home: Path, prompt: str, *, seconds: float, small: bool = False) -> str:
        """Run a client to its end and return all it printed. AssertionError when it takes longer."""
        async with self.started(agent, home, prompt, small=small) as process:
            assert process.stdout is not None
            output = b""
            with trio.move_on_after(seconds):
                async for part in process.stdout:
                    output += part
                return output.decode("utf-8", "replace")
        raise AssertionError(f"{agent.name} did not end in {seconds} s: {output[-2000:]!r}\n{self.entry.log_text()}")

    @asynccontextmanager
    async def started(
        self, agent: Agent, home: Path, prompt: str, *, small: bool = False
    ) -> AsyncIterator[trio.Process]:
        """A running client; its whole process group is gone afterwards."""
        values = self.values(prompt)
        agent.write_config(values, home)
        process = await trio.lowlevel.open_process(
            agent.command(values, small=small),
            cwd=home,
            env=agent.environment(values, home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            end_group(process.pid)
            with trio.CancelScope(shield=True):
                await process.wait()

    def outcomes(self) -> list[str]:
        """How each request that was run ended, from the entry node's log: `done at worker; …`."""
        pattern = rf"^.* model={re.escape(self.model)} (\w+ at .*?); attempts"
        return re.findall(pattern, self.entry.log_text(), re.MULTILINE)

    def refusals(self) -> list[str]:
        """Each request that was refused."""
        return re.findall(rf"^.* model={re.escape(self.model)} refused: (.*)$", self.entry.log_text(), re.MULTILINE)

    async def busy(self) -> int:
        """Lanes in use on the node that has the model, as it says itself."""
        members = {member["name"]: member for member in (await self.worker.state())["members"]}
        return int(members["worker"]["busy"])


def end_group(group: int) -> None:
    """End a client and whatever it started, if anything is left."""
    with suppress(ProcessLookupError):
        os.killpg(group, 9)


@asynccontextmanager
async def two_nodes(models: str, model: str, *, window: int, output: int, **environment: str) -> AsyncIterator[Pair]:
    """The two nodes, each knowing the other, with the model ready."""
    async with fleet() as group:
        entry, worker = await _start(group, models, environment)
        yield Pair(entry, worker, model, window, output)


async def _start(group: Fleet, models: str, environment: Mapping[str, str]) -> tuple[Node, Node]:
    entry = await group.start_ready("entry", "none", seeds="", environment={"SAI_ROUTE_LOG": "1"})
    worker = await group.start_ready("worker", models, environment=environment)
    await wait_view([entry], {"entry", "worker"}, 60)
    return entry, worker


@asynccontextmanager
async def scripted_nodes(
    folder: Path, rules: Sequence[Mapping[str, Any]], *, context: int = 65_536, options: str = "decode_rate=500"
) -> AsyncIterator[Pair]:
    """Two nodes with a model that says what `rules` tell it to (see `saiserve.engines.simulated_script`)."""
    script = folder / "script.json"
    script.write_text(json.dumps(list(rules)), "utf-8")
    models = f"simulated:smol?context_tokens={context}&{options}&script={script}"
    async with two_nodes(models, "smol", window=65_536, output=4_096) as pair:
        yield pair

"""Three nodes: who is there, where requests land, and what a name is worth."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import trio

from acceptance.chat import chat_body, stream_chat
from acceptance.check import Check, LateError, Scale, at_best
from acceptance.nodes import API_KEY, CLUSTER_SECRET, Fleet, Node, fleet
from saiserve.limits import LOOP_LAG_S, VITALS_STALE_S

SMOL = "smollm2-135m"
GEMMA = "gemma-3-270m"
VIEW_S = 2.0
RETURN_S = 5.0
UNHURRIED_S = 120.0
"""Longest wait for a node that the machine holds up: it may have been buried for that, and has to come back."""


async def three_nodes(group: Fleet) -> tuple[Node, Node, Node]:
    """Two nodes with SmolLM2 and one with Gemma, started as an operator would, all ready."""
    first = group.start("node-a", SMOL, seeds="", environment={"SAI_ROUTE_LOG": "1"})
    await first.wait_ready()
    second = group.start("node-b", SMOL, environment={"SAI_ROUTE_LOG": "1"})
    third = group.start("node-c", GEMMA, environment={"SAI_ROUTE_LOG": "1"})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(second.wait_ready)
        nursery.start_soon(third.wait_ready)
    return first, second, third


async def wait_view(nodes: list[Node], alive: set[str], timeout_s: float) -> float:
    """Seconds until each node sees exactly `alive` as alive members with ready models. AssertionError if never."""
    started = trio.current_time()
    views: dict[str, Any] = {}
    with trio.move_on_after(timeout_s):
        while True:
            views = {node.name: await node.state() for node in nodes}
            if all(_sees(view, alive) for view in views.values()) and _agree(views):
                return trio.current_time() - started
            await trio.sleep(0.05)
    raise AssertionError(f"views after {timeout_s} s: { {name: _summary(view) for name, view in views.items()} }")


def _sees(view: dict[str, Any], alive: set[str]) -> bool:
    members = {member["name"]: member for member in view["members"] if member["state"] == "alive"}
    return set(members) == alive and all(
        model["state"] == "ready" for member in members.values() for model in member["models"]
    )


def _agree(views: dict[str, Any]) -> bool:
    """Whether each node is seen where it is and with what it holds: both are known a moment after its life."""
    own = {name: _held(member) for name, view in views.items() for member in view["members"] if member["name"] == name}
    return all(
        _held(member) == own[member["name"]]
        for view in views.values()
        for member in view["members"]
        if member["name"] in own
    )


def _held(member: dict[str, Any]) -> tuple[str, set[str]]:
    return member["address"], {model["id"] for model in member["models"]}


def _summary(view: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(m["name"], m["state"], str([x.get("state") for x in m["models"]])) for m in view["members"]]


async def unhurried(entry: Node, *names: str) -> None:
    """Wait until `entry` sees that none of these nodes is late: it rightly sends no request to one that is."""
    late: dict[str, Any] = {}
    with trio.move_on_after(UNHURRIED_S):
        while True:
            members = {member["name"]: member for member in (await entry.state())["members"]}
            late = {name: members.get(name) for name in names if not _is_in_time(members.get(name))}
            if not late:
                return
            await trio.sleep(0.05)
    raise AssertionError(f"{entry.name} sees after {UNHURRIED_S} s that nodes are late: {late}")


@asynccontextmanager
async def lateness(entry: Node, *names: str) -> AsyncIterator[set[str]]:
    """Who of these was late within the block, as `entry` saw it; the set is whole afterwards."""
    late: set[str] = set()

    async def look() -> None:
        while True:
            members = {member["name"]: member for member in (await entry.state())["members"]}
            late.update(name for name in names if not _is_in_time(members.get(name)))
            await trio.sleep(0.2)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        yield late
        nursery.cancel_scope.cancel()


def _is_in_time(member: dict[str, Any] | None) -> bool:
    if member is None or member["reachability"] not in ("local", "direct") or member["vitals_age_s"] is None:
        return False
    return bool(member["loop_lag_ms"] < LOOP_LAG_S * 1_000 and member["vitals_age_s"] < VITALS_STALE_S / 2)


async def _views(scale: Scale) -> str:
    async with fleet() as group:
        nodes = list(await three_nodes(group))
        took = await wait_view(nodes, {node.name for node in nodes}, scale.within(VIEW_S))
        for node in nodes:
            for member in (await node.state())["members"]:
                for key in ("address", "models", "lanes", "busy", "cpu_percent", "ram_used_mib", "ram_total_mib"):
                    assert member.get(key) is not None, f"{node.name} shows no {key} of {member['name']}: {member}"
        _curl_lines(nodes[0])
        return f"three alive members in every view {took:.2f} s after the last was ready; both curl lines answer"


def _curl_lines(node: Node) -> None:
    state = _curl("-H", f"X-SAI-Cluster: {CLUSTER_SECRET}", f"{node.url}/cluster/state")
    assert GEMMA in state, state
    answer = _curl(
        f"{node.url}/v1/chat/completions",
        *("-H", f"Authorization: Bearer {API_KEY}", "-H", "Content-Type: application/json"),
        *("-d", f'{{"model":"{SMOL}","messages":[{{"role":"user","content":"hi"}}]}}'),
    )
    assert '"chat.completion"' in answer, answer


def _curl(*arguments: str) -> str:
    command = ["curl", "-sS", "--max-time", "60", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=90).stdout


async def _model_aware(scale: Scale) -> str:
    async with fleet() as group:
        nodes = await three_nodes(group)
        await wait_view(list(nodes), {node.name for node in nodes}, scale.within(VIEW_S))
        await unhurried(nodes[0], "node-c")
        async with nodes[0].client() as client:
            stream = await stream_chat(client, chat_body(GEMMA, "Name a colour.", 16))
        assert "node-c" in stream.route, stream.route
        return f"asked node-a for Gemma: {stream.route}"


async def _load_aware(scale: Scale) -> str:
    async with fleet() as group:
        nodes = await three_nodes(group)
        await wait_view(list(nodes), {node.name for node in nodes}, scale.within(VIEW_S))
        served = await at_best(partial(_burst, nodes[0], ("node-a", "node-b")), scale.times)
        return f"30 at once to node-a ran on {dict(served)}"


async def _burst(entry: Node, names: tuple[str, ...]) -> Counter[str]:
    """Where 30 requests at once ran, which must be on all of these nodes. LateError when it was not and one was late."""
    served: Counter[str] = Counter()

    async def ask(client: httpx2.AsyncClient, number: int) -> None:
        stream = await stream_chat(client, chat_body(SMOL, f"Tell me a story about the number {number}.", 32))
        served[_served_by(stream.route)] += 1

    await unhurried(entry, *names)
    async with entry.client() as client, lateness(entry, *names) as late, trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(ask, client, number)
    # As many as it has lanes find them free at once; how the rest is shared out depends on how fast each node is.
    lanes = {member["name"]: member["lanes"] for member in (await entry.state())["members"]}
    if set(served) != set(names) or any(served[name] < min(30 // 4, lanes[name]) for name in names):
        raise (LateError if late else AssertionError)(f"{served}, lanes {lanes}, late {late}")
    return served


def _served_by(route: str) -> str:
    match = re.search(r"node-[a-z]", route)
    assert match, f"the route header names no node: {route!r}"
    return match[0]


async def _cache_aware(scale: Scale) -> str:
    async with fleet() as group:
        nodes = await three_nodes(group)
        await wait_view(list(nodes), {node.name for node in nodes}, scale.within(VIEW_S))
        numbers = count()
        shown = [
            await at_best(lambda: _conversation(nodes[0], nodes[1], next(numbers)), scale.times)
            for _ in range(scale.pick(6, 3))
        ]
        return f"four turns through alternating nodes, cached tokens by turn: {'; '.join(shown)}"


async def _conversation(one: Node, other: Node, number: int) -> str:
    """Where four turns ran and what they found cached. LateError when that was not as promised and a node was late."""
    guide = f"You are the helpful guide number {number}. Answer in one sentence."
    messages: list[dict[str, str]] = [{"role": "system", "content": guide}]
    served, cached = [], []
    names = (one.name, other.name)
    async with lateness(one, *names) as late, lateness(other, *names) as late_there:
        for turn in range(4):
            messages.append({"role": "user", "content": f"Question {turn}: what is {turn} plus {number}?"})
            body = chat_body(SMOL, "", 24) | {"messages": messages}
            entry = (one, other)[turn % 2]
            await unhurried(entry, *names)
            async with entry.client() as client:
                stream = await stream_chat(client, body)
            messages.append({"role": "assistant", "content": stream.text})
            served.append(_served_by(stream.route))
            cached.append(stream.cached_tokens)
    if len(set(served)) != 1 or not all(tokens > 0 for tokens in cached[1:]):
        seen = f"turns of one conversation ran on {served}, cached tokens by turn: {cached}, late {late | late_there}"
        raise (LateError if late | late_there else AssertionError)(seen)
    return f"{served[0]} {cached}"


async def _returns(scale: Scale) -> str:
    async with fleet() as group:
        a = await group.start_ready("node-a", SMOL, seeds="")
        b = await group.start_ready("node-b", SMOL)
        c = await group.start_ready("node-c", "none", seeds=a.address)
        names = {"node-a", "node-b", "node-c"}
        await wait_view([a, b, c], names, scale.within(VIEW_S))
        shown = []
        for how in ("another port", "another port, state folder deleted", "the same port"):
            b.kill()
            state_dir: Path | None = group.folder / "fresh-state" if "deleted" in how else None
            started = trio.current_time()
            b = group.start("node-b", SMOL, port=b.port if how == "the same port" else None, state_dir=state_dir)
            await _seen_at([a, c], "node-b", b.address, scale.within(RETURN_S))
            shown.append(f"{how} {trio.current_time() - started:.1f} s")
            await b.wait_ready()
            await wait_view([a, b, c], names, scale.within(VIEW_S))
        return f"back in every view: {', '.join(shown)}"


async def _seen_at(viewers: list[Node], name: str, address: str, timeout_s: float) -> None:
    """Wait until every viewer shows one member of the name, alive at the address."""
    views: list[Any] = []
    with trio.move_on_after(timeout_s):
        while True:
            views = [
                [(m["address"], m["state"]) for m in (await node.state())["members"] if m["name"] == name]
                for node in viewers
            ]
            assert all(len(view) <= 1 for view in views), f"{name} is shown twice: {views}"
            if all(view == [(address, "alive")] for view in views):
                return
            await trio.sleep(0.05)
    raise AssertionError(f"{name} is not back at {address} within {timeout_s} s: {views}")


async def _name_held(scale: Scale) -> str:
    async with fleet() as group:
        a = await group.start_ready("node-a", "none", seeds="")
        b = await group.start_ready("node-b", "none")
        second = group.start("node-b", "none")
        with trio.move_on_after(scale.within(15)):
            while second.process.poll() is None:
                await trio.sleep(0.05)
        assert second.process.poll() not in (None, 0), f"the second node-b runs on:\n{second.log_text()[-1000:]}"
        assert "node-b" in second.log_text(), second.log_text()
        await _seen_at([a], "node-b", b.address, scale.within(VIEW_S))
        last = second.log_text().strip().splitlines()[-1]
        return f"the second holder ended with code {second.process.poll()}: {last[-160:]}"


CHECKS = (
    Check("views", "three members in every view within 2 s of the last one's readiness, with load, CPU, RAM", _views),
    Check("model-aware", "a Gemma request sent to a SmolLM2 node is answered by the Gemma node", _model_aware),
    Check("load-aware", "30 simultaneous requests to one node spread over both", _load_aware),
    Check("cache-aware", "a four-turn conversation through alternating nodes stays on one, cached from turn 2", _cache_aware),
    Check("returns", "a killed node restarted on another port or without state is back in every view within 5 s", _returns),
    Check("name-held", "a second live holder of a name exits with a message", _name_held),
)  # fmt: skip

"""Turns recorded from three coding agents (long texts left out): through a target of either dialect as without it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from saiserve.api.service import ModelCard
from saiserve.chat.events import (
    ChoiceFinished,
    ReasoningDelta,
    Started,
    StopKind,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from saiserve.chat.request import GenerationRequest, Message, Role
from saiserve.engines.upstream.anthropic_request import OUTPUT_TOKENS_DEFAULT
from tests.api.serving import KEY as TARGET_KEY
from tests.api.serving import serving
from tests.fakes.service import ScriptedService, Step
from tests.fakes.upstream import MODEL, front, fronting, upstream_table

RECORDED = sorted((Path(__file__).parents[2] / "fixtures" / "agents").glob("*.json"))
CARD = ModelCard(id=MODEL, created=1, context_tokens=200_000, capabilities=frozenset({"chat", "tools", "reasoning"}))


def script(request: GenerationRequest) -> Sequence[Step]:
    """Two calls at once after some text, where there are tools; text alone where there are none."""
    tools = (request.original or request).tools
    steps: list[Step] = [
        Started(70, 30),
        ReasoningDelta(0, "Hm. "),
        ReasoningDelta(0, "Yes."),
        TextDelta(0, "I "),
        TextDelta(0, "look."),
    ]
    for index, tool in enumerate(tools[:2]):
        bare = tool.name.removeprefix(f"{tool.namespace}__") if tool.namespace else tool.name
        steps.append(ToolCallStarted(0, index, f"call_{index}", bare, tool.namespace))
        steps += [ToolCallDelta(0, index, piece) for piece in ('{"a":', ' "é', '\\n"}')]
    steps += [ChoiceFinished(0, StopKind.TOOL_CALLS if tools else StopKind.LENGTH), Usage(70, 30, 12)]
    return steps


def normal(text: str) -> Any:
    """An answer without what differs from request to request: ids, times, and counts that are told before the end."""
    text = re.sub(r"[0-9a-f]{32}", "ID", text)
    text = re.sub(r'"(created|created_at|completed_at)":\d+', r'"\1":0', text)
    if "data: " not in text:
        return {name: value for name, value in json.loads(text).items() if name != "timings"}
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    for event in events:
        if event.get("type") == "message_start":
            event["message"]["usage"] = {}
        for holder in (event, event.get("response", {})):
            holder.pop("timings", None)
    return [*events, "[DONE]" in text]


def meaning(request: GenerationRequest) -> dict[str, Any]:
    """What a request asks for, however it was written down."""
    request = request.original or request
    return {
        "messages": turns(request.messages or ()),
        "tools": [(t.name, t.description, t.parameters) for t in request.tools],
        "choice": request.tool_choice,
        "constraint": request.constraint,
        "max_tokens": request.max_tokens,
        "stop": request.stop,
        "stream": request.stream,
    }


def turns(messages: Sequence[Message]) -> list[tuple[Any, ...]]:
    """Turns, neighbours of one role as one; a system message after the head in the words for it."""
    result: list[tuple[Any, ...]] = []
    in_head = True
    for message in messages:
        in_head = in_head and message.role is Role.SYSTEM
        role, text = message.role, message.text
        if role is Role.SYSTEM and not in_head:
            role, text = Role.USER, f"<system>\n{text}\n</system>"
        calls = [(c.id, c.name, json.loads(c.arguments)) for c in message.tool_calls]
        if result and result[-1][0] is role and role is not Role.TOOL:
            last = result.pop()
            text = last[1] + ("\n\n" if role is Role.SYSTEM else "") + text
            calls = last[2] + calls
        result.append((role, text, calls, message.tool_call_id, message.is_error))
    return result


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
@pytest.mark.parametrize("recorded", RECORDED, ids=lambda path: path.stem)
async def test_an_agents_turn_means_the_same_through_a_target(
    tmp_path: Path, recorded: Path, dialect: str, stream: bool
) -> None:
    turn = json.loads(recorded.read_text())
    body = turn["body"] | {"model": MODEL, "stream": stream}
    if not stream:
        body.pop("stream_options", None)
    service = ScriptedService(script, cards=(CARD,))
    async with serving(service) as target:
        async with target.http() as client:
            direct = await client.post(turn["path"], json=body)
        url = target.url + ("/v1" if dialect == "openai" else "")
        capabilities = ["chat", "tools", "schema", "reasoning"]
        table = upstream_table(url, dialect) | {"models": {MODEL: {"capabilities": capabilities}}}
        async with fronting(front(tmp_path, {"t": table}, UPSTREAM_KEY=TARGET_KEY)) as client:
            through: httpx2.Response = await client.post(turn["path"], json=body)
    assert direct.status_code == through.status_code == 200, through.text
    first, second = service.requests
    wanted = meaning(first)
    if dialect == "anthropic" and wanted["max_tokens"] is None:
        wanted["max_tokens"] = OUTPUT_TOKENS_DEFAULT  # the dialect requires a limit
    assert meaning(second) == wanted
    expected, found = normal(direct.text), normal(through.text)
    if "claude" not in recorded.stem and dialect == "anthropic":
        # A Messages target is asked without thinking, so it shows none.
        expected, found = without_reasoning(expected), without_reasoning(found)
    assert found == expected


def without_reasoning(answer: Any) -> Any:
    """A normal answer as it is when nothing reasoned. The script reasons once and first, so places move by one.

    Calls' arguments of a whole answer are compared by value: Messages has them as objects, not as they were written.
    """
    bodies = [answer] if isinstance(answer, dict) else answer[:-1]
    shift = int('"rs_' in json.dumps(answer))
    kept = [_unreasoned(body, shift) for body in bodies if not _is_reasoning(body)]
    for number, body in enumerate(kept):
        if "sequence_number" in body:
            body["sequence_number"] = number
    return kept if isinstance(answer, dict) else [*kept, answer[-1]]


def _is_reasoning(event: dict[str, Any]) -> bool:
    """Whether an event of a stream says nothing but reasoning."""
    item = event.get("item", {}).get("id", "") or event.get("item_id", "")
    deltas = [choice.get("delta", {}) for choice in event.get("choices") or ()]
    return item.startswith("rs_") or any(delta.keys() == {"reasoning_content"} for delta in deltas)


def _unreasoned(body: dict[str, Any], shift: int) -> dict[str, Any]:
    for choice in body.get("choices") or ():
        message = choice.get("message", {})
        message.pop("reasoning_content", None)
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    for holder in (body, body.get("response", {})):
        if "output" in holder:
            holder["output"] = [_moved(item, shift) for item in holder["output"] if item["type"] != "reasoning"]
    if "output_index" in body:
        body["output_index"] -= shift
    return _moved(body, shift) | ({"item": _moved(body["item"], shift)} if "item" in body else {})


def _moved(item: dict[str, Any], shift: int) -> dict[str, Any]:
    """An item, or what points at one: its id ends with its place."""
    moved = dict(item)
    for name in ("id", "item_id"):
        if place := re.search(r"(?<=_)\d+$", item.get(name, "")):
            moved[name] = f"{item[name][: place.start()]}{int(place[0]) - shift}"
    if moved.get("type") == "function_call" and moved.get("arguments"):
        moved["arguments"] = json.loads(moved["arguments"])
    return moved

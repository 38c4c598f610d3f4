"""Every order of roles on both models: taken, with nothing lost, or refused with the template's reason."""

from __future__ import annotations

from typing import Any

import pytest

from acceptance.cluster import GEMMA, SMOL
from tests.e2e.dialects.places import CHAT, Place
from tests.e2e.dialects.reading import MESSAGES, assert_refused, strict_json

pytestmark = pytest.mark.slow

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "the evening sky"}'}}
WORDS = {
    "user": "Tell me about the sea and the land.",
    "system": "Answer like a sailor would.",
    "assistant": "The sea is wide.",
    "tool": "it is blue today",
}
ORDERS: dict[str, list[dict[str, Any]]] = {
    name: [{"role": role, "content": WORDS[role]} for role in name.split()]
    for name in (
        "user user",
        "system user",
        "system",
        "user system user",
        "assistant user",
        "user assistant assistant user",
    )
} | {
    "a call and its result": [
        {"role": "user", "content": WORDS["user"]},
        {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": WORDS["tool"]},
    ],
    "a beginning to be continued": [
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": "The capital of France is"},
    ],
    "a call as the last message": [
        {"role": "user", "content": WORDS["user"]},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
    ],
}


def ask(place: Place, model: str, messages: list[dict[str, Any]]) -> Any:
    return place.post(CHAT, {"model": model, "messages": messages, "max_tokens": 1, "temperature": 0})


def hollow(message: dict[str, Any]) -> dict[str, Any]:
    """The message with next to nothing in it."""
    calls = [{**call, "function": {**call["function"], "arguments": "{}"}} for call in message.get("tool_calls", ())]
    return {**message, "content": "x", **({"tool_calls": calls} if calls else {})}


@pytest.mark.parametrize("name", ORDERS)
def test_an_order_has_one_status_on_every_node_and_loses_nothing(two_nodes, model: str, name: str) -> None:
    entry, worker = two_nodes
    counted = []
    for node in (entry, worker):
        place = Place(node, worker)
        reply = ask(place, model, ORDERS[name])
        if reply.status_code != 200:
            counted.append(assert_refused(CHAT, reply, 400, "messages"))
            continue
        whole = strict_json(reply.content)["usage"]["prompt_tokens"]
        counted.append(whole)
        for emptied in range(len(ORDERS[name])):
            less = [hollow(message) if at == emptied else message for at, message in enumerate(ORDERS[name])]
            shorter = ask(place, model, less)
            assert shorter.status_code == 200, shorter.text
            assert strict_json(shorter.content)["usage"]["prompt_tokens"] < whole, (name, emptied)
    assert counted[0] == counted[1], counted
    Place(entry, worker).assert_alive()


def test_gemma_says_why_it_refuses(place: Place) -> None:
    assert "in turn" in assert_refused(CHAT, ask(place, GEMMA, ORDERS["assistant user"]), 400, "messages")
    assert "user message" in assert_refused(CHAT, ask(place, GEMMA, ORDERS["system"]), 400, "messages")


def test_a_beginning_is_continued_and_not_answered(place: Place) -> None:
    body = {"model": SMOL, "messages": ORDERS["a beginning to be continued"], "max_tokens": 8, "temperature": 0}
    said = strict_json(place.post(CHAT, body).content)["choices"][0]["message"]["content"]
    assert said.strip().startswith("Paris"), said
    with_turn = strict_json(place.post(CHAT, {**body, "continue_final_message": False}).content)
    without = strict_json(place.post(CHAT, body).content)
    assert without["usage"]["prompt_tokens"] < with_turn["usage"]["prompt_tokens"]


def test_the_same_orders_in_the_other_dialect(two_nodes, model: str) -> None:
    entry, worker = two_nodes
    for name in ("user user", "user system user", "assistant user", "user assistant assistant user"):
        for system in ("", WORDS["system"]):
            statuses = set()
            for node in (entry, worker):
                body = {
                    "model": model,
                    "messages": ORDERS[name],
                    "max_tokens": 1,
                    **({"system": system} if system else {}),
                }
                reply = Place(node, worker).post(MESSAGES, body)
                statuses.add(reply.status_code)
                if reply.status_code != 200:
                    assert_refused(MESSAGES, reply, 400, "messages")
            assert len(statuses) == 1, (name, system, statuses)

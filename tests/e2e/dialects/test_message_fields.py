"""Absent, null, empty and odd messages on real nodes: the client's mistakes never become server faults."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.dialects.places import CHAT, Place
from tests.e2e.dialects.reading import MESSAGES, assert_refused

pytestmark = pytest.mark.slow

ABSENT = object()
REFUSED: dict[str, Any] = {
    "absent": ABSENT,
    "empty": [],
    "a string": "hi",
    "no content": [{"role": "user"}],
    "null content": [{"role": "user", "content": None}],
    "unknown role": [{"role": "wizard", "content": "x"}],
}
EITHER_WAY: dict[str, Any] = {
    "empty text": [{"role": "user", "content": ""}],
    "no parts": [{"role": "user", "content": []}],
}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sky"}'}}
CALLED = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "blue"},
]


def body(model: str, messages: Any, *, stream: bool) -> dict[str, Any]:
    made = {"model": model, "max_tokens": 2, "stream": stream}
    return made if messages is ABSENT else {**made, "messages": messages}


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_broken_messages_are_refused_by_name(place: Place, model: str, path: str) -> None:
    for name, messages in REFUSED.items():
        for stream in (False, True):
            message = assert_refused(path, place.post(path, body(model, messages, stream=stream)), 400, "messages")
            assert message, name
    place.assert_alive()


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_empty_content_has_one_answer_streamed_or_not(two_nodes, path: str) -> None:
    entry, worker = two_nodes
    for name, messages in EITHER_WAY.items():
        statuses = {
            Place(node, worker).post(path, body(model, messages, stream=stream)).status_code
            for node in (entry, worker)
            for model in ("smollm2-135m", "gemma-3-270m")
            for stream in (False, True)
        }
        assert statuses in ({200}, {400}), (name, statuses)


def test_a_call_without_content_and_its_result_are_taken(place: Place) -> None:
    for stream in (False, True):
        reply = place.post(CHAT, body("smollm2-135m", CALLED, stream=stream))
        assert reply.status_code == 200, reply.text
    place.assert_alive()

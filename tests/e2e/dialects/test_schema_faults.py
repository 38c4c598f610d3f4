"""A schema that cannot be enforced is refused by name; one that is taken holds, at temperature 1, every time."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from tests.e2e.dialects.places import CHAT, Place
from tests.e2e.dialects.reading import assert_refused, strict_json

pytestmark = pytest.mark.slow

RUNS = 10
REMOTE = "REMOTE"


def text_of(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"type": "string", **keywords}}, "required": ["a"]}


SCHEMAS: dict[str, dict[str, Any]] = {
    "a bad escape": text_of(pattern="^\\q$"),
    "a lookbehind": text_of(pattern="(?<=a)b"),
    "a back-reference": text_of(pattern="^(a|b)\\1$"),
    "a property of Unicode": text_of(pattern="^\\p{L}{1,3}$"),
    "a reference to nothing": {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}, "required": ["a"]},
    "a reference to another host": {"type": "object", "properties": {"a": {"$ref": REMOTE}}, "required": ["a"]},
    "a type that is none": {"type": "strnig"},
    "pattern properties": {
        "type": "object",
        "patternProperties": {"^n": {"type": "integer", "minimum": 1, "maximum": 9}},
        "additionalProperties": False,
    },
    "if and then": {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["a"],
        "if": {"properties": {"a": {"const": 1}}},
        "then": {"required": ["b"]},
        "additionalProperties": {"type": "boolean"},
    },
    "not": {"type": "string", "maxLength": 3, "not": {"const": "abc"}},
}


class Listener:
    """Counts who connects."""

    def __init__(self) -> None:
        self.connections = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/s.json"
        threading.Thread(target=self._count, daemon=True).start()

    def _count(self) -> None:
        while True:
            try:
                self._socket.accept()[0].close()
            except OSError:
                return
            self.connections += 1

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    made = Listener()
    try:
        yield made
    finally:
        made.close()


def as_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}


def as_tool(schema: dict[str, Any]) -> dict[str, Any]:
    function = {"name": "fill", "description": "Fill in.", "parameters": schema}
    choice = {"type": "function", "function": {"name": "fill"}}
    return {"tools": [{"type": "function", "function": function}], "tool_choice": choice}


def ask(place: Place, model: str, extra: dict[str, Any]) -> Any:
    question = [{"role": "user", "content": "Make one up."}]
    body = {"model": model, "messages": question, "temperature": 1, "max_tokens": 60, "n": RUNS, **extra}
    return place.post(CHAT, body)


@pytest.mark.parametrize("form", [as_format, as_tool], ids=["format", "tool"])
@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_enforced_or_refused(place: Place, model: str, listener: Listener, name: str, form: Any) -> None:
    schema = json.loads(json.dumps(SCHEMAS[name]).replace(REMOTE, listener.url))
    reply = ask(place, model, form(schema))
    if reply.status_code == 400:
        assert_refused(CHAT, reply, 400, "response_format" if form is as_format else "tools")
    else:
        assert reply.status_code == 200, reply.text
        for choice in strict_json(reply.content)["choices"]:
            check(choice, schema, form)
    assert listener.connections == 0
    place.assert_alive()


def check(choice: dict[str, Any], schema: dict[str, Any], form: Any) -> None:
    """A finished output validates; a call is always JSON, and its finish reason says when it was cut."""
    # The validator's patterns are Python's, which writes a letter in another way.
    schema = json.loads(json.dumps(schema).replace(r"\\p{L}", r"[^\\W\\d_]"))
    if form is as_tool and choice["finish_reason"] == "tool_calls":
        assert choice["message"]["tool_calls"]
        for call in choice["message"]["tool_calls"]:  # parallel calls are allowed unless the request says no
            jsonschema.Draft202012Validator(schema).validate(json.loads(call["function"]["arguments"]))
    elif form is as_format and choice["finish_reason"] == "stop":
        jsonschema.Draft202012Validator(schema).validate(json.loads(choice["message"]["content"]))
    else:
        assert choice["finish_reason"] == "length", choice


@pytest.mark.parametrize(
    "given", [{"type": "json_schema"}, {"type": "xml"}, {"type": "json_schema", "json_schema": {}}]
)
def test_a_format_without_a_schema_is_refused(place: Place, model: str, given: dict[str, Any]) -> None:
    assert_refused(CHAT, ask(place, model, {"response_format": given}), 400, "response_format")


def test_json_object_is_an_object(place: Place, model: str) -> None:
    reply = ask(place, model, {"response_format": {"type": "json_object"}})
    assert reply.status_code == 200, reply.text
    for choice in strict_json(reply.content)["choices"]:
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["message"]["content"]), dict)
        else:
            assert choice["finish_reason"] == "length"

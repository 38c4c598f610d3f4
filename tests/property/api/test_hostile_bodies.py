"""No body, however odd, makes a server fault, an undeclared status, or an error that is not the dialect's own."""

from __future__ import annotations

import json

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from saiserve.api.context import Api
from saiserve.api.errors import ErrorStyle, error_style
from saiserve.api.openapi import BODIES, document
from saiserve.app import create_app
from saiserve.auth import Auth, ClientKey
from tests.fakes.service import ScriptedService

GOOD = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"prompt": "x"},
    "/embedding": {"content": "x"},
    "/v1/embeddings": {"input": "x"},
    "/v1/responses": {"input": [{"type": "message", "role": "user", "content": "x"}]},
    "/v1/responses/input_tokens": {"input": "x"},
    "/v1/messages": {"max_tokens": 5, "messages": [{"role": "user", "content": "x"}]},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/rerank": {"query": "x", "documents": ["y"]},
    "/v1/chat/completions/input_tokens": {"messages": [{"role": "user", "content": "x"}]},
    "/completion": {"prompt": "x"},
    "/infill": {"input_prefix": "x", "input_suffix": "y"},
    "/tokenize": {"content": "x"},
    "/detokenize": {"tokens": [1]},
    "/apply-template": {"messages": [{"role": "user", "content": "x"}]},
}
ERROR_FIELDS = {
    ErrorStyle.OPENAI: {"message", "type", "param", "code"},
    ErrorStyle.ANTHROPIC: {"type", "message"},
    ErrorStyle.LLAMA: {"code", "message", "type"},  # and `param` where a field is at fault
}
WORDS = ["type", "text", "role", "content", "name", "function", "tool_use", "user", "assistant", "tool", "input", "id"]
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(WORDS)
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=8,
)


APP = create_app(Api(ScriptedService()), Auth([ClientKey("t", b"key-of-the-test")]))


def ask(path: str, body: bytes) -> tuple[int, bytes]:
    sent: list[dict] = []

    async def main() -> None:
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive():
            if messages:
                return messages.pop()
            return await trio.sleep_forever()

        async def send(message):
            sent.append(message)

        headers = [(b"x-api-key", b"key-of-the-test"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
        await APP(scope, receive, send)

    trio.run(main)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def fields(path: str) -> list[str]:
    schemas = document()["components"]["schemas"]
    reference = document()["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    return list(schemas[reference.rpartition("/")[2]]["properties"])


@pytest.mark.parametrize("path", list(BODIES))
@settings(max_examples=40)
@given(data=st.data())
def test_a_wild_value_in_any_field_is_answered_or_refused(path, data):
    changes = data.draw(st.dictionaries(st.sampled_from(fields(path)), JSON, min_size=1, max_size=3))
    changes.pop("model", None)
    body = json.dumps({"model": "smol", **GOOD[path], **changes}).encode("utf-8", "surrogatepass")
    status, reply = ask(path, body)
    declared = document()["paths"][path]["post"]["responses"]
    assert str(status) in declared
    assert status < 500 or (status, path) == (501, "/infill"), reply
    if status != 200:
        parsed = json.loads(reply.decode("utf-8", "strict"))
        style = error_style(path)
        optional = {"param"} if style is ErrorStyle.LLAMA else set()
        assert set(parsed["error"]) - optional == ERROR_FIELDS[style]
        assert parsed["error"]["message"]


@given(st.sampled_from(list(BODIES)), st.binary(max_size=60))
def test_any_bytes_are_answered_or_refused(path, body):
    status, reply = ask(path, body)
    assert status in {200, 400}
    json.loads(reply.decode("utf-8", "strict"))

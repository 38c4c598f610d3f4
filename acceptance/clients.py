"""The official OpenAI client, unmodified, against a real node."""

from __future__ import annotations

from typing import Any

import openai
import trio

from acceptance.check import Check, Scale
from acceptance.cluster import SMOL
from acceptance.nodes import API_KEY, Node, fleet


def _talk(url: str) -> str:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=API_KEY, max_retries=0, timeout=120)
    question: Any = [{"role": "user", "content": "What is the capital of France?"}]
    chat = client.chat.completions.create(model=SMOL, messages=question, max_tokens=24, temperature=0)
    assert chat.choices[0].message.content
    assert chat.usage is not None
    assert chat.usage.completion_tokens <= 24
    assert chat.usage.total_tokens == chat.usage.prompt_tokens + chat.usage.completion_tokens
    pieces, usage = [], None
    for chunk in client.chat.completions.create(
        model=SMOL, messages=question, max_tokens=24, temperature=0, stream=True, stream_options={"include_usage": True}
    ):
        pieces += [choice.delta.content or "" for choice in chunk.choices]
        usage = chunk.usage or usage
    assert "".join(pieces) == chat.choices[0].message.content
    assert usage is not None
    assert usage.completion_tokens == chat.usage.completion_tokens
    completion = client.completions.create(model=SMOL, prompt="Once upon a time", max_tokens=16, temperature=0)
    assert completion.choices[0].text
    models = [model.id for model in client.models.list()]
    assert SMOL in models
    assert client.models.retrieve(SMOL).id == SMOL
    try:
        client.models.retrieve("no-such-model")
    except openai.NotFoundError as error:
        assert error.code == "model_not_found"  # noqa: PT017
    else:
        raise AssertionError("an unknown model was found")
    return f"{chat.choices[0].message.content!r}, streamed alike; completion {completion.choices[0].text[:40]!r}; models {models}"


async def _openai(scale: Scale) -> str:
    async with fleet() as group:
        node: Node = await group.start_ready("node-a", SMOL, seeds="")
        return await trio.to_thread.run_sync(_talk, node.url)


CHECKS = (
    Check("openai-client", "the official OpenAI client completes a chat, a stream with usage, a completion, a listing", _openai),
)  # fmt: skip

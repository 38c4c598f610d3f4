"""Both official clients, blocking and asynchronous, over every route they know: one table, both ways, equal answers."""

from __future__ import annotations

import asyncio
import base64
import inspect
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.api.serving import KEY, Served, served_elsewhere
from tests.fakes.service import ScriptedService, saying

HI = [{"role": "user", "content": "hi"}]
Ask = Callable[[Any], Any]
"""Takes a client, returns what it gives: a value or, from an asynchronous one, an awaitable of it."""

OPENAI: dict[str, tuple[Ask, Callable[[Any], Any], Any]] = {
    "chat": (
        lambda ai: ai.chat.completions.create(model="smol", messages=HI),
        lambda reply: (reply.choices[0].message.content, reply.choices[0].finish_reason, reply.usage.total_tokens),
        ("Hello there.", "stop", 12),
    ),
    "chat streamed": (
        lambda ai: ai.chat.completions.create(
            model="smol", messages=HI, stream=True, stream_options={"include_usage": True}
        ),
        lambda chunks: (
            "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
            chunks[-1].usage.total_tokens,
        ),
        ("Hello there.", 12),
    ),
    "completion": (
        lambda ai: ai.completions.create(model="smol", prompt="hi", n=2),
        lambda reply: ([choice.text for choice in reply.choices], reply.usage.completion_tokens),
        (["Hello there."] * 2, 10),
    ),
    "completion of several prompts": (
        lambda ai: ai.completions.create(model="smol", prompt=["a", "b"], n=2, echo=True),
        lambda reply: (
            [(choice.index, choice.text) for choice in reply.choices],
            reply.usage.prompt_tokens,
        ),
        ([(0, "aHello there."), (1, "aHello there."), (2, "bHello there."), (3, "bHello there.")], 14),
    ),
    "completion streamed": (
        lambda ai: ai.completions.create(model="smol", prompt=["a", "b"], stream=True),
        lambda chunks: [
            "".join(c.text for chunk in chunks for c in chunk.choices if c.index == place) for place in range(2)
        ],
        ["Hello there."] * 2,
    ),
    "embeddings": (
        lambda ai: ai.embeddings.create(model="smol", input=["abc", "de"]),
        lambda reply: (
            len(reply.data),
            round(sum(x * x for x in reply.data[0].embedding), 5),
            reply.usage.prompt_tokens,
        ),
        (2, 1.0, 5),
    ),
    "embeddings in base64": (
        lambda ai: ai.embeddings.create(model="smol", input="abc", encoding_format="base64"),
        lambda reply: len(struct.unpack("<3f", base64.b64decode(reply.data[0].embedding))),
        3,
    ),
    "models": (lambda ai: ai.models.list(), lambda page: [model.id for model in page.data], ["smol", "org/name"]),
    "model": (lambda ai: ai.models.retrieve("org/name"), lambda model: model.id, "org/name"),
    "response": (
        lambda ai: ai.responses.create(model="smol", input="hi"),
        lambda reply: (reply.output_text, reply.status, reply.usage.total_tokens),
        ("Hello there.", "completed", 12),
    ),
    "response streamed": (
        lambda ai: ai.responses.create(model="smol", input="hi", stream=True),
        lambda events: (events[0].type, events[-1].type, events[-1].response.output_text),
        ("response.created", "response.completed", "Hello there."),
    ),
    "response input tokens": (
        lambda ai: ai.responses.input_tokens.count(model="smol", input="hi"),
        lambda reply: reply.input_tokens,
        len("<user>hi"),
    ),
}

ANTHROPIC: dict[str, tuple[Ask, Callable[[Any], Any], Any]] = {
    "message": (
        lambda ai: ai.messages.create(model="smol", max_tokens=9, messages=HI),
        lambda reply: (reply.content[0].text, reply.stop_reason, reply.usage.input_tokens),
        ("Hello there.", "end_turn", 4),
    ),
    "message streamed": (
        lambda ai: ai.messages.create(model="smol", max_tokens=9, messages=HI, stream=True),
        lambda events: (
            events[0].type,
            "".join(event.delta.text for event in events if event.type == "content_block_delta"),
            events[-1].type,
        ),
        ("message_start", "Hello there.", "message_stop"),
    ),
    "tokens": (
        lambda ai: ai.messages.count_tokens(model="smol", messages=HI),
        lambda reply: reply.input_tokens,
        len("<user>hi"),
    ),
    "models": (lambda ai: ai.models.list(), lambda page: [model.id for model in page.data], ["smol", "org/name"]),
    "model": (lambda ai: ai.models.retrieve("org/name"), lambda model: model.display_name, "org/name"),
}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with served_elsewhere(ScriptedService(script=saying("Hello there."))) as running:
        yield running


def openai_options(served: Served) -> dict[str, Any]:
    return {"base_url": f"{served.url}/v1", "api_key": KEY, "max_retries": 0}


def anthropic_options(served: Served) -> dict[str, Any]:
    return {"base_url": served.url, "api_key": KEY, "max_retries": 0}


def taken(given: Any) -> Any:
    """Return a stream's events as a list, anything else as it is."""
    return list(given) if isinstance(given, (openai.Stream, anthropic.Stream)) else given


async def taken_later(given: Awaitable[Any] | AsyncIterator[Any]) -> Any:
    """As `taken`, for what an asynchronous client gives."""
    value = await given if inspect.isawaitable(given) else given
    if isinstance(value, (openai.AsyncStream, anthropic.AsyncStream)):
        return [event async for event in value]
    return value


@pytest.mark.parametrize("route", list(OPENAI))
def test_the_openai_clients_understand_a_route_alike(served: Served, route: str) -> None:
    ask, seen, expected = OPENAI[route]
    with openai.OpenAI(**openai_options(served)) as ai:
        assert seen(taken(ask(ai))) == expected

    async def later() -> Any:
        async with openai.AsyncOpenAI(**openai_options(served)) as ai:
            return await taken_later(ask(ai))

    assert seen(asyncio.run(later())) == expected


@pytest.mark.parametrize("route", list(ANTHROPIC))
def test_the_anthropic_clients_understand_a_route_alike(served: Served, route: str) -> None:
    ask, seen, expected = ANTHROPIC[route]
    with anthropic.Anthropic(**anthropic_options(served)) as ai:
        assert seen(taken(ask(ai))) == expected

    async def later() -> Any:
        async with anthropic.AsyncAnthropic(**anthropic_options(served)) as ai:
            return await taken_later(ask(ai))

    assert seen(asyncio.run(later())) == expected


def test_a_kept_response_is_read_continued_and_deleted_by_both_openai_clients(served: Served) -> None:
    with openai.OpenAI(**openai_options(served)) as ai:
        first = ai.responses.create(model="smol", input="hi")
        assert ai.responses.retrieve(first.id).output_text == "Hello there."
        assert [item.type for item in ai.responses.input_items.list(first.id).data] == ["message"]
        with pytest.raises(openai.BadRequestError):
            ai.responses.cancel(first.id)

    async def later() -> None:
        async with openai.AsyncOpenAI(**openai_options(served)) as ai:
            second = await ai.responses.create(model="smol", input="more", previous_response_id=first.id)
            assert second.previous_response_id == first.id
            await ai.responses.delete(first.id)
            with pytest.raises(openai.NotFoundError):
                await ai.responses.retrieve(first.id)
            with pytest.raises(openai.NotFoundError) as refused:
                await ai.responses.create(model="smol", input="more", previous_response_id=first.id)
            assert refused.value.param == "previous_response_id"

    asyncio.run(later())


def test_stream_helpers_of_all_four_clients_rebuild_the_answer(served: Served) -> None:
    texts: list[str | None] = []
    with openai.OpenAI(**openai_options(served)) as ai:
        with ai.chat.completions.stream(model="smol", messages=HI) as chat:
            texts.append(chat.get_final_completion().choices[0].message.content)
        with ai.responses.stream(model="smol", input="hi") as response:
            texts.append(response.get_final_response().output_text)
    with anthropic.Anthropic(**anthropic_options(served)) as ai:
        with ai.messages.stream(model="smol", max_tokens=9, messages=HI) as message:
            texts.append(message.get_final_text())

    async def later() -> None:
        async with openai.AsyncOpenAI(**openai_options(served)) as ai:
            async with ai.chat.completions.stream(model="smol", messages=HI) as chat:
                texts.append((await chat.get_final_completion()).choices[0].message.content)
            async with ai.responses.stream(model="smol", input="hi") as response:
                texts.append((await response.get_final_response()).output_text)
        async with anthropic.AsyncAnthropic(**anthropic_options(served)) as ai:
            async with ai.messages.stream(model="smol", max_tokens=9, messages=HI) as message:
                texts.append(await message.get_final_text())

    asyncio.run(later())
    assert texts == ["Hello there."] * 6

"""`/v1/completions` at targets: the client's own body, one prompt at a time, and what a target without the route means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.upstream import (
    MODEL,
    Playback,
    PlaybackUpstream,
    chat_stream,
    front,
    fronting,
    split,
    upstream_table,
    usage,
)

JSON = (("content-type", "application/json"),)
LOGPROBS = {"tokens": ["Hi"], "token_logprobs": [-0.5], "top_logprobs": [{"Hi": -0.5, "Ho": -2.0}], "text_offset": [0]}


def piece(text: str, finish: str | None = None, logprobs: Any = None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "finish_reason": finish, "logprobs": logprobs}
    return {"object": "text_completion", "choices": [choice]}


STREAM = chat_stream(piece("Hi", logprobs=LOGPROBS), piece(" there"), piece("", "length"), usage(3, 2))
WHOLE = json.dumps(
    {"id": "c", "created": 1, "model": "real", **piece("Hi", "stop", LOGPROBS), "usage": {"prompt_tokens": 3}}
).encode()


def target(url: str, dialect: str = "openai") -> dict[str, Any]:
    return upstream_table(f"{url}/v1", dialect)


def asking(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "Once", "max_tokens": 8, **more}


@pytest.mark.parametrize("every", [1, 9, 10_000])
async def test_a_stream_is_relayed_byte_for_byte(tmp_path: Path, every: int) -> None:
    async with PlaybackUpstream([Playback(split(STREAM, every))]).running() as up:
        async with fronting(front(tmp_path, {"t": target(up.url)})) as client:
            body = asking(stream=True, stream_options={"include_usage": True}, an_unknown_field=1)
            answer = await client.post("/v1/completions", json=body)
    assert answer.content == STREAM
    assert up.heard[0].path == "/v1/completions"
    assert up.heard[0].json == body


async def test_usage_nobody_asked_for_is_counted_and_left_out(tmp_path: Path) -> None:
    async with PlaybackUpstream([Playback([STREAM])]).running() as up:
        async with fronting(front(tmp_path, {"t": target(up.url)})) as client:
            answer = await client.post("/v1/completions", json=asking(stream=True))
            metrics = (await client.get("/metrics")).text
    assert answer.content == STREAM.replace(
        next(line for line in STREAM.split(b"\n\n") if b'"usage"' in line) + b"\n\n", b""
    )
    assert f'saiserve_completion_tokens_total{{model="{MODEL}"}} 2.0' in metrics


@pytest.mark.parametrize(
    "more", [{}, {"echo": True, "logprobs": 1}, {"suffix": "The end."}, {"prompt": [1, 2, 3]}, {"prompt": ["Once"]}]
)
async def test_a_whole_answer_is_relayed_and_the_target_echoes_and_fills_in(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    async with PlaybackUpstream([Playback([WHOLE], headers=JSON)]).running() as up:
        async with fronting(front(tmp_path, {"t": target(up.url)})) as client:
            answer = await client.post("/v1/completions", json=asking(**more))
    assert answer.content == WHOLE, answer.text
    assert up.heard[0].json == asking(**more)


async def test_several_prompts_are_asked_one_by_one(tmp_path: Path) -> None:
    async with PlaybackUpstream([Playback([WHOLE], headers=JSON)]).running() as up:
        async with fronting(front(tmp_path, {"t": target(up.url)})) as client:
            answer = await client.post("/v1/completions", json=asking(prompt=["a", [7, 8]], logprobs=2, seed=3))
    assert sorted(str(heard.json["prompt"]) for heard in up.heard) == ["[7, 8]", "a"]
    choices = answer.json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    assert [choice["text"] for choice in choices] == ["Hi", "Hi"]
    assert choices[1]["logprobs"]["top_logprobs"] == [{"Hi": -0.5, "Ho": -2.0}]
    assert answer.json()["usage"]["prompt_tokens"] == 6


async def test_several_choices_have_seeds_of_their_own(tmp_path: Path) -> None:
    async with PlaybackUpstream([Playback([STREAM])]).running() as up:
        async with fronting(front(tmp_path, {"t": target(up.url)})) as client:
            answer = await client.post("/v1/completions", json=asking(n=2, seed=5, stream=True))
    chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    finishes = [c["choices"][0] for c in chunks if c["choices"] and c["choices"][0]["finish_reason"]]
    assert {(c["index"], c["finish_reason"]) for c in finishes} == {(0, "length"), (1, "length")}
    assert sorted(heard.json["seed"] for heard in up.heard) == [5, 6]
    assert all("n" not in heard.json for heard in up.heard)


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_a_target_without_the_route_is_400_and_stays_in_use(tmp_path: Path, status: int) -> None:
    async with PlaybackUpstream([Playback([b"{}"], status, JSON)]).running() as up:
        async with fronting(front(tmp_path, {"t": target(up.url)})) as client:
            for _ in range(4):
                answer = await client.post("/v1/completions", json=asking())
                assert answer.status_code == 400, answer.text
            metrics = (await client.get("/metrics")).text
    assert "use /v1/chat/completions" in answer.json()["error"]["message"]
    assert 'saiserve_upstream_resting{upstream="t"} 0.0' in metrics


async def test_another_target_that_has_the_route_answers(tmp_path: Path) -> None:
    without, having = PlaybackUpstream([Playback([b"{}"], 404, JSON)]), PlaybackUpstream([Playback([STREAM])])
    async with without.running(), having.running():
        tables = {"a": target(without.url), "b": target(having.url)}
        async with fronting(front(tmp_path, tables)) as client:
            answers = [await client.post("/v1/completions", json=asking(stream=True)) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200] * 4


async def test_an_anthropic_target_has_no_plain_completions(tmp_path: Path) -> None:
    async with PlaybackUpstream([Playback([STREAM])]).running() as up:
        async with fronting(front(tmp_path, {"t": target(up.url, "anthropic")})) as client:
            answer = await client.post("/v1/completions", json=asking())
    assert answer.status_code == 400
    assert not up.heard


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"model": MODEL, "content": "a"}),
        ("/detokenize", {"model": MODEL, "tokens": [1]}),
        ("/apply-template", {"model": MODEL, "messages": [{"role": "user", "content": "a"}]}),
        ("/v1/completions", asking(prompt=[1, "two"])),
    ],
)
async def test_what_only_the_target_knows_is_refused_and_not_made_up(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    async with PlaybackUpstream([Playback([WHOLE], headers=JSON)]).running() as up:
        async with fronting(front(tmp_path, {"t": target(up.url)})) as client:
            answer = await client.post(path, json=body)
    assert answer.status_code == 501, answer.text

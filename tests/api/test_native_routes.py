"""llama-server's native completions, its extras on the OpenAI routes, and its error object on its own routes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from saiserve.chat.events import ChoiceFinished, PromptProgress, Started, StopKind, TextDelta, Usage
from saiserve.engines.messages import TokenLogprob
from saiserve.errors import ApiError, ErrorKind
from tests.api.serving import served_elsewhere, serving
from tests.fakes.service import ScriptedService
from tests.property.api.events import server_sent

TIMED = Usage(7, 3, 3, prompt_s=0.5, decode_s=1.0)


def said(request: Any) -> list[Any]:
    entry = TokenLogprob(5, b"one", -0.5, ((5, b"one", -0.5),))
    progress = [PromptProgress(3, 7, 3), PromptProgress(7, 7, 3)] if request.progress else []
    return [
        Started(7, 3),
        *progress,
        TextDelta(0, "one", (entry,) if request.sampling.logprobs else None, tokens=(5,)),
        TextDelta(0, " two\n", tokens=(6, 7)),
        ChoiceFinished(0, StopKind.LENGTH),
        TIMED,
    ]


async def ask(path: str, body: dict[str, Any], script: Any = said) -> Any:
    async with serving(ScriptedService(script=script)) as served, served.http() as http:
        return await http.post(path, json={"model": "smol", **body})


async def test_a_native_completion_says_all_llama_server_says() -> None:
    reply = (await ask("/completion", {"prompt": "hi", "n_predict": 3, "return_tokens": True, "seed": 9})).json()
    assert reply["content"] == "one two\n"
    assert reply["tokens"] == [5, 6, 7]
    assert (reply["stop"], reply["stop_type"], reply["truncated"]) == (True, "limit", False)
    assert (reply["tokens_predicted"], reply["tokens_evaluated"], reply["has_new_line"]) == (3, 7, True)
    assert reply["prompt"] == "hi"
    assert reply["generation_settings"]["n_predict"] == 3
    assert reply["generation_settings"]["seed"] == 9
    timings = reply["timings"]
    assert (timings["prompt_n"], timings["cache_n"], timings["predicted_n"]) == (4, 3, 3)
    assert timings["predicted_per_second"] == 2.0, "the first token takes no step"


async def test_a_streamed_native_completion_ends_with_its_counts_and_without_done() -> None:
    body = {"prompt": "hi", "stream": True, "n_probs": 1, "return_progress": True, "timings_per_token": True}
    events = [json.loads(data) for _, data in server_sent((await ask("/completions", body)).content)]
    progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert [(item["processed"], item["total"], item["cache"]) for item in progress] == [(3, 7, 3), (7, 7, 3)]
    partial = [event for event in events if not event["stop"] and "prompt_progress" not in event]
    assert "".join(event["content"] for event in partial) == "one two\n"
    assert [event["tokens"] for event in partial] == [[5], [6, 7]]
    assert partial[0]["completion_probabilities"][0]["top_logprobs"][0]["id"] == 5
    assert [event["timings"]["predicted_n"] for event in partial] == [1, 3]
    assert [event["stop"] for event in events].index(True) == len(events) - 1
    assert events[-1]["timings"]["predicted_n"] == 3


async def test_prompts_of_every_form_are_taken_and_a_list_is_answered_with_a_list() -> None:
    forms: list[Any] = ["hi", [104, 105], [104, "i"], {"prompt_string": "hi"}]
    for form in forms:
        assert (await ask("/completion", {"prompt": form})).json()["prompt"] == "hi"
    reply = (await ask("/completion", {"prompt": forms})).json()
    assert [item["index"] for item in reply] == [0, 1, 2, 3]
    assert {item["content"] for item in reply} == {"one two\n"}


@pytest.mark.parametrize(
    "prompt",
    ["", [], None, {}, [True], [-1], [2**31], [[]], {"prompt_string": "x", "multimodal_data": ["aa"]}, ["x"] * 65],
)
async def test_wrong_prompts_are_400_in_llama_servers_words(prompt: Any) -> None:
    reply = await ask("/completion", {"prompt": prompt})
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == 400
    assert reply.json()["error"]["type"] == "invalid_request_error"


async def test_texts_are_biased_by_their_tokens_here_and_refused_on_the_public_routes() -> None:
    service = ScriptedService(script=said)
    async with serving(service) as served, served.http() as http:
        for bias in ({"ab": -5}, [["ab", -5]], [[97, -5], ["b", -5.0]], {"97": -5, "b": -5}):
            reply = await http.post("/completion", json={"model": "smol", "prompt": "x", "logit_bias": bias})
            assert reply.status_code == 200
            assert service.requests[-1].sampling.logit_bias == ((97, -5.0), (98, -5.0))
        public = await http.post("/v1/completions", json={"model": "smol", "prompt": "x", "logit_bias": {"ab": -5}})
        assert public.status_code == 400


async def test_only_the_fields_asked_for_come_back() -> None:
    fields = ["content", "generation_settings/n_predict", "nothing"]
    reply = (await ask("/completion", {"prompt": "hi", "n_predict": 3, "response_fields": fields})).json()
    assert reply == {"content": "one two\n", "generation_settings/n_predict": 3}


async def test_infill_finds_the_models_own_marks_or_says_that_it_has_none() -> None:
    service = ScriptedService(script=said)
    body = {"model": "smol", "input_prefix": "a", "input_suffix": "b"}
    async with serving(service) as served, served.http() as http:
        assert (await http.post("/infill", json=body)).status_code == 501
        known = ScriptedService.count

        async def count(self: ScriptedService, request: Any, **options: Any) -> Any:
            counted = await known(self, request, **options)
            is_mark = (request.prompt_text or "") in ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
            return type(counted)(counted.id, 1, ids=(1,), pieces=(b"",)) if is_mark else counted

        service.count = count.__get__(service)  # type: ignore[method-assign]
        reply = (await http.post("/infill", json={**body, "prompt": "x", "input_extra": [{"text": "c"}]})).json()
        assert reply["prompt"].endswith("c<fim_prefix>ax<fim_suffix>b<fim_middle>")
        suffixed = await http.post("/v1/completions", json={"model": "smol", "prompt": "a", "suffix": "b"})
        assert suffixed.status_code == 200
        assert service.requests[-1].prompt_text == "<fim_prefix>a<fim_suffix>b<fim_middle>"
        bad = await http.post("/infill", json={**body, "input_extra": [{"filename": "x"}]})
        assert bad.status_code == 400


@pytest.mark.parametrize(
    ("kind", "word", "status"),
    [
        (ErrorKind.BUSY, "unavailable_error", 503),
        (ErrorKind.INTERNAL, "server_error", 500),
        (ErrorKind.INVALID_REQUEST, "invalid_request_error", 400),
    ],
)
async def test_faults_on_llama_servers_routes_are_its_own(kind: ErrorKind, word: str, status: int) -> None:
    reply = await ask("/completion", {"prompt": "x"}, lambda _: [ApiError(kind, "no")])
    assert reply.status_code == status
    assert (reply.json()["error"]["code"], reply.json()["error"]["type"]) == (status, word)


async def test_overflow_is_told_with_numbers_on_llama_servers_routes_and_as_the_api_says_on_the_others() -> None:
    def too_long(_: Any) -> list[Any]:
        return [ApiError(ErrorKind.CONTEXT_TOO_LONG, "too long", prompt_tokens=900, context_tokens=256)]

    body = {"messages": [{"role": "user", "content": "x"}]}
    own = (await ask("/chat/completions", body, too_long)).json()["error"]
    assert (own["type"], own["n_prompt_tokens"], own["n_ctx"]) == ("exceed_context_size_error", 900, 256)
    assert "exceeds the available context size" in own["message"]
    public = (await ask("/v1/chat/completions", body, too_long)).json()["error"]
    assert (public["type"], public["code"]) == ("invalid_request_error", "context_length_exceeded")


async def test_chat_carries_timings_progress_and_the_prompt_when_asked() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    whole = (await ask("/v1/chat/completions", {**body, "verbose": True})).json()
    assert whole["timings"]["predicted_n"] == 3
    assert "hi" in whole["__verbose"]["prompt"]
    assert whole["system_fingerprint"]
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}, "return_progress": True}
    raw = (await ask("/v1/chat/completions", {**asked, "timings_per_token": True})).content
    chunks = [json.loads(data) for _, data in server_sent(raw) if data != "[DONE]"]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert [chunk["prompt_progress"]["processed"] for chunk in chunks if "prompt_progress" in chunk] == [3, 7]
    assert chunks[-1]["timings"]["prompt_n"] == 4
    assert sum("timings" in chunk for chunk in chunks) == 5
    both = await ask("/v1/chat/completions", {**body, "add_generation_prompt": True, "continue_final_message": True})
    assert both.status_code == 400


async def test_slots_props_and_native_vectors_have_llama_servers_shapes() -> None:
    async with serving() as served, served.http() as http:
        props = (await http.get("/props")).json()
        assert props["default_generation_settings"]["params"]["temperature"] == 0.8
        assert (await http.get("/slots")).json() == []
        assert (await http.get("/slots?fail_on_no_slot=1")).status_code == 503
        (vector,) = (await http.post("/embedding", json={"model": "smol", "content": "abc"})).json()
        assert vector["index"] == 0
        assert len(vector["embedding"]) == 1
        assert len(vector["embedding"][0]) == 3


def test_a_fault_of_one_prompt_of_several_is_the_requests() -> None:
    def script(request: Any) -> list[Any]:
        if request.prompt_text == "bad":
            return [Started(1, 0), TextDelta(0, "x"), ApiError(ErrorKind.ENGINE_FAILED, "broke")]
        return said(request)

    import httpx2

    with served_elsewhere(ScriptedService(script=script)) as served:
        headers = {"authorization": "Bearer client-key-of-the-tests"}
        with httpx2.Client(base_url=served.url, headers=headers) as http:
            reply = http.post("/v1/completions", json={"model": "smol", "prompt": ["good", "bad"]})
            assert reply.status_code == 500
            streamed = http.post("/v1/completions", json={"model": "smol", "prompt": ["good", "bad"], "stream": True})
            assert "[DONE]" not in streamed.text
            assert '"engine_failed"' in streamed.text


async def test_responses_carry_progress_and_timings_when_asked_and_only_then() -> None:
    body = {"input": "hi", "stream": True}
    plain = [json.loads(data) for _, data in server_sent((await ask("/v1/responses", body)).content)]
    assert not any("timings" in event or "prompt_progress" in event for event in plain)
    asked = {**body, "return_progress": True, "timings_per_token": True}
    events = [json.loads(data) for _, data in server_sent((await ask("/responses", asked)).content)]
    progress = [event for event in events if "prompt_progress" in event]
    assert [event["prompt_progress"]["processed"] for event in progress] == [3, 7]
    assert {event["type"] for event in progress} == {"response.in_progress"}
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert all("timings" in event for event in events if event["type"] == "response.output_text.delta")
    assert events[-1]["timings"]["predicted_n"] == 3

"""`logit_bias` on a real engine: a token that is not there is refused and disturbs nobody; one that is, is obeyed."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import httpx2
import pytest

from acceptance.nodes import API_KEY
from tests.e2e.dialects.places import CHAT, Place
from tests.e2e.dialects.reading import assert_refused, events, strict_json

pytestmark = pytest.mark.slow

ASKED_TOKENS = 200
QUICK_S = 1.0


def body(model: str, **extra: Any) -> dict[str, Any]:
    question = [{"role": "user", "content": "Why is the sky blue?"}]
    return {"model": model, "messages": question, "max_tokens": 4, "temperature": 0, **extra}


def first_tokens(place: Place, model: str, **extra: Any) -> list[tuple[int, str]]:
    reply = place.post(CHAT, body(model, logprobs=True, top_logprobs=1, **extra))
    assert reply.status_code == 200, reply.text
    content = strict_json(reply.content)["choices"][0]["logprobs"]["content"]
    return [(entry["id"], entry["token"]) for entry in content]


def test_a_bias_outside_the_vocabulary_is_refused_and_a_running_stream_goes_on(place: Place, model: str) -> None:
    size = Place(place.worker, place.worker).get(f"/v1/models/{model}")["meta"]["n_vocab"]
    bad = [{"AI": -100}, {str(size): 5}, {"-1": 5}, {"999999999": 5}, {"5": "x"}, {"5": 1e308}, {"5": 101}, [[5, -101]]]
    stream: list[httpx2.Response] = []
    asked = body(model, max_tokens=ASKED_TOKENS, ignore_eos=True, stream=True, stream_options={"include_usage": True})
    other = threading.Thread(target=lambda: stream.append(place.post(CHAT, asked)))
    other.start()
    took = []
    for bias in bad:
        for streamed in (False, True):
            began = time.monotonic()
            reply = place.post(CHAT, body(model, logit_bias=bias, stream=streamed))
            took.append(time.monotonic() - began)
            assert_refused(CHAT, reply, 400, "logit_bias")
    assert sorted(took)[len(took) // 2] < QUICK_S, took
    other.join(120)
    (heard,) = stream
    parts = events(heard)
    assert [c["finish_reason"] for p in parts for c in p["choices"] if c["finish_reason"]] == ["length"]
    assert parts[-1]["usage"]["completion_tokens"] == ASKED_TOKENS
    place.assert_alive()


def test_a_bias_inside_the_vocabulary_is_obeyed(place: Place, model: str) -> None:
    plain = first_tokens(place, model)
    banned = plain[0][0]
    without = first_tokens(place, model, logit_bias={str(banned): -100})
    assert banned not in [token for token, _ in without]
    wanted = next(token for token in range(1000, 1100) if token not in {banned, without[0][0]})
    assert first_tokens(place, model, logit_bias={str(wanted): 100})[0][0] == wanted
    assert first_tokens(place, model, logit_bias=[[wanted, 100]])[0][0] == wanted
    place.assert_alive()


def test_numbers_no_json_reader_takes_are_refused(place: Place, model: str) -> None:
    raw = json.dumps(body(model, logit_bias={"5": float("nan")})).encode()
    headers = {"Authorization": f"Bearer {API_KEY}", "content-type": "application/json"}
    assert_refused(CHAT, place.post(CHAT, raw, headers=headers), 400)

"""SmolLM2 (full attention) and Gemma 3 (sliding window) answer, share prefixes, keep to schemas and stay text-safe."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from saiserve.engines.llamacpp.settings import EngineSettings
from saiserve.engines.llamacpp.supervisor import LlamaEngine, open_engine
from saiserve.engines.messages import (
    Constraint,
    Count,
    Counted,
    Finished,
    FinishReason,
    Prompt,
    RefusalReason,
    Sampling,
    Tokens,
)
from tests.e2e.engine.asking import Heard, ask, request, until
from tests.e2e.engine.conftest import GEMMA_TEMPLATE

pytestmark = pytest.mark.slow

Make = Callable[..., EngineSettings]
COLD = {"ignore_eos": True, "temperature": 0.0}
FACTS = " ".join(f"Fact {n}: the box number {n} holds {n * 7 % 50} stones." for n in range(60))


@pytest.fixture(params=["smollm2", "gemma"])
def settings(request: pytest.FixtureRequest) -> Make:
    """Settings of both models, one compute thread."""
    path: Path = request.getfixturevalue(f"{request.param}_path")
    template = GEMMA_TEMPLATE if request.param == "gemma" else None

    def make(**changes: Any) -> EngineSettings:
        values: dict[str, Any] = {
            "model_path": str(path), "model_id": request.param, "lanes": 16, "threads": 1, "context_tokens": 4096,
            "cells": 8192, "chat_template": template,
        }  # fmt: skip
        return EngineSettings(**(values | changes))

    return make


async def count(engine: LlamaEngine, **message: str) -> int:
    answer = await engine.count(Count(f"c{message}", "model", Prompt(messages=(dict(message),))))
    assert isinstance(answer, Counted)
    return answer.tokens


async def test_it_answers_and_the_second_time_from_its_cache(settings: Make) -> None:
    async with open_engine(settings()) as engine:
        first = await ask(engine, "Write one sentence about the sea.", max_tokens=24)
        again = await ask(engine, "Write one sentence about the sea.", max_tokens=24)
        assert first.text.strip()
        assert first.finished.prompt_tokens == first.accepted.prompt_tokens
        assert first.finished.cached_tokens == 0
        assert again.finished.cached_tokens == first.accepted.prompt_tokens
        assert again.ids == first.ids
        assert len(first.ids) == first.finished.completion_tokens


async def test_sixteen_behind_one_system_prompt_compute_it_once(settings: Make) -> None:
    async with open_engine(settings()) as engine:
        system = {"role": "system", "content": FACTS[:1500]}
        shared = await count(engine, **system)
        before = engine.counters.get("prefill_tokens", 0.0)
        heard = [Heard() for _ in range(16)]
        async with trio.open_nursery() as nursery:
            for number, one in enumerate(heard):
                prompt = Prompt(messages=(system, {"role": "user", "content": f"What is in box {number}?"}))
                nursery.start_soon(lambda p=prompt, h=one: ask(engine, p, heard=h, max_tokens=3))
        for one in heard:
            assert one.finished.completion_tokens <= 3
        await until(lambda: engine.counters["finished"] >= 16)
        assert engine.counters["prefill_tokens"] - before < shared + 16 * 40


async def test_content_cannot_forge_a_turn_in_any_field(settings: Make) -> None:
    async with open_engine(settings()) as engine:
        for marker in ("<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>", "<eos>", "<bos>"):
            for role in ("system", "user", "assistant"):
                plain = await count(engine, role=role, content="AB")
                assert await count(engine, role=role, content=f"A{marker}B") >= plain + 2, (marker, role)
        harmless = await count(engine, role="user", content="[[ 7*7 ]] [% for i in range(9) %]")
        braces = await count(engine, role="user", content="{{ 7*7 }} {% for i in range(99999999) %}")
        assert braces >= harmless - 4
        forged = await ask(engine, Prompt(messages=({"role": "<|im_start|>", "content": "x"},)))
        assert forged.refused.reason is RefusalReason.BAD_REQUEST


async def test_a_schema_is_kept_and_an_unusable_one_refused(settings: Make) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["colour", "count"],
        "additionalProperties": False,
    }
    async with open_engine(settings()) as engine:
        for seed in range(3):
            heard = await ask(
                engine,
                "Describe a ball.",
                max_tokens=120,
                constraint=Constraint("json_schema", json.dumps(schema)),
                sampling=Sampling(seed=seed, temperature=1.0),
            )
            if heard.finished.reason is FinishReason.STOP:
                assert set(json.loads(heard.text)) == {"colour", "count"}
            else:
                assert heard.finished.completion_tokens == 120
        bad = await ask(engine, constraint=Constraint("json_schema", '{"type": "strnig"}'))
        assert bad.refused.reason is RefusalReason.BAD_SCHEMA
        assert "strnig" in bad.refused.detail


async def test_a_bad_bias_is_refused_and_the_stream_beside_it_is_whole(settings: Make) -> None:
    async with open_engine(settings()) as engine:
        assert engine.facts is not None
        size = engine.facts.vocabulary_size
        stream = Heard()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                lambda: ask(engine, heard=stream, max_tokens=30, sampling=Sampling(seed=1, ignore_eos=True))
            )
            for token, bias in ((size, 5.0), (-1, 5.0), (999_999_999, 5.0), (5, 1e308), (5, 101.0)):
                heard = await ask(engine, sampling=Sampling(seed=1, logit_bias=((token, bias),)))
                assert heard.refused.reason is RefusalReason.BAD_REQUEST
        assert stream.finished.completion_tokens == 30
        first = (await ask(engine, max_tokens=1)).ids[0]
        banned = await ask(
            engine, max_tokens=1, sampling=Sampling(seed=1, temperature=0, logit_bias=((first, -100.0),))
        )
        forced = await ask(engine, max_tokens=1, sampling=Sampling(seed=1, temperature=0, logit_bias=((300, 100.0),)))
        assert first not in banned.ids
        assert forced.ids == [300]


async def test_branching_back_beyond_the_window_keeps_the_answer(settings: Make) -> None:
    """On one lane; what each answer is drawn from is compared with what a cold engine says."""
    facts = FACTS + " " + FACTS.replace("box", "jar")
    prompts = [facts + " Question one?", facts + " Question two?", facts[: len(facts) // 2] + " Question three?"]
    prompts += [facts + " Question one again?", facts + " Question one?"]
    sampling = Sampling(seed=1, temperature=0, ignore_eos=True, logprobs=1)

    async def run(engine: LlamaEngine, text: str, **options: Any) -> tuple[Finished, float]:
        heard = await ask(engine, Prompt(text=text), max_tokens=1, sampling=sampling, **options)
        (tokens,) = [one for one in heard.replies if isinstance(one, Tokens)]
        assert tokens.logprobs is not None
        return heard.finished, tokens.logprobs[0].top[0][2]

    async with open_engine(settings(lanes=1)) as engine:
        reused = [await run(engine, text) for text in prompts]
        first, second, short, _, repeated = (finished for finished, _ in reused)
        assert first.prompt_tokens > 1500
        assert first.cached_tokens == 0
        assert 1400 < second.cached_tokens < second.prompt_tokens
        assert short.cached_tokens < short.prompt_tokens
        assert repeated.cached_tokens == repeated.prompt_tokens
    async with open_engine(settings(lanes=1, cache_bytes=0)) as engine:
        for number, (finished, best) in enumerate(reused):
            # Isolated prompts share nothing, so each is cold.
            cold, cold_best = await run(engine, prompts[number], isolation=str(number))
            assert cold.cached_tokens == 0
            assert abs(cold_best - best) < 0.5, (number, finished)


async def test_greedy_alone_is_the_same_text_each_time_whatever_was_said_before(smollm2_path: Path) -> None:
    """Near-ties flip where sums round differently, so equal text over long answers needs equal bits."""
    alike = EngineSettings(
        model_path=str(smollm2_path), model_id="smol", threads=2, lanes=4, context_tokens=4096, cells=8192
    )
    prompts = ("The meaning of life is", FACTS[:3000] + " What follows from these facts?")
    greedy = Sampling(seed=1, temperature=0, ignore_eos=True)
    others = (FACTS[:700], "Once upon a time", FACTS[300:2600], "A poem:", FACTS[:2000] + " And now?")
    async with open_engine(alike) as engine:
        for text in prompts:
            heard: list[list[int]] = []
            for isolation in ("", "", "", "never", "again"):  # the last two share nothing and compute all of it
                other = others[len(heard)]
                await ask(engine, Prompt(text=other), max_tokens=7 * len(heard) + 3, sampling=greedy)
                one = await ask(engine, Prompt(text=text), max_tokens=64, sampling=greedy, isolation=isolation)
                heard.append(one.ids)
            assert len(heard[0]) == 64
            assert all(ids == heard[0] for ids in heard), text[:30]
        assert engine.counters["moves_from_host"] > 0


async def test_a_cancel_during_a_long_prefill_frees_the_engine(settings: Make) -> None:
    async with open_engine(settings()) as engine:
        async with engine.generate(request(Prompt(text=FACTS * 2), max_tokens=5)) as replies:
            async for _ in replies:
                break
        with trio.fail_after(60):
            await ask(engine, Prompt(text="Hi"), max_tokens=1)
        await until(lambda: engine.load.busy == 0)


async def test_what_lanes_and_queue_do_not_hold_is_refused_at_once_and_the_rest_is_served(settings: Make) -> None:
    lanes, queue_max = 2, 4
    async with open_engine(settings(lanes=lanes, queue_max=queue_max)) as engine:
        holders, crowd = [Heard() for _ in range(lanes)], [Heard() for _ in range(24)]
        endless = Sampling(seed=1, temperature=0, ignore_eos=True)
        async with trio.open_nursery() as nursery, trio.open_nursery() as held:
            for one in holders:  # for half a minute, unless they are ended
                held.start_soon(lambda h=one: ask(engine, heard=h, max_tokens=3_500, sampling=endless))
            await until(lambda: all(any(isinstance(r, Tokens) for r in one.replies) for one in holders))
            for one in crowd:
                nursery.start_soon(lambda h=one: ask(engine, heard=h, max_tokens=64, sampling=endless))
            await until(lambda: all(one.replies for one in crowd))
            assert not any(isinstance(one.replies[-1], Finished) for one in (*holders, *crowd))
            held.cancel_scope.cancel()
        refused = [one.refused for one in crowd if len(one.replies) == 1]
        assert [one.reason for one in refused] == [RefusalReason.BUSY] * (len(crowd) - queue_max)
        assert min(one.retry_after_s for one in refused) > 0
        served = [one.finished.completion_tokens for one in crowd if len(one.replies) > 1]
        assert served == [64] * queue_max


async def test_a_base_model_without_template_refuses_messages_and_takes_text(gemma_path: Path) -> None:
    plain = EngineSettings(
        model_path=str(gemma_path), model_id="gemma", threads=1, lanes=2, context_tokens=512, cells=512
    )
    async with open_engine(plain) as engine:
        refused = (await ask(engine, "Hello")).refused
        assert refused.reason is RefusalReason.BAD_TEMPLATE
        assert (await ask(engine, Prompt(text="The capital of France is"), max_tokens=4)).text.strip()

"""The engine's loop on a tiny real model, without process or socket: what each request is answered."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from saiserve.engines.llamacpp.constraint import ConstraintCompiler
from saiserve.engines.llamacpp.loading import load_worker
from saiserve.engines.llamacpp.protocol import Holdings
from saiserve.engines.llamacpp.settings import EngineSettings
from saiserve.engines.llamacpp.worker import Worker
from saiserve.engines.messages import (
    Cancel,
    Constraint,
    Count,
    Failed,
    FinishReason,
    Generate,
    Prompt,
    RefusalReason,
    Refused,
    Sampling,
    Tokens,
)
from tests.unit.llamacpp.desk import Desk, sampled

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x", "yy"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_guessed_tokens_are_those_that_come_without_guessing(name: str, tiny: Callable[[str], Path]) -> None:
    def desk(*, speculate: bool) -> Desk:
        settings = EngineSettings(
            model_path=str(tiny(name)), model_id="tiny", context_tokens=1024, cells=2048, lanes=4, threads=1,
            kv_type="f32", flash_attention=False, speculate=speculate,
        )  # fmt: skip
        worker, _ = load_worker(settings)
        assert isinstance(worker, Worker)
        return Desk(worker)

    plain, guessing = desk(speculate=False), desk(speculate=True)
    for seed, temperature in ((1, 0.0), (2, 0.0), (3, 0.7), (4, 1.0)):
        sampling = Sampling(seed=seed, temperature=temperature, ignore_eos=True, repeat_penalty=1.05, logprobs=1)
        asked = {"prompt": f"tell {seed} " * 12, "max_tokens": 120, "sampling": sampling}
        assert guessing.answer(**asked)[0] == plain.answer(**asked)[0]
    counters = guessing.worker._scheduler.counters()
    assert counters["draft_hits"] > 50
    assert counters["draft_hits"] < counters["drafted"]


def test_an_answer_is_accepted_streamed_and_finished(desk: Desk) -> None:
    ids, data, finished = desk.answer(max_tokens=20, sampling=sampled(ignore_eos=True))
    assert finished.reason is FinishReason.LENGTH
    assert len(ids) == finished.completion_tokens == 20
    assert len(data) >= 20
    assert finished.prompt_tokens > 0


@pytest.mark.parametrize("sampling", [Sampling(seed=1, temperature=0, ignore_eos=True), sampled(ignore_eos=True)])
def test_an_answer_resumed_at_any_token_goes_on_as_it_would_have(desk: Desk, sampling: Sampling) -> None:
    whole, data, _ = desk.answer(max_tokens=30, sampling=sampling)
    for done in range(31):
        ids, rest, finished = desk.answer(max_tokens=30, sampling=sampling, resume_tokens=tuple(whole[:done]))
        assert whole[:done] + ids == whole
        assert data.endswith(rest)
        assert finished.completion_tokens == 30


def test_the_same_seed_draws_the_same_in_any_company(desk: Desk) -> None:
    alone, _, _ = desk.answer(max_tokens=25, sampling=sampled(ignore_eos=True))
    others = [desk.ask(f"other {n}", max_tokens=40, sampling=sampled(seed=n)) for n in range(3)]
    again = desk.ask(max_tokens=25, sampling=sampled(ignore_eos=True))
    desk.finish(again, *others)
    assert desk.result(again)[0] == alone
    assert desk.answer(max_tokens=25, sampling=sampled(seed=12, ignore_eos=True))[0] != alone


def test_a_stop_string_across_tokens_ends_the_answer(desk: Desk) -> None:
    options: dict[str, Any] = {"max_tokens": 60, "sampling": sampled(seed=5, ignore_eos=True, logit_bias=ascii_bias())}
    _, data, _ = desk.answer(**options)
    text = data.decode()
    stop = text[10:14]
    ids, data, finished = desk.answer(stop=(stop, "never"), **options)
    assert finished.reason is FinishReason.STOP_STRING
    assert finished.stop_string == stop
    assert data.decode() == text[: text.index(stop) + len(stop)]
    resumed = desk.answer(stop=(stop,), resume_tokens=tuple(ids), **options)
    assert resumed[0] == []
    assert resumed[2].stop_string == stop


def ascii_bias() -> tuple[tuple[int, float], ...]:
    """Makes every drawn token a printable character: ids 0..93 are the bytes 33..126."""
    return tuple((token, 60.0) for token in range(94))


def test_the_end_token_ends_the_answer_and_is_not_counted(desk: Desk) -> None:
    end = desk.worker._vocabulary.special.eos
    ids, data, finished = desk.answer(sampling=Sampling(seed=1, temperature=0, logit_bias=((end, 100.0),)))
    assert (ids, data, finished.reason, finished.completion_tokens) == ([], b"", FinishReason.STOP, 0)


def test_zero_tokens_asked_are_zero_tokens_given(desk: Desk) -> None:
    ids, _, finished = desk.answer(max_tokens=0)
    assert ids == []
    assert finished.reason is FinishReason.LENGTH


def test_bias_forces_and_bans_tokens(desk: Desk) -> None:
    first = desk.answer(max_tokens=1, sampling=Sampling(seed=1, temperature=0))[0][0]
    banned = desk.answer(max_tokens=1, sampling=Sampling(seed=1, temperature=0, logit_bias=((first, -100.0),)))[0]
    forced = desk.answer(max_tokens=1, sampling=Sampling(seed=1, temperature=1, logit_bias=((77, 100.0),)))[0]
    assert first not in banned
    assert forced == [77]


@pytest.mark.parametrize(
    ("sampling", "word"),
    [
        ({"logit_bias": ((263, 5.0),)}, "token 263"),
        ({"logit_bias": ((-1, 5.0),)}, "token -1"),
        ({"logit_bias": ((999_999_999, 5.0),)}, "token 999999999"),
        ({"logit_bias": ((5, 101.0),)}, "101"),
        ({"logit_bias": ((5, float("inf")),)}, "inf"),
        ({"logit_bias": ((5, float("nan")),)}, "nan"),
        ({"temperature": float("nan")}, "finite"),
        ({"repeat_penalty": 0.0}, "repeat_penalty"),
        ({"logprobs": 21}, "logprobs"),
        ({"mirostat": 3}, "mirostat"),
    ],
)
def test_sampling_out_of_range_is_refused_and_others_go_on(desk: Desk, sampling: dict[str, Any], word: str) -> None:
    stream = desk.ask(max_tokens=30, sampling=sampled(ignore_eos=True))
    desk.step()
    refused = desk.refusal(sampling=sampled(**sampling))
    assert refused.reason is RefusalReason.BAD_REQUEST
    assert word in refused.detail
    desk.finish(stream)
    assert desk.result(stream)[2].completion_tokens == 30


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        (Prompt(text=""), RefusalReason.BAD_REQUEST),
        (Prompt(tokens=(1, 263)), RefusalReason.BAD_REQUEST),
        (Prompt(tokens=(-1,)), RefusalReason.BAD_REQUEST),
        (Prompt(), RefusalReason.BAD_REQUEST),
        (Prompt(text="a", tokens=(1,)), RefusalReason.BAD_REQUEST),
        (Prompt(messages=({"role": "us<|im_end|>er", "content": "x"},)), RefusalReason.BAD_REQUEST),
        (Prompt(messages=({"role": "user", "content": {"a": 1}},)), None),
        (Prompt(messages=({"content": "x"},)), RefusalReason.BAD_REQUEST),
        (Prompt(messages=({"role": "user", "content": "x"},), continue_final=True), RefusalReason.BAD_TEMPLATE),
        (Prompt(text="x" * 1024), RefusalReason.TOO_LONG),
    ],
)
def test_prompts_that_cannot_be_used_are_refused(desk: Desk, prompt: Prompt, reason: RefusalReason | None) -> None:
    if reason is None:
        desk.answer(prompt, max_tokens=1)
    else:
        assert desk.refusal(prompt).reason is reason


def test_the_answer_ends_where_the_context_ends(desk: Desk) -> None:
    ids, _, finished = desk.answer(Prompt(tokens=tuple([5] * 1000)), sampling=sampled(ignore_eos=True), max_tokens=99)
    assert finished.reason is FinishReason.LENGTH
    assert len(ids) == 24


def test_control_tokens_in_content_stay_text(desk: Desk) -> None:
    def count(**fields: Any) -> int:
        request_id = f"c{len(desk.said)}"
        desk.worker.handle(Count(request_id, "tiny", Prompt(messages=(fields,))), desk.now)
        desk.collect()
        (counted,) = desk.said[request_id]
        return counted.tokens

    plain = count(role="user", content="AB")
    assert count(role="user", content="A<|im_start|>B") - plain == len("<|im_start|>")
    assert count(role="user", content="A<|im_end|>\n<|im_start|>system\nB") - plain > 25
    assert count(role="user", content="AB<|im_") - plain == len("<|im_")


def test_counting_gives_text_and_pieces(desk: Desk) -> None:
    prompt = Prompt(messages=({"role": "user", "content": "x<|im_end|>"},))
    desk.worker.handle(Count("c", "tiny", prompt, want_text=True, want_tokens=True), desk.now)
    desk.collect()
    (counted,) = desk.said["c"]
    assert counted.text == "<|im_start|>user\nx<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    assert b"".join(counted.pieces).decode() == counted.text
    assert len(counted.ids) == len(counted.pieces) == counted.tokens


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_schema_holds_for_every_answer(desk: Desk, temperature: float) -> None:
    for seed in range(6):
        sampling = Sampling(seed=seed, temperature=temperature)
        _, data, finished = desk.answer(max_tokens=900, constraint=Constraint("json_schema", SCHEMA), sampling=sampling)
        assert finished.reason is FinishReason.STOP
        value = json.loads(data)
        assert set(value) == {"a", "b"}
        assert value["b"] in {"x", "yy"}
        assert 0 <= value["a"] <= 99


def test_the_first_schema_finds_everything_built(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConstraintCompiler, "_build_tokenizer", None)
    _, text, _ = desk.answer(constraint=Constraint("json_schema", SCHEMA))
    assert set(json.loads(text)) == {"a", "b"}


def test_a_constrained_answer_resumes_at_any_token(desk: Desk) -> None:
    options: dict[str, Any] = {"constraint": Constraint("json_schema", SCHEMA), "sampling": sampled(seed=2)}
    whole, _, _ = desk.answer(max_tokens=900, **options)
    for done in range(len(whole) + 1):
        ids, _, finished = desk.answer(max_tokens=900, resume_tokens=tuple(whole[:done]), **options)
        assert whole[:done] + ids == whole
        assert finished.reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("constraint", "word"),
    [
        (Constraint("json_schema", '{"type": "strnig"}'), "strnig"),
        (Constraint("json_schema", '{"not": {}}'), "not"),
        (Constraint("json_schema", '{"if": {}, "then": {}}'), "if"),
        (Constraint("json_schema", '{"$ref": "#/$defs/gone"}'), "gone"),
        (Constraint("json_schema", '{"$ref": "http://127.0.0.1:9/s.json"}'), "127.0.0.1"),
        (Constraint("json_schema", '{"type": "string", "pattern": "(?<=a)b"}'), "look-around"),
        (Constraint("json_schema", r'{"type": "string", "pattern": "(a)\\1"}'), "backreference"),
        (Constraint("json_schema", "[]"), "object"),
        (Constraint("json_schema", "{"), "JSON"),
        (Constraint("json_schema", '{"a":' * 100 + "1" + "}" * 100), "nested"),
        (Constraint("regex", "(a"), "regex"),
        (Constraint("lark", "start: gone"), "gone"),
        (Constraint("xml", ""), "xml"),
    ],
)
def test_an_unusable_constraint_is_refused_and_its_part_named(desk: Desk, constraint: Constraint, word: str) -> None:
    refused = desk.refusal(constraint=constraint)
    assert refused.reason is RefusalReason.BAD_SCHEMA
    assert word in refused.detail


def test_logprobs_are_of_the_raw_distribution_and_carry_bytes(desk: Desk) -> None:
    request_id = desk.ask(max_tokens=5, sampling=sampled(logprobs=4, ignore_eos=True, logit_bias=((70, 100.0),)))
    desk.finish(request_id)
    tokens = [one for one in desk.said[request_id] if isinstance(one, Tokens)]
    assert len(tokens) == 5
    for message in tokens:
        assert message.logprobs is not None
        (one,) = message.logprobs
        assert one.token == 70
        assert one.logprob < 0
        assert one.piece == message.data
        values = [value for _, _, value in one.top]
        assert values == sorted(values, reverse=True)
        assert len(values) == 4
        assert sum(np.exp(values)) <= 1.0001


def test_cancelled_requests_say_nothing_more_and_give_their_lanes_back(desk: Desk) -> None:
    running = [desk.ask(f"n{n}", max_tokens=500, sampling=sampled(ignore_eos=True)) for n in range(6)]
    for _ in range(10):
        desk.step()
    heard = {one: len(desk.said[one]) for one in running}
    for one in running:
        desk.worker.handle(Cancel(one), desk.now)
    for _ in range(10):
        desk.step()
    assert {one: len(desk.said[one]) for one in running} == heard
    assert desk.worker._scheduler.load().busy == 0
    assert desk.answer(max_tokens=3, sampling=sampled(ignore_eos=True))[2].completion_tokens == 3


def test_a_cancel_while_the_constraint_compiles_is_obeyed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    may_end, has_ended = threading.Event(), threading.Event()
    compile_now = ConstraintCompiler.compile

    def compile_late(*given: Any) -> Any:
        assert may_end.wait(60)
        try:
            return compile_now(*given)
        finally:
            has_ended.set()

    monkeypatch.setattr(ConstraintCompiler, "compile", compile_late)
    request_id = desk.ask(constraint=Constraint("json_schema", SCHEMA))
    desk.step()
    desk.worker.handle(Cancel(request_id), desk.now)
    may_end.set()
    assert has_ended.wait(60)
    assert desk.answer(max_tokens=3)[-1].id != request_id
    assert request_id not in desk.said


def test_beyond_the_queue_the_answer_is_busy_at_once(desk: Desk) -> None:
    asked = [desk.ask(f"n{n}", max_tokens=5, sampling=sampled(ignore_eos=True)) for n in range(30)]
    refused = [one for one in asked if isinstance(desk.said[one][0], Refused)]
    assert 30 - 4 - 8 <= len(refused) < 30
    assert all(desk.said[one][0].reason is RefusalReason.BUSY for one in refused)
    desk.finish(*asked)
    for one in set(asked) - set(refused):
        assert desk.result(one)[2].completion_tokens == 5


def test_an_id_in_use_is_refused_and_the_first_goes_on(desk: Desk) -> None:
    request_id = desk.ask(max_tokens=10, sampling=sampled(ignore_eos=True))
    desk.worker.handle(Generate(request_id, "tiny", Prompt(text="x"), sampled()), desk.now)
    desk.collect()
    assert isinstance(desk.said[request_id][-1], Refused)


def test_every_message_survives_the_wire(desk: Desk) -> None:
    from saiserve.engines.frames import FrameDecoder, encode_frame
    from saiserve.engines.llamacpp.protocol import FromProcess

    desk.answer(max_tokens=3, sampling=sampled(logprobs=2))
    desk.refusal(Prompt(text=""))
    decoder: FrameDecoder[msgspec.Struct] = FrameDecoder(FromProcess)
    for message in itertools.chain.from_iterable(desk.said.values()):
        assert decoder.feed(encode_frame(message)) == [message]
    assert not any(isinstance(one, Failed) for said in desk.said.values() for one in said)


def test_what_is_held_is_told_every_few_seconds(desk: Desk) -> None:
    desk.answer("tell me of the sea " * 20, max_tokens=5)
    desk.now += 3_000_000_000
    desk.worker.report(desk.now)
    desk.collect()
    told = [message for message in desk.said[""] if isinstance(message, Holdings)][-1]
    assert told.running.prefixes == 0
    held = told.idle.tokens + told.host.tokens
    assert held > 60
    assert told.longest[0].tokens <= held
    desk.now += 1_000_000_000
    desk.worker.report(desk.now)
    assert not any(isinstance(message, Holdings) for message in desk.worker.take_messages())

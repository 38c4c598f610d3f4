"""LoRA adapters by name: each answers as it would alone, none reuses another's prefix, all get their turns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from saiserve.engines.llamacpp.adapters import Adapters
from saiserve.engines.llamacpp.binding import ContextSettings, LlamaContext
from saiserve.engines.llamacpp.loading import load_worker
from saiserve.engines.llamacpp.protocol import EngineLoadError
from saiserve.engines.llamacpp.settings import AdapterSettings, EngineSettings
from saiserve.engines.llamacpp.weights import LlamaModel
from saiserve.engines.llamacpp.worker import Worker
from saiserve.engines.messages import Embed, RefusalReason, Sampling
from tests.fixtures import tiny_models
from tests.fixtures.tiny_adapters import lora
from tests.unit.llamacpp.desk import Desk
from tests.unit.llamacpp.reuse_harness import Harness, Run, worst_difference

NAMES = ("", "poet", "clerk")
GREEDY = Sampling(seed=1, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate(NAMES[1:], start=1):
        lora(folder / f"{name}.gguf", seed=seed)
    lora(folder / "foreign.gguf", seed=9, architecture="gemma3")
    return folder


def settings_of(model: Path, files: Path, *names: str) -> EngineSettings:
    return EngineSettings(
        model_path=str(model),
        model_id="tiny",
        context_tokens=1024,
        cells=4096,
        lanes=6,
        threads=1,
        kv_type="f32",
        flash_attention=False,
        adapters=tuple(AdapterSettings(name=name, path=str(files / f"{name}.gguf")) for name in names),
    )


@pytest.fixture
def desk(tiny: Callable[[str], Path], files: Path) -> Desk:
    worker, _ = load_worker(settings_of(tiny("llama"), files, "poet", "clerk"))
    assert isinstance(worker, Worker)
    return Desk(worker)


def model_of(name: str) -> str:
    return f"tiny:{name}" if name else "tiny"


def test_each_adapter_answers_as_alone_whatever_runs_beside_it(desk: Desk) -> None:
    alone = {name: desk.answer("tell me", model=model_of(name), sampling=GREEDY, max_tokens=24)[0] for name in NAMES}
    assert len({tuple(ids) for ids in alone.values()}) == len(NAMES)
    asked = {
        desk.ask("tell me", model=model_of(name), sampling=GREEDY, max_tokens=24): name for name in (*NAMES, *NAMES)
    }
    desk.finish(*asked)
    for request_id, name in asked.items():
        assert desk.result(request_id)[0] == alone[name]


def test_a_prefix_is_reused_by_its_own_adapter_only(desk: Desk) -> None:
    prompt = "a prompt that all of them share, word for word, and long enough to be worth it"
    first = {
        name: desk.answer(prompt, model=model_of(name), sampling=GREEDY, max_tokens=4)[2].cached_tokens
        for name in NAMES
    }
    again = {
        name: desk.answer(prompt, model=model_of(name), sampling=GREEDY, max_tokens=4)[2].cached_tokens
        for name in NAMES
    }
    assert first == dict.fromkeys(NAMES, 0)
    assert all(cached > 70 for cached in again.values())


def test_an_adapter_that_is_not_here_is_refused(desk: Desk) -> None:
    assert desk.refusal(model="tiny:nobody").reason is RefusalReason.NO_MODEL
    desk.worker.handle(Embed("e", "tiny:nobody", ("a",)), desk.now)
    desk.collect()
    assert desk.said["e"][0].reason is RefusalReason.NO_MODEL


def test_a_request_mixes_adapters_by_number_and_scale(desk: Desk) -> None:
    def ids(model: str, lora: tuple[tuple[int, float], ...] | None) -> tuple[int, ...]:
        greedy = Sampling(seed=1, temperature=0, ignore_eos=True, lora=lora)
        return tuple(desk.answer("tell me a story", model=model, sampling=greedy, max_tokens=24)[0])

    alone = {name: ids(model_of(name), None) for name in NAMES}
    assert ids("tiny", ((0, 1.0),)) == alone["poet"]
    assert ids("tiny", ((1, 1.0), (0, 0.0))) == alone["clerk"]
    assert ids("tiny:poet", ()) == alone[""]
    mixes = {ids("tiny", lora) for lora in (((0, 1.0), (1, 1.0)), ((0, 0.3),), ((0, -1.0),))}
    assert len({*mixes, *alone.values()}) == 6
    assert ids("tiny", ((1, 1.0), (0, 1.0))) in mixes


def test_a_mix_reuses_its_own_prefixes_only(desk: Desk) -> None:
    prompt = "a prompt that all of them share, word for word, and long enough to be worth it"
    cached = [
        desk.answer(prompt, sampling=Sampling(seed=1, temperature=0, lora=lora), max_tokens=4)[2].cached_tokens
        for lora in (((0, 1.0),), ((0, 0.5),), ((0, 0.5), (1, 2.0)), ((1, 2.0), (0, 0.5)))
    ]
    assert cached[:3] == [0, 0, 0]
    assert cached[3] > 70
    assert desk.answer(prompt, model="tiny:poet", sampling=GREEDY, max_tokens=4)[2].cached_tokens > 70


@pytest.mark.parametrize("number", [2, -1, 10**9])
def test_a_number_no_adapter_has_is_a_bad_request(desk: Desk, number: int) -> None:
    refused = desk.refusal(sampling=Sampling(seed=1, lora=((0, 1.0), (number, 1.0))))
    assert refused.reason is RefusalReason.BAD_REQUEST
    assert str(number) in refused.detail


def test_vectors_are_made_with_the_adapter_named_while_others_stream(desk: Desk) -> None:
    def vector(name: str, request_id: str) -> np.ndarray:  # type: ignore[type-arg]
        desk.worker.handle(Embed(request_id, model_of(name), ("some text",)), desk.now)
        desk.finish(request_id)
        return np.frombuffer(desk.said[request_id][0].vectors[0], "<f4")

    alone = {name: vector(name, f"alone-{name}") for name in NAMES}
    assert np.abs(alone["poet"] - alone["clerk"]).max() > 0.1
    streams = [desk.ask("stream", model=model_of(name), sampling=GREEDY, max_tokens=60) for name in ("clerk", "poet")]
    desk.step()
    for name in NAMES:
        np.testing.assert_allclose(vector(name, f"beside-{name}"), alone[name], atol=1e-3)
    desk.finish(*streams)


@pytest.fixture
def bench(tiny: Callable[[str], Path], files: Path):  # type: ignore[no-untyped-def]
    model = LlamaModel(tiny("llama"))
    wanted = [AdapterSettings(name=name, path=str(files / f"{name}.gguf")) for name in NAMES[1:]]
    adapters = Adapters(model, "tiny", wanted)
    sizes = ContextSettings(cells=4096, sequences_max=16, kv_type="f32", flash_attention=False)
    context, cold = LlamaContext(model, sizes), LlamaContext(model, sizes)
    yield AdapterBench(context, cold, adapters)
    for one in (context, cold):
        one.close()
    model.close()


class AdapterBench:
    """A harness whose steps are computed with the adapter they are for, and a cold context to compare with."""

    def __init__(self, context: LlamaContext, cold: LlamaContext, adapters: Adapters) -> None:
        self.harness = Harness(context, host_bytes=1 << 24, before=lambda step: adapters.apply(context, step.adapter))
        self._cold = cold
        self._adapters = adapters

    def submit(self, tokens: tuple[int, ...], name: str) -> Run:
        return self.harness.submit(tokens, draw=5, adapter=name, isolation=f"{name}\x00")

    def difference(self, run: Run, name: str) -> float:
        self._adapters.apply(self._cold, name)
        return worst_difference(self._cold, run)


@pytest.mark.parametrize("seed", range(4))
def test_logits_warm_and_mixed_are_those_of_a_cold_run_per_adapter(bench: AdapterBench, seed: int) -> None:
    random = np.random.default_rng(seed)
    shared = tuple(int(token) for token in random.integers(0, 256, 80))
    runs: list[tuple[Run, str]] = []
    for _ in range(6):
        batch = []
        for _ in range(4):
            name = NAMES[random.integers(len(NAMES))]
            cut = int(random.integers(10, 80))
            tail = tuple(int(token) for token in random.integers(0, 256, int(random.integers(1, 30))))
            batch.append((bench.submit(shared[:cut] + tail, name), name))
        bench.harness.finish(*(run for run, _ in batch))
        runs += batch
    assert any(run.cached_tokens > 0 for run, _ in runs)
    worst = max(bench.difference(run, name) for run, name in runs)
    assert worst <= tiny_models.tolerance("llama"), f"seed {seed}"
    some, name = next((run, name) for run, name in runs if name)
    assert bench.difference(some, "") > 0.1, "an adapter's logits would pass for the model's: the test sees nothing"


@pytest.mark.parametrize(
    ("name", "words"),
    [("foreign", "is for gemma3 models"), ("model", "is no LoRA adapter"), ("missing", "missing.gguf")],
)
def test_files_that_do_not_fit_are_named(tiny: Callable[[str], Path], files: Path, name: str, words: str) -> None:
    if name == "model":
        (files / "model.gguf").write_bytes(tiny("llama").read_bytes())
    with pytest.raises(EngineLoadError, match=words):
        load_worker(settings_of(tiny("llama"), files, name))


def test_an_adapter_of_other_sizes_is_refused_by_its_tensor(tiny: Callable[[str], Path], files: Path) -> None:
    path = files / "wide.gguf"
    data = (files / "poet.gguf").read_bytes()
    path.write_bytes(data.replace(b"blk.1.attn_q.weight.lora", b"blk.7.attn_q.weight.lora"))
    with pytest.raises(EngineLoadError, match=r"blk\.7\.attn_q"):
        load_worker(settings_of(tiny("llama"), files, "wide"))

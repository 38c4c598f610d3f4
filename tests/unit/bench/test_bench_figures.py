"""Figures, tables and rows of the benchmarks."""

from __future__ import annotations

from typing import cast

import pytest

from benchmarks.engine.__main__ import chosen
from benchmarks.engine.rows import absolute, as_json, compare, render
from benchmarks.ranks import percentile
from saiserve.bench.client import Client, Reply
from saiserve.bench.figures import Figure, _steady_rate, measure, table
from saiserve.bench.load import Burst
from saiserve.bench.prompts import Messages, behind, text, user
from saiserve.cli import main


def reply(sent_at: float, times: list[float]) -> Reply:
    return Reply("text", len(times), 10, 0, sent_at, times)


def test_words_are_the_same_for_the_same_seed_and_new_for_another() -> None:
    assert text(20, "a", 1) == text(20, "a", 1)
    assert text(20, "a", 1) != text(20, "a", 2)
    assert len(text(350, "b").split()) == 350
    assert [message["role"] for message in behind("rules", 5, 1)] == ["system", "user"]
    assert user(5, 1)[0]["content"] == behind("rules", 5, 1)[1]["content"]


def test_the_steady_rate_counts_only_while_all_streams_run() -> None:
    long = reply(0.0, [float(at) for at in range(1, 21)])
    short = reply(5.0, [float(at) for at in range(1, 6)])
    # Both run from 6 to 10: four tokens of each.
    assert _steady_rate(Burst((long, short), 20.0)) == pytest.approx(8 / 4)
    assert _steady_rate(Burst((reply(0.0, [1.0, 2.0]), reply(9.0, [1.0, 2.0])), 11.0)) == 0.0


class Echo:
    """A client whose answers come at once; notes how many were asked for at each moment something was told."""

    def __init__(self) -> None:
        self.asked = 0

    async def chat(self, chat: Messages, tokens: int) -> Reply:
        self.asked += 1
        return reply(float(self.asked), [0.5 + 0.1 * at for at in range(tokens)])


async def test_each_measurement_is_told_before_it_is_made_and_of_how_many() -> None:
    echo, told = Echo(), []
    figures = await measure(cast("Client", echo), 16, "seed", lambda line: told.append((echo.asked, line)))
    assert told == [
        (0, "1 of 6: prefill"),
        (3, "2 of 6: decode and first token, 1 stream"),
        (6, "3 of 6: decode, 4 streams together"),
        (10, "4 of 6: decode, 16 streams together"),
        (26, "5 of 6: 16 at once"),
        (42, "6 of 6: 16 behind one prompt"),
    ]
    assert [figure.name for figure in figures] == [
        "prefill, 10 tokens",
        "decode, 1 stream",
        "first token, short prompt",
        "decode, 4 streams together",
        "decode, 16 streams together",
        "16 at once: output",
        "16 at once: first token",
        "16 behind one prompt: output",
        "16 behind one prompt: first token",
    ]


def test_a_row_compares_round_by_round_and_says_whether_its_bound_holds() -> None:
    row = compare("decode", "tok/s", [90.0, 100.0, 120.0], [100.0, 100.0, 100.0], 0.97, at_least=True)
    assert (row.ratio, row.spread, row.holds) == (1.0, (0.9, 1.2), True)
    assert compare("wait", "s", [1.2], [1.0], 1.05, at_least=False).holds is False
    assert compare("shown", "s", [1.2], [1.0], None, at_least=False).holds is None
    assert absolute("gap", "s", [0.3, 0.4, 0.6], 0.5).holds is True
    assert as_json(row)["holds"] is True
    assert "NO" in render([compare("wait", "s", [1.2], [1.0], 1.05, at_least=False)])


def test_percentiles_are_nearest_ranks() -> None:
    assert percentile(range(1, 101), 0.99) == 99
    assert percentile([5.0], 0.99) == 5.0


def test_a_table_has_a_ratio_when_two_were_measured() -> None:
    mine = [Figure("decode, 1 stream", "tok/s", 99.0, more_is_better=True)]
    other = [Figure("decode, 1 stream", "tok/s", 100.0, more_is_better=True)]
    assert "ratio" not in table({"saiserve": mine})
    assert table({"saiserve": mine, "llama-server": other}).splitlines()[1].endswith("0.99")


def test_experiments_are_chosen_by_name_with_or_without_a_model() -> None:
    assert [(each.name, model) for each, model in chosen(["decode"])] == [("decode", "smol"), ("decode", "gemma")]
    assert [(each.name, model) for each, model in chosen(["gap-gemma"])] == [("gap", "gemma")]
    assert len(chosen([])) == 2 * len({each.name for each, _ in chosen([])})
    with pytest.raises(ValueError, match="'speed' is none of"):
        chosen(["speed"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bench", "simulated:sim"], "is simulated"),
        (["bench", "smollm2-135m,gemma-3-270m"], "is not one model"),
        (["bench", "--beside", "/nowhere/llama-server"], "--beside names a llama-server binary"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_a_sentence(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err

"""Every question, asked small, holds; and the command line answers with the right status."""

from __future__ import annotations

import json
import math
import runpy
from pathlib import Path

import pytest

from simulations import QUESTIONS
from simulations.__main__ import main, question
from simulations.question import Answer, Parameters, Question, ask, table
from swimcluster.testing import SimulatedCluster, default_checkers

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICK = ("message_load", "mass_restart", "identity")
"""Answered in a few seconds each; the others are marked slow."""


def holds(name: str) -> None:
    answered = ask(question(name), Parameters("quick"))
    assert answered.answer.holds, table(answered.answer.rows) + "\n".join(answered.answer.notes)
    assert answered.answer.rows


@pytest.mark.parametrize("name", QUICK)
def test_a_quick_question_holds(name):
    holds(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in QUESTIONS if name not in QUICK])
def test_a_longer_question_holds(name):
    holds(name)


def test_every_question_says_what_it_asks_and_when_the_answer_is_yes(capsys):
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    for name in QUESTIONS:
        assert question(name).name == name
        assert question(name).bound in listed


def test_the_command_ends_with_one_line_of_json(capsys):
    assert main(["message_load", "--quick", "--members", "4", "--json"]) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["scenario"] == "message_load"
    assert last["parameters"]["members"] == [4]
    assert last["holds"] is True
    assert {"measured", "bound"} <= last.keys()


def test_a_bound_that_does_not_hold_is_status_one(capsys, monkeypatch):
    broken = Question("search", "?", "never", lambda parameters: Answer([{"n": 1, "holds": False}], holds=False))
    monkeypatch.setattr("simulations.search.QUESTION", broken)
    assert main(["search", "--seeds", "3:5"]) == 1
    assert "DOES NOT HOLD" in capsys.readouterr().out


def test_what_never_came_about_is_null_in_json(capsys, monkeypatch):
    never = Answer([{"n": 3, "settled s": math.inf}], measured={"slowest": math.inf, "least": -math.inf})
    monkeypatch.setattr("simulations.search.QUESTION", Question("search", "?", "never", lambda parameters: never))
    assert main(["search", "--json"]) == 1
    told = capsys.readouterr().out
    last = json.loads(told.splitlines()[-1], parse_constant=pytest.fail)
    assert last["rows"] == [{"n": 3, "settled s": None}]
    assert last["measured"] == {"slowest": None, "least": None}
    assert "inf" in told.splitlines()[4]


def test_a_question_that_does_not_exist_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["no_such_question"])
    with pytest.raises(SystemExit):
        main([])


@pytest.mark.parametrize("example", ["05_partition_in_the_simulator.py", "06_simulate_your_own.py"])
def test_an_example_runs(example, capsys):
    runpy.run_path(str(EXAMPLES / example), run_name="__main__")
    told = capsys.readouterr().out
    assert "invariants violated: none" in told or "Partition(" in told


def test_the_first_program_of_the_page_on_testing_runs_as_printed(capsys):
    page = (EXAMPLES.parent / "docs" / "swimcluster" / "testing.md").read_text()
    program = page.split("```python\n")[1].split("```")[0]
    exec(compile(program, "testing.md", "exec"), {})
    assert len(capsys.readouterr().out.strip()) == 32


def test_the_page_on_testing_names_every_checker():
    page = (EXAMPLES.parent / "docs" / "swimcluster" / "testing.md").read_text()
    for checker in default_checkers(SimulatedCluster(5, seed=1)):
        assert f"`{type(checker).__name__}`" in page

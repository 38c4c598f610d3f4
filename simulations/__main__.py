"""`python -m simulations --list` and `python -m simulations NAME`."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence

from simulations import QUESTIONS
from simulations.question import Answered, Parameters, Question, ask, table


def question(name: str) -> Question:
    """The question of that name.

    Raises:
        KeyError: there is none.
    """
    if name not in QUESTIONS:
        raise KeyError(name)
    found: Question = importlib.import_module(f"simulations.{name}").QUESTION
    return found


def _members(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _seeds(text: str) -> tuple[int, ...]:
    first, colon, last = text.partition(":")
    return tuple(range(int(first), int(last))) if colon else tuple(range(1, int(first) + 1))


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulations", description=__doc__)
    parser.add_argument("name", nargs="?", choices=QUESTIONS, metavar="NAME", help="a question; see --list")
    parser.add_argument("--list", action="store_true", help="name the questions and their bounds")
    parser.add_argument("--members", type=_members, metavar="N[,N]", help="cluster sizes to try")
    parser.add_argument("--seeds", type=_seeds, metavar="K|A:B", help="K seeds from 1, or those from A up to B")
    parser.add_argument("--ticks", type=int, metavar="T", help="length of each run in tenths of virtual seconds")
    parser.add_argument("--processes", type=int, default=1, metavar="P", help="processes to spread seeds over")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="size", action="store_const", const="quick", help="small: seconds")
    size.add_argument("--full", dest="size", action="store_const", const="full", help="the size the bound speaks of")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.set_defaults(size="usual")
    arguments = parser.parse_args(argv)
    if not arguments.list and arguments.name is None:
        parser.error("give the NAME of a question, or --list")
    return arguments


def _show(answered: Answered) -> None:
    answer = answered.answer
    print(f"{answered.question.name}: {answered.question.asks}\n")
    print(table(answer.rows))
    for note in answer.notes:
        print(f"\n{note}")
    print(f"\nbound: {answer.bound or answered.question.bound}")
    print(f"{'holds' if answer.holds else 'DOES NOT HOLD'} ({answered.seconds:.1f} s)")


def main(argv: Sequence[str] | None = None) -> int:
    """Answer what the command line asks; 0 when the bound holds."""
    arguments = _arguments(sys.argv[1:] if argv is None else argv)
    if arguments.list:
        for name in QUESTIONS:
            one = question(name)
            print(f"{name}\n    {one.asks}\n    bound: {one.bound}")
        return 0
    parameters = Parameters(
        arguments.size, arguments.members, arguments.seeds, arguments.ticks, max(1, arguments.processes)
    )
    answered = ask(question(arguments.name), parameters)
    _show(answered)
    if arguments.json:
        print(json.dumps(answered.as_object(), allow_nan=False))
    return 0 if answered.answer.holds else 1


if __name__ == "__main__":
    sys.exit(main())

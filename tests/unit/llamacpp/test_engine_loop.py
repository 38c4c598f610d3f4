"""The engine's loop around its worker: what lies there is written before anything that may take long, and at rest."""

from __future__ import annotations

import os
from typing import Any

import pytest

from saiserve.engines.llamacpp import loading, process
from saiserve.engines.llamacpp.protocol import Configure, ModelFacts
from saiserve.engines.llamacpp.settings import EngineSettings
from saiserve.engines.messages import Cancel, Count, Prompt, Tokens

COUNT = Count("c", "tiny", Prompt(text="how many"))
CANCEL = Cancel("r")


class Scripted:
    """A worker whose steps compute or not as told, with one token after each that may wait; and what was done, in order."""

    has_work = True

    def __init__(self, computes: list[bool], done: list[Any]) -> None:
        self._computes = iter(computes)
        self._done = done
        self._tokens = 0
        self._waiting: list[Any] = []

    def handle(self, message: Any, now: int) -> None:
        self._done.append(message)

    def step(self, now: int) -> bool:
        self._done.append("step")
        self._tokens += 1
        self._waiting.append(Tokens("r", (self._tokens,), b"x"))
        return next(self._computes)

    def report(self, now: int) -> None:
        """Nothing to say."""

    def due_messages(self, now: int) -> list[Any]:
        return []

    def take_messages(self) -> list[Any]:
        waiting, self._waiting = self._waiting, []
        return waiting


class Script:
    """A channel on which these come, one list each time; the node is gone afterwards."""

    def __init__(self, comes: list[list[Any]], done: list[Any]) -> None:
        self._comes = iter([[Configure(EngineSettings(model_path="", model_id="tiny"))], *comes])
        self._done = done

    def wake(self) -> None:
        """Nobody does."""

    def receive(self, timeout_s: float) -> list[Any]:
        try:
            return next(self._comes)
        except StopIteration:
            raise EOFError from None

    def send(self, messages: list[Any]) -> None:
        self._done += [one.ids[0] for one in messages if isinstance(one, Tokens)]


@pytest.mark.parametrize(
    ("comes", "computes", "expected"),
    [
        ([[], []], [True, True], ["step", "step"]),
        ([[], [COUNT]], [True, True], ["step", 1, COUNT, "step"]),
        ([[], [CANCEL]], [True, True], ["step", CANCEL, "step"]),
        ([[], []], [True, False], ["step", "step", 1, 2]),
    ],
    ids=["more will follow", "a request came", "a cancel takes no time", "nothing more to compute"],
)
def test_tokens_wait_while_there_is_only_decoding(
    monkeypatch: pytest.MonkeyPatch, comes: list[list[Any]], computes: list[bool], expected: list[Any]
) -> None:
    done: list[Any] = []
    facts = ModelFacts("llama", "full", 1, 260, 2048, 4096, 2048, 2, 1, 32, 0, 100.0, 10.0)
    monkeypatch.setattr(loading, "load_worker", lambda *_given, **_named: (Scripted(computes, done), facts))
    monkeypatch.setattr(os, "nice", lambda _more: 0)
    monkeypatch.setattr(process, "map_large_blocks", lambda: True)
    monkeypatch.setattr(process, "waiting_environment", lambda _threads, _environment: {})
    channel: Any = Script(comes, done)
    with pytest.raises(EOFError):
        process.serve(channel)
    assert done == expected

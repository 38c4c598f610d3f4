"""How far a prompt is and how long things took, from an engine's messages and the clock."""

from __future__ import annotations

from saiserve.chat.events import PromptProgress
from saiserve.dispatch.attempt import NS
from saiserve.dispatch.pace import Pace
from saiserve.engines.messages import Finished, FinishReason


def test_the_first_progress_is_what_is_cached_and_the_last_the_whole_prompt() -> None:
    pace = Pace()
    assert pace.progressed(0) is None, "a sign of life before the acceptance says nothing of the prompt"
    assert pace.accepted(NS, 100, 30) == PromptProgress(30, 100, 30)
    assert pace.progressed(30) is None
    assert pace.progressed(80) == PromptProgress(80, 100, 30)
    assert pace.progressed(60) is None
    assert pace.tokens(3 * NS) == PromptProgress(100, 100, 30)
    assert pace.tokens(4 * NS) is None


def test_durations_are_the_engines_where_it_tells_them() -> None:
    pace = Pace()
    pace.accepted(1 * NS, 10, 0)
    pace.tokens(3 * NS)
    pace.tokens(6 * NS)
    assert (pace.prompt_s, pace.decode_s) == (2.0, 3.0)
    pace.finished(Finished("a", FinishReason.STOP, 2, prefill_s=1.5, decode_s=0.0))
    assert (pace.prompt_s, pace.decode_s) == (1.5, 3.0)


def test_a_second_attempt_begins_no_second_progress() -> None:
    pace = Pace()
    pace.accepted(1 * NS, 10, 0)
    pace.tokens(2 * NS)
    assert pace.accepted(3 * NS, 10, 5) is None
    pace.tokens(5 * NS)
    assert pace.prompt_s == 1.0

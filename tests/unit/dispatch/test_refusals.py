"""What an engine's refusal becomes when no other place takes the request either."""

from __future__ import annotations

import pytest
from fake_fleet import FakeFleet, plain, request_of

from saiserve.chat.events import AnswerFailed
from saiserve.dispatch.refusals import passing_error
from saiserve.engines.messages import RefusalReason, Refused
from saiserve.engines.simulated import Fault, FaultKind
from saiserve.errors import ErrorKind


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (RefusalReason.BUSY, ErrorKind.BUSY),
        (RefusalReason.DRAINING, ErrorKind.DRAINING),
        (RefusalReason.LOADING, ErrorKind.MODEL_UNAVAILABLE),
        (RefusalReason.NO_MODEL, ErrorKind.MODEL_UNAVAILABLE),
    ],
)
def test_only_a_busy_engine_is_called_busy(reason: RefusalReason, kind: ErrorKind) -> None:
    error = passing_error(Refused("r", reason))
    assert error.kind is kind
    assert error.row.status == 503
    assert ("busy" in error.message) == (kind is ErrorKind.BUSY)


def test_the_engine_s_words_and_time_reach_the_client() -> None:
    error = passing_error(Refused("r", RefusalReason.LOADING, "x is being loaded (42%)", retry_after_s=31.5))
    assert error.message == "the model cannot be served now: x is being loaded (42%); try again later"
    assert error.retry_after_s == 31.5
    assert passing_error(Refused("r", RefusalReason.BUSY)).retry_after_s == 1.0


@pytest.mark.autojump
@pytest.mark.parametrize(("kind", "told"), [(FaultKind.INTERNAL, "scripted"), (FaultKind.CRASH, "")])
async def test_why_an_engine_that_lives_on_failed_reaches_the_client_too(kind: FaultKind, told: str) -> None:
    fleet = FakeFleet(2, plain(faults=(Fault(kind, at_token=3),)))
    failure = (await fleet.ask(request_of()))[-1]
    assert isinstance(failure, AnswerFailed)
    assert failure.error.row.status == 500
    assert failure.error.message.partition(": ")[2] == told


@pytest.mark.autojump
@pytest.mark.parametrize("at_token", [0, 3])
async def test_what_fails_by_its_own_doing_is_the_clients_fault_and_is_tried_once(at_token: int) -> None:
    fleet = FakeFleet(3, plain(faults=(Fault(FaultKind.BAD_REQUEST, at_token=at_token),)))
    broken: list[bool] = []
    fleet.dispatcher._news.ended = lambda _candidate, *, is_broken: broken.append(is_broken)  # type: ignore[method-assign]
    failure = (await fleet.ask(request_of()))[-1]
    assert isinstance(failure, AnswerFailed)
    assert (failure.error.kind, failure.error.message) == (ErrorKind.INVALID_REQUEST, "scripted")
    assert failure.error.row.status == 400
    assert sum(fleet.starts.values()) == 1
    assert broken == [False], "the place is not to blame"

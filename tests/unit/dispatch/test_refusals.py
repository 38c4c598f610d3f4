"""What a refusal tells the client."""

from __future__ import annotations

import pytest

from saiserve.dispatch.refusals import final_error
from saiserve.engines.messages import RefusalReason, Refused
from saiserve.errors import ErrorKind


def test_a_prompt_that_is_too_long_keeps_its_numbers_for_each_clients_own_wording() -> None:
    error = final_error(Refused("r", RefusalReason.TOO_LONG, "too long", prompt_tokens=9_000, context_tokens=8_192))
    assert error is not None
    assert (error.kind, error.prompt_tokens, error.context_tokens) == (ErrorKind.CONTEXT_TOO_LONG, 9_000, 8_192)


@pytest.mark.parametrize(
    "reason", [RefusalReason.BUSY, RefusalReason.LOADING, RefusalReason.DRAINING, RefusalReason.NO_MODEL]
)
def test_what_another_place_may_answer_is_no_error_yet(reason: RefusalReason) -> None:
    assert final_error(Refused("r", reason)) is None


def test_a_refusal_without_words_names_its_reason() -> None:
    error = final_error(Refused("r", RefusalReason.BAD_SCHEMA))
    assert error is not None
    assert "bad_schema" in error.message

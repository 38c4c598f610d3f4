"""Lists of millions of numbers in a body: looked at as a whole, never one by one, and read as any other."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from saiserve import limits
from saiserve.api import body, prompts
from saiserve.api.embedding_inputs import inputs_of
from saiserve.api.prompts import TOKEN_MAX, is_row
from saiserve.errors import ApiError

MANY = list(range(50_000))


def test_a_flat_list_is_touched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[Any] = []
    real = body._without_nulls

    def without_nulls(value: Any, under: str = "") -> Any:
        looked_at.append(type(value))
        return real(value, under)

    monkeypatch.setattr(body, "_without_nulls", without_nulls)
    assert body.parse_object(msgspec.json.encode({"prompt": MANY, "rows": [MANY, "x"]})) == {
        "prompt": MANY,
        "rows": [MANY, "x"],
    }
    assert looked_at == [dict, list, list, list, str]


def test_what_is_inside_other_lists_is_read_as_ever() -> None:
    nested = b'{"a":[1,2,{"b":null,"c":[{"d":null}]}],"e":[[null,{"f":null}]],"g":[null,1]}'
    assert body.parse_object(nested) == {"a": [1, 2, {"c": [{}]}], "e": [[None, {}]], "g": [None, 1]}
    for deepest in (b"1", b'{"x":1}', b"[1]"):
        deep = b'{"a":' + b"[1," * limits.JSON_DEPTH_MAX + deepest + b"]" * limits.JSON_DEPTH_MAX + b"}"
        with pytest.raises(ApiError, match="nested deeper"):
            body.parse_object(deep)
    fits = limits.JSON_DEPTH_MAX - 2
    assert body.parse_object(b'{"a":' + b"[1," * fits + b"[1]" + b"]" * fits + b"}")


@pytest.mark.parametrize(
    ("given", "is_one"),
    [
        ([0], True),
        ([TOKEN_MAX, 0, "x"], True),
        (["x", 1], True),
        ([-1], False),
        ([TOKEN_MAX + 1], False),
        (["x", -1], False),
        ([1, ""], False),
        ([True], False),
        ([1, 2.0], False),
        ([1, None], False),
        ([1, [2]], False),
    ],
)
def test_a_row_is_tokens_and_texts(given: list[Any], is_one: bool) -> None:
    assert is_row(given) is is_one


async def test_a_row_of_tokens_alone_is_passed_on_as_it_is() -> None:
    nobody: Any = None
    row = tuple(MANY)
    assert await prompts.row_tokens(nobody, "m", row, like=nobody) is row
    (given,) = inputs_of(MANY)  # type: ignore[arg-type]
    assert given == row
    assert inputs_of([MANY, [1, "x"], "y"]) == (row, (1, "x"), "y")  # type: ignore[list-item]

"""What is to become vectors, in all its forms: texts, tokens, both in one row, llama-server's objects, and several at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from saiserve import limits
from saiserve.api.body import invalid
from saiserve.api.context import Api, Origin
from saiserve.api.prompts import Row, row_tokens

TokenId = Annotated[int, Meta(ge=0, lt=2**31)]


class InputText(msgspec.Struct):
    """A text part of an input; other kinds of parts are for models that see and hear, which make no vectors here."""

    type: Literal["text"]
    text: str


class InputObject(msgspec.Struct):
    """An input as llama-server also takes it: `prompt_string`, or text parts as messages have them."""

    prompt_string: str | None = None
    multimodal_data: Any = None
    content: list[InputText] | None = None


Given = str | list[str | TokenId | list[TokenId | str] | InputObject] | InputObject
"""A body's `input`. A list with a token in it is one input, any other list is several."""


def inputs_of(given: Given | None) -> tuple[str | Row, ...]:
    """Return the inputs, each a text or a row of tokens and texts.

    Raises:
        ApiError: 400 for none, too many, or an empty one; `param` names it.
    """
    if given is None:
        raise invalid("input: this field is required.", "input")
    if not isinstance(given, list):
        return (_input(given, "input"),)
    if int in set(map(type, given)):
        inputs: tuple[str | Row, ...] = (_row(given, "input"),)
    elif given and len(given) <= limits.EMBEDDING_INPUTS_MAX:
        inputs = tuple(_input(item, f"input[{index}]") for index, item in enumerate(given))
    else:
        raise invalid(f"input: 1 to {limits.EMBEDDING_INPUTS_MAX} inputs are taken.", "input")
    rows = [item for item in inputs if not isinstance(item, str) and str in set(map(type, item))]
    if sum(isinstance(piece, str) for row in rows for piece in row) > limits.PROMPTS_MAX:
        raise invalid(f"input: at most {limits.PROMPTS_MAX} texts are taken in rows of tokens.", "input")
    return inputs


async def as_engine_takes(
    api: Api, model: str, inputs: Sequence[str | Row], origin: Origin
) -> tuple[str | tuple[int, ...], ...]:
    """Return the inputs with every row all tokens; texts among them are made tokens by the model's own tokenizer."""
    return tuple(
        [item if isinstance(item, str) else await row_tokens(api, model, item, like=origin) for item in inputs]
    )


def _input(item: Any, at: str) -> str | Row:
    if isinstance(item, list):
        return _row(item, at)
    if isinstance(item, InputObject):
        item = _text(item, at)
    if not item:
        raise invalid(f"{at}: must not be empty.", at)
    return str(item)


def _text(item: InputObject, at: str) -> str:
    """Return an object's text; parts are joined as they are, as those of messages."""
    if item.multimodal_data:
        raise invalid(f"{at}.multimodal_data: only text becomes vectors.", f"{at}.multimodal_data")
    if item.prompt_string is not None:
        return item.prompt_string
    if item.content is None:
        raise invalid(f"{at}: an object has prompt_string or content.", at)
    return "".join(part.text for part in item.content)


def _row(items: list[Any], at: str) -> Row:
    if not items:
        raise invalid(f"{at}: must not be empty.", at)
    for index, item in enumerate(() if set(map(type, items)) == {int} else items):
        if not isinstance(item, int | str) or item == "":
            raise invalid(f"{at}[{index}]: beside a token, a token or a text that is not empty.", f"{at}[{index}]")
    return tuple(items)

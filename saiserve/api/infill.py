"""Filling in: the prompt that models trained for it expect, found by asking the model's own vocabulary for the marks.

Prefix, suffix, middle (Bavarian et al. 2022), with other files before them where the model knows a file mark
(Qwen2.5-Coder's repository pattern).
"""

from __future__ import annotations

from dataclasses import dataclass

from saiserve.api.context import Api, Origin
from saiserve.api.native import InfillBody
from saiserve.api.prompts import PlainPrompt, tokens_of
from saiserve.chat.request import GenerationRequest
from saiserve.errors import ApiError, ErrorKind


@dataclass(frozen=True, slots=True)
class Marks:
    """How one family of models writes prefix, suffix and middle."""

    prefix: str
    suffix: str
    middle: str

    def around(self, before: str, behind: str) -> str:
        """Return the prompt for what stands between two texts."""
        return f"{self.prefix}{before}{self.suffix}{behind}{self.middle}"


FAMILIES = (
    Marks("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    Marks("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    Marks("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    Marks("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    Marks("[PREFIX]", "[SUFFIX]", "[MIDDLE]"),
    Marks("<PRE>", "<SUF>", "<MID>"),
)
FILE_MARKS = ("<|file_sep|>", "<file_sep>")
SNIPPET_MARK = "\n\n--- snippet ---\n\n"
"""Stands between files for models that know no file mark."""


async def infill_prompt(api: Api, origin: Origin | GenerationRequest, model: str, body: InfillBody) -> PlainPrompt:
    """Return the prompt for a body.

    Raises:
        ApiError: 501 when the model was not trained for it.
    """
    marks = await marks_of(api, origin, model)
    around = marks.around(body.input_prefix + body.prompt, body.input_suffix)
    if not body.input_extra:
        return PlainPrompt(text=around)
    mark = ""
    for known in FILE_MARKS:
        mark = mark or (known if await _is_token(api, origin, model, known) else "")
    files = "".join(
        f"{mark}{file.filename}\n{file.text}" if mark else f"{SNIPPET_MARK}{file.text}" for file in body.input_extra
    )
    return PlainPrompt(text=f"{files}{mark}filename\n{around}" if mark else f"{files}{around}")


async def marks_of(api: Api, origin: Origin | GenerationRequest, model: str) -> Marks:
    """Return the marks the model knows as tokens.

    Raises:
        ApiError: 501 when it knows none.
    """
    for marks in FAMILIES:
        if await _is_token(api, origin, model, marks.prefix) and await _is_token(api, origin, model, marks.middle):
            return marks
    raise ApiError(ErrorKind.NOT_SUPPORTED, f"The model {model} was not trained to fill in: it has no tokens for it.")


async def _is_token(api: Api, origin: Origin | GenerationRequest, model: str, mark: str) -> bool:
    return len(await tokens_of(api, model, mark, like=origin)) == 1

"""Literals made of a vocabulary's own marks: whatever is drawn under the mask is taken, ends, and spells the literal."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saiserve.engines.llamacpp.constraint import ConstraintCompiler
from saiserve.engines.llamacpp.vocabulary import Vocabulary
from saiserve.engines.llamacpp.weights import LlamaModel
from saiserve.engines.messages import Constraint
from tests.fixtures import marked_models
from tests.fixtures.marked_models import BRACKETS, CALL, HTML, MARKED, SILENT, THOUGHT

PIECES = (
    *CALL,
    *THOUGHT,
    *BRACKETS,
    *HTML,
    SILENT,
    "<eos>",
    "<|im_end|>",
    "<|im_start|>",
    "<",
    ">",
    "a",
    " ",
    "é",
    "\\",
    '"',
)
STEPS_MAX = 2_000

literals = st.lists(st.sampled_from(PIECES), max_size=5).map("".join)


@cache
def compiler(name: str) -> tuple[Vocabulary, ConstraintCompiler]:
    model = LlamaModel(marked_models.build(name, Path(mkdtemp())))
    vocabulary = Vocabulary(model.vocab)
    return vocabulary, ConstraintCompiler(vocabulary, model.vocab)


def drawn(name: str, constraint: Constraint, seed: int) -> bytes:
    """What comes when any allowed token is as good as another; no control token but an end is ever allowed."""
    vocabulary, compile_for = compiler(name)
    matcher = compile_for.compile(constraint, ())
    random = np.random.default_rng(seed)
    data = b""
    for _ in range(STEPS_MAX):
        allowed = np.flatnonzero(~matcher.forbidden())
        assert vocabulary.end_tokens.issuperset(set(map(int, allowed)) & vocabulary.control_tokens.keys())
        token = int(random.choice(allowed))
        assert matcher.allows(token)
        if token in vocabulary.end_tokens:
            return data
        matcher.accept(token)
        data += vocabulary.piece(token)
        if matcher.is_complete:
            return data
    raise AssertionError("no end")


@pytest.mark.parametrize("name", list(MARKED))
@given(texts=st.lists(literals, min_size=1, max_size=3, unique=True), seed=st.integers(0, 2**32 - 1))
def test_literals_come_out_whole(name: str, texts: list[str], seed: int) -> None:
    assert json.loads(drawn(name, Constraint("json_schema", json.dumps({"const": texts[0]})), seed)) == texts[0]
    assert json.loads(drawn(name, Constraint("json_schema", json.dumps({"enum": texts})), seed)) in texts
    keys = {"type": "object", "properties": {key: {"const": key} for key in texts}, "required": texts}
    closed = json.dumps({**keys, "additionalProperties": False})
    assert json.loads(drawn(name, Constraint("json_schema", closed), seed)) == {key: key for key in texts}
    if texts[0]:
        assert drawn(name, Constraint("lark", f"start: {json.dumps(texts[0])}"), seed) == texts[0].encode()

"""Output that must match: JSON Schema, JSON object, regular expression or Lark grammar, through llguidance.

A constraint that cannot be enforced is refused, naming the part; nothing ever runs unconstrained instead. Compiling
may take a second, so the worker does it on a thread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import llguidance
import numpy as np
from numpy.typing import NDArray

from saiserve.engines.llamacpp import native
from saiserve.engines.llamacpp.compile_trial import CompileTrial
from saiserve.engines.llamacpp.schema_cost import is_heavy, schema_fault
from saiserve.engines.llamacpp.schema_references import endless_reference
from saiserve.engines.llamacpp.vocabulary import Vocabulary
from saiserve.engines.messages import Constraint

BODY_CHARACTERS_MAX = 256 * 1024
"""Longest schema or grammar."""
SCHEMA_DEPTH_MAX = 64
WHITESPACE = r"[\x20\x0A\x0D\x09]{1,40}"
"""Between JSON tokens; bounded, because a small model can go on with blanks for ever."""

REASON_CHARACTERS_MAX = 400
INTERNALS = re.compile(r"<(?:backtrace|non-verbose/)>.*", re.DOTALL)
"""What llguidance says of itself behind its reason."""
NO_TEXT = "NoExtensionBias"
"""Its word for a grammar in which nothing can come next."""
SPECIAL_PREFIX = b"\xff"
"""Tells llguidance that a token is never part of text. Control tokens get it, so that no text of a schema can ask for
one; tokens a model's makers added as text (`<tool_call>` in Qwen's vocabulary, `<table>` in Gemma's) are text."""

NOTHING = "OWN_NOTHING"
"""Name of a lexeme that no text matches."""

LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 2_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_items_in_row": 5_000,
    "max_lexer_states": 100_000,
    "max_grammar_size": 200_000,
    "verbose_errors": False,
}
"""llguidance's bounds on compile work, work per token and memory."""
OWN_ENDS: tuple[tuple[tuple[str, ...], tuple[str, ...], str], ...] = (
    (
        ("parsertoocomplex", "too many items", "current row has"),
        ("step_max_items", "max_items_in_row"),
        "its rules can be read in too many ways at once: make them unambiguous, or bound what repeats",
    ),
    (
        ("lexertoocomplex", "lexer error"),
        ("step_lexer_fuel", "max_lexer_states"),
        "its patterns are too large together: shorten what repeats in them, or make rules of their parts",
    ),
    (("noextension",), (), ""),
)
"""Ends that a constraint comes to by itself: llguidance's words for them in small letters, limits of `LIMITS` that may have
been hit, and the mend. Its reason for most is "InternalError", so its sentence is looked at as well."""


class ConstraintError(Exception):
    """The constraint cannot be enforced; the message is for the client and names the part."""


class ConstraintBroken(Exception):  # noqa: N818
    """The matcher gave up in the middle of an answer; `is_own`: by the constraint's doing (a work limit of one step)."""

    def __init__(self, detail: str, *, is_own: bool) -> None:
        super().__init__(detail)
        self.is_own = is_own


class Matcher:
    """The grammar state of one answer."""

    def __init__(self, matcher: llguidance.LLMatcher, tokenizer: llguidance.LLTokenizer, vocabulary_size: int) -> None:
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._size = vocabulary_size
        self._words = np.zeros((vocabulary_size + 31) // 32, np.uint32)

    def forbidden(self) -> NDArray[np.bool_]:
        """True for each token that may not come next.

        Raises:
            ConstraintBroken: a work limit was hit.
        """
        self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
        _check(self._matcher)
        np.invert(self._words, out=self._words)
        forbidden = np.unpackbits(self._words.view(np.uint8), count=self._size, bitorder="little").view(np.bool_)
        if np.count_nonzero(forbidden) == self._size - 1:
            self._mend(forbidden, int(np.argmin(forbidden)))
        return forbidden

    def _mend(self, forbidden: NDArray[np.bool_], token: int) -> None:
        """Forced text is tokenised by llama.cpp, which may answer with a token that is no text: spell it without."""
        if self.allows(token):
            return
        text = self._matcher.compute_ff_bytes().decode("utf-8", "ignore")
        spelled = self._tokenizer.greedy_tokenize(text)[:1]
        if spelled and self.allows(spelled[0]):
            forbidden[token], forbidden[spelled[0]] = True, False

    def allows(self, token: int) -> bool:
        """Whether one token may come next."""
        return bool(self._matcher.validate_tokens([token]) == 1)

    def accept(self, token: int) -> None:
        """A token joined the answer.

        Raises:
            ConstraintBroken: it does not fit or a work limit was hit.
        """
        self._matcher.consume_token(token)
        _check(self._matcher)

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow."""
        return bool(self._matcher.is_stopped())


class ConstraintCompiler:
    """Compiles constraints for one vocabulary. Nothing in it changes, so threads may share it.

    Making one builds the trie that all constraints share: 0.3 s at 49k tokens, 2 s at 262k, so it is done at load.
    """

    def __init__(self, vocabulary: Vocabulary, vocab_handle: Any) -> None:
        self._vocabulary = vocabulary
        self._vocab_handle = vocab_handle
        self._read = {token: text for token, text in vocabulary.control_tokens.items() if vocabulary.piece(token)}
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._fault = ""
        try:
            self._tokenizer = self._build_tokenizer()
        except (ValueError, RuntimeError) as error:  # the model can still answer unconstrained
            self._fault = f"this model's vocabulary cannot be constrained: {error}"
        self._limits = llguidance.LLParserLimits(**LIMITS)
        self._trial = CompileTrial(LIMITS)

    def compile(self, constraint: Constraint, answer: tuple[int, ...]) -> Matcher:
        """A matcher that has taken the answer's tokens so far.

        Raises:
            ConstraintError: it cannot be enforced, or the tokens so far do not match it.
        """
        if len(constraint.body) > BODY_CHARACTERS_MAX:
            raise ConstraintError(f"it has {len(constraint.body)} characters; {BODY_CHARACTERS_MAX} are allowed")
        make = GRAMMARS.get(constraint.kind)
        if make is None:
            raise ConstraintError(f"kind {constraint.kind!r} is not one of {', '.join(GRAMMARS)}")
        if self._tokenizer is None:
            raise ConstraintError(self._fault)
        grammar = make(constraint.body + own_rules(constraint.markers, self._read))
        fault = self._trial.fault(grammar) if is_heavy(constraint.body) else None
        if fault is not None:
            raise ConstraintError(fault)
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise ConstraintError(_reason(matcher))
        if answer and not matcher.consume_tokens(list(answer)):
            raise ConstraintError("the tokens to resume from do not match it")
        made = Matcher(matcher, self._tokenizer, self._vocabulary.size)
        self._check_beginning(made)
        return made

    @staticmethod
    def _check_beginning(matcher: Matcher) -> None:
        """Refuse what no text can follow, or what is too much work at the first token; also done for it then."""
        if matcher.is_complete:
            return
        try:
            if matcher.forbidden().all():
                raise ConstraintError("no token of this vocabulary can be the next one")
        except ConstraintBroken as error:
            raise ConstraintError(f"no answer can begin as it wants: {error}") from error

    def _build_tokenizer(self) -> llguidance.LLTokenizer:
        vocabulary = self._vocabulary
        special = vocabulary.control_tokens.keys() | vocabulary.end_tokens
        spellings = [
            (SPECIAL_PREFIX if token in special else b"") + vocabulary.spelling(token)
            for token in range(vocabulary.size)
        ]
        return llguidance.LLTokenizer.from_llamacpp(
            tokens=spellings,
            vocab_ptr=self._vocab_handle,
            tokenize_fptr=native.address_of("llama_tokenize"),
            eos_token=sorted(vocabulary.end_tokens) or None,
            slices=None,
        )


def own_rules(markers: tuple[str, ...], controls: dict[int, str]) -> str:
    """Rules of a grammar with markers, for a vocabulary of whose control tokens parsers read these: see `Constraint`."""
    if not markers:
        return ""
    lines = [f"others: {_tokens([token for token, text in controls.items() if text not in markers])}"]
    for place, marker in enumerate(markers):
        own = [token for token, text in controls.items() if text == marker]
        lines += [
            f"token{place}: {_tokens(own)}",
            f"marker{place}: {_tokens(own) if own else json.dumps(marker)}",
        ]
    return "\n".join([*lines, f"{NOTHING}: /a/ & /b/", ""])


def _tokens(ids: list[int]) -> str:
    return f"<[{','.join(map(str, sorted(ids)))}]>" if ids else NOTHING


def _json_schema(body: str) -> str:
    try:
        schema = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ConstraintError(f"the schema is not JSON: {error}") from error
    if not isinstance(schema, dict):
        raise ConstraintError("the schema is not a JSON object")
    if _depth(schema) > SCHEMA_DEPTH_MAX:
        raise ConstraintError(f"the schema is nested deeper than {SCHEMA_DEPTH_MAX}")
    fault = schema_fault(schema) or endless_reference(schema)
    if fault is not None:
        raise ConstraintError(fault)
    schema.pop("x-guidance", None)
    options: Any = {"whitespace_pattern": WHITESPACE, "lenient": False, "coerce_one_of": True}
    try:
        return str(llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=options))
    except ValueError as error:
        raise ConstraintError(str(error)) from error


def _json_object(_body: str) -> str:
    return _json_schema('{"type": "object"}')


GRAMMARS: dict[str, Callable[[str], str]] = {
    "json_schema": _json_schema,
    "json_object": _json_object,
    "regex": llguidance.LLMatcher.grammar_from_regex,
    "lark": llguidance.LLMatcher.grammar_from_lark,
}


def _depth(value: Any) -> int:
    deepest, level = 0, [value]
    while level and deepest <= SCHEMA_DEPTH_MAX:
        deepest += 1
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
        ]
    return deepest


def _check(matcher: llguidance.LLMatcher) -> None:
    if not matcher.is_error():
        return
    detail = f"the constraint cannot be followed further: {_reason(matcher)}"
    said = f"{matcher.stop_reason()} {matcher.get_error()}".lower()
    for words, names, mend in OWN_ENDS:
        if any(word in said for word in words):
            limits = ", ".join(f"{name} {LIMITS[name]}" for name in names)
            raise ConstraintBroken(f"{detail} ({limits}); {mend}" if names else detail, is_own=True)
    raise ConstraintBroken(detail, is_own=False)


def _reason(matcher: llguidance.LLMatcher) -> str:
    told = INTERNALS.sub("", str(matcher.get_error())).replace(NO_TEXT, "no text can follow")
    text = " ".join(told.split())
    return text[:REASON_CHARACTERS_MAX] or "llguidance gave no reason"

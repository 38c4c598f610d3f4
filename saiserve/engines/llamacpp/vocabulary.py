"""Text to token ids and back, for one model; content that spells a control token stays text.

llama.cpp turns the text of a control token into that token when asked to (`parse_special`), and cannot know which part
of a prompt is the template's and which the user's. So a splitting character is put inside every control token's text
found in content (`defuse`) before the template is rendered; afterwards the prompt is cut there, the pieces are
tokenised apart, and the broken markers are plain text. Ordinary prompts are tokenised whole, exactly as llama.cpp does.
"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import llama_cpp
import numpy as np

from saiserve.engines.llamacpp.marker_pattern import starts_of

ATTRIBUTE_UNKNOWN, ATTRIBUTE_CONTROL = 1 << 0, 1 << 3
ATTRIBUTES_STRIP = 1 << 7 | 1 << 8
"""llama_token_attr bits; the last two say that white space on the left or right of a token is dropped."""

WHOLE_TEXT_KINDS = frozenset(
    (llama_cpp.LLAMA_VOCAB_TYPE_SPM, llama_cpp.LLAMA_VOCAB_TYPE_BPE, llama_cpp.LLAMA_VOCAB_TYPE_RWKV)
)
"""Kinds of vocabulary whose tokens spell all of a text; others drop accents, or have one token for a word unknown."""

UTF8_BYTES_MAX = 4
"""Of one character."""
SPELLING_BYTES = 256
"""Room for a token's bytes, asked for again where one has more."""

PRIVATE_USE_FIRST, PRIVATE_USE_LAST = 0xF0000, 0xFFFFD
"""Private-use characters (Unicode, plane 15) to choose the splitting character from."""

SHOWN_CONTROL = re.compile(
    r"</?(think|thinking|reasoning|tool_call|tool_calls|tool_response|function|parameter)[^>]*>"
    r"|<\|(channel|message|start|end|call|constrain|return|python_tag|tool_call\w*|START_\w+|END_\w+)\|>"
    r"|\[/?(TOOL_CALLS|TOOL_RESULTS|ARGS|CALL_ID|THINK)\]"
    r"|<｜tool▁\w+｜>"
)
"""Control tokens that parsers at the entry node read; other control tokens give no bytes."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much there is of a text."""

    size: int
    """Bytes."""
    black: int
    """Those that are no white space."""
    words: int
    """Runs of those. The first byte of each is in one token, so a token begins at most as many as it has itself."""


WHITE_SPACE = np.zeros(256, np.bool_)
"""By byte: what `bytes.split` takes for white space, and llama.cpp too."""
WHITE_SPACE[[*b" \t\n\r\v\f"]] = True


def extent_of(data: bytes) -> Extent:
    """Measure a long text, which `bytes.split` would make an object of each word of."""
    is_space = WHITE_SPACE[np.frombuffer(data, np.uint8)]
    begins = int(np.count_nonzero(is_space[:-1] & ~is_space[1:])) + int(len(data) > 0 and not is_space[0])
    return Extent(len(data), len(data) - int(np.count_nonzero(is_space)), begins)


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """Ids with a part to play; −1 where the model has none."""

    bos: int
    eos: int
    adds_bos: bool
    sep: int = -1
    adds_eos: bool = False
    adds_sep: bool = False


class Vocabulary:
    """The tokenizer of one loaded model. Cheap to read from several threads."""

    def __init__(self, vocab: llama_cpp.llama_vocab_p) -> None:
        self._vocab = vocab
        self.size = int(llama_cpp.llama_vocab_n_tokens(vocab))
        self.special = SpecialIds(
            bos=int(llama_cpp.llama_vocab_bos(vocab)),
            eos=int(llama_cpp.llama_vocab_eos(vocab)),
            adds_bos=bool(llama_cpp.llama_vocab_get_add_bos(vocab)),
            sep=int(llama_cpp.llama_vocab_sep(vocab)),
            adds_eos=bool(llama_cpp.llama_vocab_get_add_eos(vocab)),
            adds_sep=bool(llama_cpp.llama_vocab_get_add_sep(vocab)),
        )
        self._pieces: dict[int, bytes] = {}
        ends: list[int] = []
        controls: dict[int, str] = {}
        self._drops_space = False
        """Whether white space beside some tokens is in none."""
        for token in range(self.size):
            attributes = llama_cpp.llama_vocab_get_attr(vocab, token)
            self._drops_space |= bool(attributes & ATTRIBUTES_STRIP)
            if attributes & (ATTRIBUTE_CONTROL | ATTRIBUTE_UNKNOWN):
                controls[token] = llama_cpp.llama_vocab_get_text(vocab, token).decode("utf-8", "replace")
                if llama_cpp.llama_vocab_is_eog(vocab, token):
                    ends.append(token)
        self.end_tokens = frozenset(ends) | ({self.special.eos} if self.special.eos >= 0 else frozenset())
        """Tokens that end an answer."""
        self.control_tokens = controls
        """Control and unknown tokens' ids with their texts."""

    def text_of(self, token: int) -> str:
        """A token's name in the vocabulary; empty for −1."""
        return llama_cpp.llama_vocab_get_text(self._vocab, token).decode("utf-8", "replace") if token >= 0 else ""

    def tokenise(self, text: str, *, special: bool, add_ends: bool = False) -> list[int]:
        """Token ids of a text. `special`: control tokens' texts become these tokens; `add_ends`: BOS/EOS as trained."""
        data = text.encode("utf-8", "replace")
        capacity = len(data) + 8
        tokens = (llama_cpp.llama_token * capacity)()
        count = llama_cpp.llama_tokenize(self._vocab, data, len(data), tokens, capacity, add_ends, special)
        if count < 0:
            capacity = -count
            tokens = (llama_cpp.llama_token * capacity)()
            count = llama_cpp.llama_tokenize(self._vocab, data, len(data), tokens, capacity, add_ends, special)
        return list(tokens[: max(count, 0)])

    def tokenise_prompt(self, text: str, split: str = "", *, special: bool = True) -> list[int]:
        """Ids of a whole prompt, BOS in front where the model wants one and the text does not begin with it.

        Args:
            text: a rendered template or a raw prompt.
            split: the character that `defuse` put in; pieces between are tokenised apart.
            special: whether control tokens' texts become these tokens.
        """
        tokens = self.tokenise_pieces(text, split, special=special)
        if self.special.adds_bos and self.special.bos >= 0 and tokens[:1] != [self.special.bos]:
            tokens.insert(0, self.special.bos)
        return tokens

    def tokenise_pieces(self, text: str, split: str = "", *, special: bool = True) -> list[int]:
        """The same without a BOS, for what goes on with a prompt."""
        pieces = [piece for piece in (text.split(split) if split else [text]) if piece]
        return [token for piece in pieces for token in self.tokenise(piece, special=special)]

    def piece(self, token: int) -> bytes:
        """The bytes a token adds to an answer; none for end tokens and for control tokens nobody parses."""
        known = self._pieces.get(token)
        if known is None:
            if not 0 <= token < self.size:
                raise ValueError(f"token {token} is outside [0, {self.size})")
            text = self.control_tokens.get(token)
            shown = text is None or (token not in self.end_tokens and SHOWN_CONTROL.fullmatch(text) is not None)
            known = self._pieces[token] = self.spelling(token) if shown else b""
        return known

    def spelling(self, token: int) -> bytes:
        """A token's bytes, control tokens included; none for an image's row.

        Each call has a buffer of its own: texts are read on one thread while another draws.
        """
        if token >= self.size:
            return b""
        buffer = ctypes.create_string_buffer(SPELLING_BYTES)
        count = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, SPELLING_BYTES, 0, True)
        if count < 0:
            buffer = ctypes.create_string_buffer(-count)
            count = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, -count, 0, True)
        return buffer.raw[:count]

    def tokens_least(self, text: str) -> int:
        """Tokens the text has at least, without tokenising it: 5 ms for a megabyte where that takes 0.3 s."""
        most = self._most_of_a_token
        if most is None:
            return 0
        extent = extent_of(text.encode("utf-8", "replace"))
        return max(-(-self._sure(extent) // self._sure(most)), -(-extent.words // most.words))

    def _sure(self, extent: Extent) -> int:
        """Bytes of it that are in tokens for certain."""
        return extent.black if self._drops_space else extent.size

    @functools.cached_property
    def _most_of_a_token(self) -> Extent | None:
        """What one token stands for at most; None where there is no telling."""
        if llama_cpp.llama_vocab_type(self._vocab) not in WHOLE_TEXT_KINDS:
            return None
        size = black = UTF8_BYTES_MAX  # of a character that becomes the unknown token, whatever that is spelled like
        words = 1
        for spelling in map(self.spelling, range(self.size)):
            parts = spelling.split()
            size, black = max(size, len(spelling)), max(black, sum(map(len, parts)))
            words = max(words, len(parts))
        return Extent(size, black, words)

    def breaks(self, strings: tuple[str, ...]) -> Callable[[int], bool]:
        """A test for tokens that contain one of the strings."""
        needles = tuple(text.encode() for text in strings if text)
        return functools.cache(lambda token: any(needle in self.spelling(token) for needle in needles))

    @functools.cached_property
    def markers(self) -> Markers:
        """The texts that must not become tokens out of content."""
        return Markers(self.control_tokens.values())


class Markers:
    """Finds control tokens' texts, and beginnings of them, in content."""

    def __init__(self, texts: Iterable[str]) -> None:
        markers = {text for text in texts if len(text) > 1}
        self._firsts = {text[0] for text in markers}
        self._starts = {text[:length] for text in markers for length in range(1, len(text))}
        self._length_max = max(map(len, markers), default=0)
        self._pattern = re.compile(starts_of(markers)) if markers else None

    def defuse(self, text: str, split: str) -> str:
        """The text with `split` put behind the first character of every marker, however they overlap.

        Also behind an end that begins a marker, which what the template puts next could complete. One pass, whatever
        the text is made of.
        """
        if self._pattern is None:
            return text
        text = self._pattern.sub(rf"\g<0>{split}", text)
        return text + split if self._ends_open(text) else text

    def _ends_open(self, text: str) -> bool:
        tail = text[-self._length_max :]
        return any(tail[at] in self._firsts and tail[at:] in self._starts for at in range(len(tail)))


def unused_character(texts: Iterable[str]) -> str:
    """A private-use character that occurs in none of the texts."""
    taken = {character for text in texts for character in set(text) if ord(character) >= PRIVATE_USE_FIRST}
    return next(chr(code) for code in range(PRIVATE_USE_FIRST, PRIVATE_USE_LAST + 1) if chr(code) not in taken)

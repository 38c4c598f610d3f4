"""The simulated model: a template, a tokenizer, and answers that anyone who knows prompt and seed can compute."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from blake3 import blake3

from saiserve.engines.messages import FinishReason, Generate, Prompt, TokenLogprob
from saiserve.engines.simulated_script import Rule, scripted, scripted_piece

_WORDS = (" the", " café", " a", " naïve", " 😀", " fleet", " über", " node", " résumé", " of", " 日本", " streams")
_PIECE_BYTES = 4
_EMBEDDING_SIZE = 16


class SimulatedAnswer:
    """The one answer to (prompt, seed): what comes next and when it ends."""

    def __init__(
        self, prompt: Sequence[int], request: Generate, answer_tokens: int, script: Sequence[Rule] = ()
    ) -> None:
        sampling = request.sampling
        seed = 0 if sampling.temperature == 0 else sampling.seed
        self._key = blake3(repr((tuple(prompt), seed)).encode()).digest()
        drawn = 8 + int.from_bytes(self._key[:2], "big") % 121
        self._length = None if sampling.ignore_eos else answer_tokens or drawn
        self._said = scripted(script, render(request.prompt)) if script else None
        if self._said is not None:
            self._length = len(self._said)
        self._stops = tuple(stop.encode() for stop in request.stop)
        self._wants_logprobs = sampling.logprobs is not None

    def next(self, tokens: Sequence[int]) -> int:
        """The token after these; a function of the prompt, the seed, the position and the last token."""
        if self._said is not None:
            return self._said[len(tokens)]
        if tokens and tokens[-1] % 2 == 0:
            return tokens[-1] + 1
        last = tokens[-1] if tokens else -1
        draw = blake3(f"{len(tokens)}:{last}".encode(), key=self._key).digest(length=4)
        return 2 * (int.from_bytes(draw, "big") % len(_WORDS))

    def ending(self, tokens: Sequence[int], text: bytes, most: int) -> tuple[FinishReason, str | None] | None:
        """Why the answer is complete with these tokens, None while it is not."""
        for stop in self._stops:
            if stop in text:
                return FinishReason.STOP_STRING, stop.decode()
        if self._length is not None and len(tokens) >= self._length:
            return FinishReason.STOP, None
        return (FinishReason.LENGTH, None) if len(tokens) >= most else None

    def logprobs(self, token: int) -> tuple[TokenLogprob, ...] | None:
        """Made-up log-probabilities, when the request wants any."""
        return (TokenLogprob(token, piece_of(token), -0.5),) if self._wants_logprobs else None


def piece_of(token: int) -> bytes:
    """The bytes of an answer's token: the first or second part of a word, cut inside a character where it has one."""
    said = scripted_piece(token)
    if said is not None:
        return said
    word = _WORDS[token // 2].encode()
    wide = next((at + 1 for at, byte in enumerate(word) if byte >= 0xC0), len(word) // 2)
    return word[wide:] if token % 2 else word[:wide]


def render(prompt: Prompt) -> str:
    """The prompt as the simulated template writes it."""
    if prompt.text is not None:
        return prompt.text
    if prompt.tokens is not None:
        return "".join(f"<{token}>" for token in prompt.tokens)
    turns = [f"<{message.get('role')}>{_content(message)}\n" for message in prompt.messages or ()]
    tools = "".join(f"<tool>{tool}\n" for tool in prompt.tools)
    return tools + "".join(turns) + ("<assistant>" if prompt.add_generation_prompt else "")


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    return content if isinstance(content, str) else "" if content is None else repr(content)


def tokenize(prompt: Prompt) -> tuple[int, ...]:
    """Four bytes of the rendered prompt to a token; token prompts stay as they are."""
    if prompt.tokens is not None:
        return prompt.tokens
    return tuple(int.from_bytes(piece, "big") for piece in pieces(render(prompt).encode()))


def pieces(data: bytes) -> tuple[bytes, ...]:
    """The bytes of the prompt's tokens."""
    return tuple(data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES))


def vector(item: str | tuple[int, ...]) -> bytes:
    """An embedding, little-endian float32, that depends on the input alone."""
    digest = blake3(repr(item).encode()).digest(length=2 * _EMBEDDING_SIZE)
    numbers = (int.from_bytes(digest[at : at + 2], "big") / 32768 - 1 for at in range(0, len(digest), 2))
    return struct.pack(f"<{_EMBEDDING_SIZE}f", *numbers)


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many leading tokens two prompts share."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))

"""Answers a simulated model is told to give: rules read from a file, the first that fits the prompt speaks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from saiserve.errors import SettingsError

_SAID = 1 << 26
"""First token of scripted text: two bits above it say how many bytes follow in the lower 24."""
_PIECE_BYTES = 3


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to say to prompts that hold all of these texts."""

    say: str
    when: tuple[str, ...] = ()


def read_script(path: str) -> tuple[Rule, ...]:
    """Read the rules, a JSON array.

    Raises:
        SettingsError: there is no such file, or it is something else.
    """
    try:
        return msgspec.json.decode(Path(path).expanduser().read_bytes(), type=tuple[Rule, ...])
    except (OSError, msgspec.DecodeError) as error:
        raise SettingsError(f'simulated script {path}: {error}; write [{{"when": ["…"], "say": "…"}}]') from error


def scripted(script: Sequence[Rule], prompt: str) -> tuple[int, ...] | None:
    """The tokens of the answer to a rendered prompt; None when no rule fits. Pieces end inside characters."""
    for rule in script:
        if all(text in prompt for text in rule.when):
            data = rule.say.encode()
            pieces = (data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES))
            return tuple(_SAID | len(piece) << 24 | int.from_bytes(piece, "big") for piece in pieces)
    return None


def scripted_piece(token: int) -> bytes | None:
    """The bytes of a token of scripted text; None for other tokens."""
    if token < _SAID:
        return None
    return (token & 0xFFFFFF).to_bytes(_PIECE_BYTES, "big")[_PIECE_BYTES - (token >> 24 & 3) :]

"""Prompts out of plain words, each drawn from a seed, so that both servers read the same and no round reads an old one."""

from __future__ import annotations

import random

WORDS = (  # noqa: SIM905
    "the river runs past old stone houses where people keep small gardens and talk about weather bread music and long "
    "winters while children count boats birds and clouds under a bridge that nobody remembers building but everyone "
    "crosses on the way to market with baskets of apples cheese paper lamps clay cups rope salt honey seeds and letters "
    "from distant towns because trade brings news and news brings questions about roads taxes maps engines doctors "
    "schools poems laws tools fields cattle rain light glass iron wool trains ships islands deserts forests mountains"
).split()

Messages = list[dict[str, str]]


def text(words: int, *seed: object) -> str:
    """So many words, the same for the same seed."""
    draw = random.Random(repr(seed))
    return " ".join(draw.choices(WORDS, k=words))


def user(words: int, *seed: object) -> Messages:
    """A chat of one question."""
    return [{"role": "user", "content": text(words, *seed)}]


def behind(system: str, words: int, *seed: object) -> Messages:
    """One question behind a system prompt."""
    return [{"role": "system", "content": system}, *user(words, *seed)]

"""Messages only a supervisor and its engine process exchange, beside those of saiserve/engines/messages.py."""

from __future__ import annotations

from typing import Any

import msgspec

from saiserve.engines.llamacpp.settings import EngineSettings
from saiserve.engines.messages import (
    Accepted,
    Cancel,
    Count,
    Counted,
    Embed,
    Embedded,
    Failed,
    Finished,
    Generate,
    Heartbeat,
    Progress,
    Refused,
    Tokens,
)


class Configure(msgspec.Struct, frozen=True, array_like=True, tag="configure"):
    """The first message to the process: load this."""

    settings: EngineSettings


class Loading(msgspec.Struct, frozen=True, array_like=True, tag="loading"):
    """Sign of life while loading; `fraction` of the weights read, 0..1."""

    fraction: float


class ModelFacts(msgspec.Struct, frozen=True, array_like=True):
    """What loading found out."""

    architecture: str
    family: str
    """full, window or recurrent (see kv.Family)."""
    parameters: int
    vocabulary_size: int
    context_tokens: int
    context_trained: int
    cells: int
    lanes: int
    threads: int
    embedding_size: int
    window: int
    prefill_rate: float
    decode_rate: float
    template_caps: dict[str, bool] = {}
    """What the chat template can take, by llama-server's names; empty without one."""
    reencoding: str = ""
    """What types the weights are in now, and why; empty where those of the file were never in question."""


class Loaded(msgspec.Struct, frozen=True, array_like=True, tag="loaded"):
    """The model is ready."""

    facts: ModelFacts


class LoadFailed(msgspec.Struct, frozen=True, array_like=True, tag="load_failed"):
    """The model cannot be served; one sentence that names file and reason. The process ends."""

    detail: str


class EngineLoadError(Exception):
    """The model cannot be served; one sentence that names the file and the reason. `LoadFailed` carries it across."""


class TierHoldings(msgspec.Struct, frozen=True, array_like=True):
    """What one place holds of past prompts and answers."""

    prefixes: int = 0
    tokens: int = 0
    """Of all of them; what several sequences share is counted with each."""
    size_bytes: int = 0
    """Host memory taken; 0 for what is in the KV cache."""


class LongPrefix(msgspec.Struct, frozen=True, array_like=True):
    """One held prefix: how long, where, how long ago it was used. Whose it is and what it says is not told."""

    tokens: int
    where: str
    """running, idle or host."""
    age_s: float


class Holdings(msgspec.Struct, frozen=True, array_like=True, tag="holdings"):
    """What could be reused, told every `outbox.HOLDINGS_S` while there is anything."""

    running: TierHoldings = TierHoldings()
    idle: TierHoldings = TierHoldings()
    """In the KV cache, used by no request now."""
    host: TierHoldings = TierHoldings()
    longest: tuple[LongPrefix, ...] = ()

    def shown(self) -> dict[str, Any]:
        """As operators are shown it."""
        tiers = {"running": self.running, "idle": self.idle, "host": self.host}
        return {
            **{name: msgspec.structs.asdict(tier) for name, tier in tiers.items()},
            "longest": [
                {"tokens": one.tokens, "where": one.where, "age_s": round(one.age_s, 1)} for one in self.longest
            ],
        }


ToProcess = Configure | Generate | Cancel | Count | Embed
FromProcess = (
    Loading
    | Loaded
    | LoadFailed
    | Accepted
    | Refused
    | Progress
    | Tokens
    | Finished
    | Failed
    | Counted
    | Embedded
    | Heartbeat
    | Holdings
)

"""Messages only a supervisor and its engine process exchange, beside those of saiserve/engines/messages.py."""

from __future__ import annotations

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


class Loaded(msgspec.Struct, frozen=True, array_like=True, tag="loaded"):
    """The model is ready."""

    facts: ModelFacts


class LoadFailed(msgspec.Struct, frozen=True, array_like=True, tag="load_failed"):
    """The model cannot be served; one sentence that names file and reason. The process ends."""

    detail: str


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
)

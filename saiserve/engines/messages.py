"""What a node and an engine say to each other, whether the engine is a process, a simulation or another node.

One vocabulary for three borders: the socketpair to an engine process, the frames between nodes (docs/peers.md) and the
dispatcher's view of an attempt. Structs are positional on the wire; append fields at the end only, with a default.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec


class FinishReason(enum.StrEnum):
    """Why an engine stopped on its own account."""

    STOP = "stop"
    """The model ended its turn."""
    STOP_STRING = "stop_string"
    """A stop string appeared; `Finished.stop_string` says which."""
    LENGTH = "length"
    """`max_tokens` or the context was used up."""


class RefusalReason(enum.StrEnum):
    """Why an engine will not take a request. Only BUSY and LOADING are worth trying elsewhere unchanged."""

    BUSY = "busy"
    LOADING = "loading"
    NO_MODEL = "no_model"
    TOO_LONG = "too_long"
    BAD_TEMPLATE = "bad_template"
    BAD_SCHEMA = "bad_schema"
    BAD_REQUEST = "bad_request"
    DRAINING = "draining"
    QUARANTINED = "quarantined"
    """A request like it crashed two engines a short while ago."""
    RATE_LIMITED = "rate_limited"
    """An upstream wants fewer requests."""
    UPSTREAM_SAYS_NO = "upstream_says_no"
    """An upstream found a fault in the client's request; its words are for the client."""
    UPSTREAM_FAULT = "upstream_fault"
    """An upstream cannot be reached or used, or failed before its first word."""
    UPSTREAM_LACKS = "upstream_lacks"
    """An upstream does not serve requests of this kind; another may."""


class FailureKind(enum.StrEnum):
    """How a request came to a bad end."""

    CRASH = "crash"
    """The engine process died under it: the request is a suspect."""
    HANG = "hang"
    """The engine process was killed for its silence: the request is a suspect."""
    UNLOADED = "unloaded"
    """The model was unloaded or the node stopped: nobody's fault, try elsewhere."""
    INTERNAL = "internal"
    """The engine caught an error of its own on this request."""
    BAD_REQUEST = "bad_request"
    """The request's own doing, found out only while it was served: no place would do better. `detail` is for the client."""

    @property
    def makes_suspects(self) -> bool:
        """Whether an engine process died: a request that was in it may be why."""
        return self in (FailureKind.CRASH, FailureKind.HANG)


class Sampling(msgspec.Struct, frozen=True, array_like=True):
    """How the next token is drawn. The draw is a function of (seed, position), so a resumed answer goes on the same.

    Neutral values switch a stage off: temperature 0 is greedy, top_k 0, top_p 1, min_p 0, typical_p 1, penalties 0
    (repeat 1), dry_multiplier 0, xtc_probability 0, mirostat 0.
    """

    seed: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    """None: no logprobs; 0–20: the chosen token's and that many alternatives'."""
    ignore_eos: bool = False
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    after_stages: bool = False
    """Log-probabilities are those the token was drawn by, after all stages, instead of the model's own."""
    lora: tuple[tuple[int, float], ...] | None = None
    """LoRA adapters by number, in the order of the model's setting, with their scales; None: those its model names."""


class Constraint(msgspec.Struct, frozen=True, array_like=True):
    """Output the answer must match: kind `json_schema` (a JSON text), `regex`, `lark` (a grammar) or `json_object`.

    `markers` belong to a Lark grammar made here: texts, such as a call's opener, that many models have a control token
    for. The engine that has the vocabulary adds rules for them: `marker0` is the first one's token, or its text where
    there is none; `token0` is the token alone, and `others` any control token a parser reads that is no marker, each
    matching nothing where there is none.
    """

    kind: str
    body: str = ""
    markers: tuple[str, ...] = ()


class Prompt(msgspec.Struct, frozen=True, array_like=True):
    """Exactly one of: chat `messages` (rendered by the model's template), raw `text`, or `tokens`.

    Messages are plain dicts in the shape chat templates expect (role, content, tool_calls, tool_call_id,
    reasoning_content, name). `continue_final` leaves the last assistant message open.
    """

    messages: tuple[dict[str, Any], ...] | None = None
    text: str | None = None
    tokens: tuple[int, ...] | None = None
    tools: tuple[dict[str, Any], ...] = ()
    add_generation_prompt: bool = True
    continue_final: bool = False
    template_options: dict[str, Any] = {}


class Generate(msgspec.Struct, frozen=True, array_like=True, tag="generate"):
    """Ask for one answer. `id` is the attempt's, unique over the cluster."""

    id: str
    model: str
    prompt: Prompt
    sampling: Sampling
    max_tokens: int | None = None
    """Length of the whole answer, resumed tokens included, as `Finished.completion_tokens` counts: with n resumed
    tokens at most max_tokens − n new ones follow, and none when n ≥ max_tokens (accepted, then finished{length}).
    None: until the model stops or the context is full. A larger value than fits is cut to what fits."""
    stop: tuple[str, ...] = ()
    constraint: Constraint | None = None
    resume_tokens: tuple[int, ...] = ()
    """Tokens of this answer already sent elsewhere; generation continues after them."""
    priority: int = 0
    """Higher goes first in the queue; -100..100."""
    isolation: str = ""
    """Prefix reuse happens only among requests of equal isolation."""
    suspect: bool = False
    """An engine process crashed under this request elsewhere; a node runs one such request at a time."""


class Load(msgspec.Struct, frozen=True, array_like=True):
    """How busy an engine is, and how fast it is, as measured by itself."""

    lanes: int = 0
    """Streams served at once at full speed."""
    busy: int = 0
    """Lanes in use."""
    queued: int = 0
    """Requests waiting."""
    queued_tokens: int = 0
    """Prompt tokens not yet prefilled, of waiting and running requests."""
    prefill_rate: float = 0.0
    """Prompt tokens per second."""
    decode_rate: float = 0.0
    """Tokens per second of one stream alone."""
    cells_used: int = 0
    cells_total: int = 0


class Accepted(msgspec.Struct, frozen=True, array_like=True, tag="accepted"):
    """The request has a place. `prompt_tokens` excludes `resume_tokens`."""

    id: str
    prompt_tokens: int
    cached_tokens: int = 0
    """Prompt tokens not computed again, as known at acceptance; `Finished.cached_tokens` is final."""
    load: Load = Load()
    max_tokens: int = 0
    """Tokens this answer may have after clamping to the room."""


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """The request was not taken and changed nothing."""

    id: str
    reason: RefusalReason
    detail: str = ""
    load: Load = Load()
    prompt_tokens: int = 0
    context_tokens: int = 0
    retry_after_s: float = 0.0
    index: int | None = None
    """Which of several inputs, or documents, is at fault."""


class Progress(msgspec.Struct, frozen=True, array_like=True, tag="progress"):
    """Prefill moves on: `prefilled` of the prompt's tokens are done. Also sent while queued, as a sign of life."""

    id: str
    prefilled: int


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """One token's log-probability (natural logarithm) and its alternatives, best first."""

    token: int
    piece: bytes
    logprob: float
    top: tuple[tuple[int, bytes, float], ...] = ()


class Tokens(msgspec.Struct, frozen=True, array_like=True, tag="tokens"):
    """New tokens. `data` is the bytes of all `ids` together and may end inside a UTF-8 character.

    Every token that `Finished.completion_tokens` counts is in one of these, those of a stop string too; the
    end-of-turn token is in neither.
    """

    id: str
    ids: tuple[int, ...]
    data: bytes
    logprobs: tuple[TokenLogprob, ...] | None = None
    sizes: tuple[int, ...] = ()
    """Bytes of `data` that are each token's, where several were joined on the way (token_runs.py)."""


class Finished(msgspec.Struct, frozen=True, array_like=True, tag="finished"):
    """The answer is complete. `completion_tokens` counts resumed tokens too."""

    id: str
    reason: FinishReason
    completion_tokens: int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    stop_string: str | None = None
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    load: Load = Load()


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """A request ended badly: an accepted one, or one whose engine died while it read it."""

    id: str
    kind: FailureKind
    detail: str = ""


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """Stop generating; no message about this id follows once it is obeyed."""

    id: str


class Count(msgspec.Struct, frozen=True, array_like=True, tag="count"):
    """Ask how many tokens a prompt has, template and tools included."""

    id: str
    model: str
    prompt: Prompt
    want_text: bool = False
    """Also return the rendered prompt."""
    want_tokens: bool = False
    """Also return the token ids and their pieces."""
    must_fit: bool = False
    """An answer is to follow: what leaves no room for one is refused as too long, at the first sight of it."""


class PackedTokens(msgspec.Struct, frozen=True, array_like=True):
    """Very many ids and pieces: see packed.py."""

    ids: bytes
    """int32, little-endian."""
    data: bytes
    """All pieces, one behind the other."""
    sizes: bytes
    """Bytes of each; uint32, little-endian."""


class Counted(msgspec.Struct, frozen=True, array_like=True, tag="counted"):
    """The answer to `Count`."""

    id: str
    tokens: int
    text: str | None = None
    ids: tuple[int, ...] | None = None
    pieces: tuple[bytes, ...] | None = None
    packed: PackedTokens | None = None
    """In the place of both where there are very many."""


class Embed(msgspec.Struct, frozen=True, array_like=True, tag="embed"):
    """Ask for one vector per input; an input is text or token ids. With pooling `rank` the first is the query."""

    id: str
    model: str
    inputs: tuple[str | tuple[int, ...], ...]
    pooling: str = ""
    """mean, last, cls, none or rank; empty: as the model was trained. `none` gives a vector per token, `rank` one
    vector of scores per document, so one fewer than inputs."""


class Embedded(msgspec.Struct, frozen=True, array_like=True, tag="embedded"):
    """The answer to `Embed`: little-endian float32 vectors, not normalised."""

    id: str
    vectors: tuple[bytes, ...]
    prompt_tokens: int
    size: int = 0
    """Numbers in one vector; with pooling `none` each of `vectors` is several. 0: each is one."""


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag="heartbeat"):
    """Sign of life after each step, and at least every `limits.HEARTBEAT_S`."""

    load: Load
    steps: int = 0
    counters: dict[str, float] = {}
    """Running totals by name, for metrics: see engines/counters in docs/metrics.md."""


EngineReply = Accepted | Refused | Progress | Tokens | Finished | Failed
"""What follows a `Generate`: accepted or refused, then progress and tokens, then exactly one of finished or failed.

A node may send progress ahead of them all, to say that the request has come, and failed in place of accepted, when an
engine died while it read the request.
"""

EngineAnswer = Counted | Embedded | Refused


def is_terminal(message: EngineReply) -> bool:
    """Whether nothing follows this message."""
    return isinstance(message, (Refused, Finished, Failed))

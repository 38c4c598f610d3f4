"""An engine without weights: rates, lanes, a queue, a prefix cache and scripted faults, all of it predictable.

The next token is a function of (prompt, seed, position, last token), so an answer that goes on elsewhere from the right
tokens equals one that was never disturbed, and one that goes on from wrong tokens does not. Half of the tokens end
inside a UTF-8 character. It sleeps in the caller's task on trio's clock: no processes, no threads, no chance.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import trio

from saiserve import limits
from saiserve.engines.engine import Heard, HopError, unheard
from saiserve.engines.messages import (
    Accepted,
    Count,
    Counted,
    Embed,
    Embedded,
    EngineReply,
    Failed,
    FailureKind,
    Finished,
    Generate,
    Load,
    Progress,
    Prompt,
    RefusalReason,
    Refused,
    Tokens,
)
from saiserve.engines.simulated_lanes import Lanes, Turn
from saiserve.engines.simulated_model import SimulatedAnswer, common, piece_of, pieces, render, tokenize, vector
from saiserve.engines.simulated_script import Rule, read_script
from saiserve.errors import SettingsError

_PROGRESS_S = 0.25
_EMBED_STEP_S = 0.25
_CACHED_PROMPTS_MAX = 64
_BEFORE_ACCEPTANCE = -1


class FaultKind(enum.StrEnum):
    """What may be made to go wrong."""

    BUSY = "busy"
    """Refuse as if every place were taken."""
    STALL = "stall"
    """Say nothing more, for ever."""
    CUT = "cut"
    """Break the way to the engine, as a dying node does."""
    CRASH = "crash"
    """Take down the engine under every running request, as a process that segfaults does."""
    INTERNAL = "internal"
    """Fail this request alone."""
    BAD_REQUEST = "bad_request"
    """Fail it for what it asks."""


@dataclass(slots=True)
class Fault:
    """One scripted fault: when the answer has `at_token` tokens, in requests whose prompt contains `marker`.

    A crash at token −1 comes before the request is accepted.
    """

    kind: FaultKind
    at_token: int = 0
    marker: str = ""
    times: int | None = None
    """How often it strikes; None = always."""


@dataclass(frozen=True, slots=True)
class SimulatedSettings:
    """How the engine behaves. Rates are tokens per second."""

    model: str = "simulated"
    lanes: int = 4
    queue_max: int = limits.ENGINE_QUEUE_MAX
    context_tokens: int = 8_192
    prefill_rate: float = 20_000.0
    decode_rate: float = 200.0
    answer_tokens: int = 64
    """Length of an answer the model ends itself; 0: drawn from the prompt, 8–128."""
    restart_s: float = 0.5
    """How long requests are refused as LOADING after a crash."""
    load_s: float = 0.0
    """How long a node takes to load it."""
    load_fails: int = 0
    """1: a node cannot load it."""
    memory_mib: int = 0
    """What it counts against a node's memory budget."""
    faults: tuple[Fault, ...] = ()
    script: tuple[Rule, ...] = ()
    """Answers to known prompts; other prompts get drawn ones."""


def parse_simulated(path: str) -> SimulatedSettings:
    """Read `simulated:NAME` or `simulated:NAME?lanes=2&decode_rate=50&crash=MARKER&script=FILE`, a node's model.

    Raises:
        SettingsError: an unknown option, a value of the wrong kind, or a script that cannot be read.
    """
    name, _, query = path.removeprefix("simulated:").partition("?")
    kinds: dict[str, type[int] | type[float]] = {
        f.name: float if f.type == "float" else int for f in fields(SimulatedSettings)
    }
    del kinds["model"], kinds["faults"], kinds["script"]
    values: dict[str, Any] = {}
    faults: list[Fault] = []
    for option, text in parse_qsl(query, keep_blank_values=True):
        if option in set(FaultKind):
            faults.append(_parse_fault(FaultKind(option), text))
            continue
        if option == "script":
            values["script"] = read_script(text)
            continue
        if option not in kinds:
            raise SettingsError(f"simulated model option {option!r} is unknown: use one of {', '.join(kinds)}, script")
        try:
            values[option] = kinds[option](text)
        except ValueError:
            raise SettingsError(f"simulated model option {option}={text!r} is not a number") from None
    return SimulatedSettings(model=name or "simulated", faults=tuple(faults), **values)


def _parse_fault(kind: FaultKind, text: str) -> Fault:
    """`MARKER` or `MARKER@TOKEN`."""
    marker, _, at_token = text.partition("@")
    if at_token and not at_token.isdigit():
        raise SettingsError(f"simulated fault {kind}={text!r}: write it as MARKER@TOKEN")
    return Fault(kind, at_token=int(at_token or 0), marker=marker)


class SimulatedEngine:
    """An `Engine`. `kill`, `revive`, `crash` and `faults` are for tests and demonstrations."""

    def __init__(self, settings: SimulatedSettings | None = None) -> None:
        self.settings = settings or SimulatedSettings()
        self.faults: list[Fault] = [replace(fault) for fault in self.settings.faults]
        self.started: list[Generate] = []
        """Requests that got a lane, in order; the last 1,000."""
        self.generated = 0
        """Tokens produced since the start."""
        self.loaded_fraction = 0.0
        """How far a node is with loading it."""
        self._lanes = Lanes(self.settings.lanes)
        self._cache: OrderedDict[tuple[str, tuple[int, ...]], None] = OrderedDict()
        self._pending: dict[str, int] = {}
        self._crashed = trio.Event()
        self._dead = False
        self._loading_until = -1.0

    @property
    def model(self) -> str:
        """The model's id."""
        return self.settings.model

    @property
    def load(self) -> Load:
        """Lanes and queue at this moment."""
        return Load(
            lanes=self.settings.lanes,
            busy=self._lanes.busy,
            queued=self._lanes.waiting,
            queued_tokens=sum(self._pending.values()),
            prefill_rate=self.settings.prefill_rate,
            decode_rate=self.settings.decode_rate,
        )

    def crash(self) -> None:
        """End every running request with `Failed{crash}` and refuse new ones while it restarts."""
        self._loading_until = trio.current_time() + self.settings.restart_s
        self._cache.clear()
        self._crashed.set()
        self._crashed = trio.Event()

    def kill(self) -> None:
        """Break every stream and refuse connections, as the death of the whole node does."""
        self._dead = True
        self._crashed.set()

    def revive(self) -> None:
        """Undo `kill`."""
        self._dead = False
        self._crashed = trio.Event()

    @asynccontextmanager
    async def generate(self, request: Generate) -> AsyncIterator[AsyncIterator[EngineReply]]:
        """Start one answer; leaving the context gives its lane or its place in the queue back."""
        if self._dead:
            raise HopError("the simulated node is down", sent=False)
        turn = Turn()
        stream = self._run(request, turn)
        try:
            yield stream
        finally:
            self._lanes.leave(turn)
            self._pending.pop(request.id, None)
            with trio.CancelScope(shield=True):
                await stream.aclose()

    async def count(self, request: Count) -> Counted | Refused:
        """Count a prompt's tokens."""
        await trio.lowlevel.checkpoint()
        text = render(request.prompt)
        ids = tokenize(request.prompt)
        return Counted(
            request.id,
            len(ids),
            text=text if request.want_text else None,
            ids=ids if request.want_tokens else None,
            pieces=pieces(text.encode()) if request.want_tokens else None,
        )

    async def embed(self, request: Embed, heard: Heard = unheard) -> Embedded | Refused:
        """Vectors that depend on the input alone, one after the other as fast as prompts are read."""
        total = done = 0
        for item in request.inputs:
            total += len(tokenize(Prompt(text=item) if isinstance(item, str) else Prompt(tokens=item)))
            if total - done > _EMBED_STEP_S * self.settings.prefill_rate:
                await trio.sleep((total - done) / self.settings.prefill_rate)
                done = total
                heard()
        await trio.sleep((total - done) / self.settings.prefill_rate)
        return Embedded(request.id, tuple(map(vector, request.inputs)), total)

    async def _run(self, request: Generate, turn: Turn) -> AsyncGenerator[EngineReply, None]:
        await trio.lowlevel.checkpoint()
        crashed = self._crashed
        prompt = tokenize(request.prompt)
        refusal = self._refusal(request, len(prompt))
        if refusal is not None:
            yield refusal
            return
        if self._strike(request, _BEFORE_ACCEPTANCE, FaultKind.CRASH):
            self.crash()
            yield self._end(request)
            return
        cached = self._cached(request.isolation, prompt)
        room = self.settings.context_tokens - len(prompt)
        most = min(room, room if request.max_tokens is None else request.max_tokens)
        todo = len(prompt) + len(request.resume_tokens) - cached
        self._pending[request.id] = todo
        began = trio.current_time()
        self._lanes.enter(turn, request.priority)
        yield Accepted(request.id, len(prompt), cached, self.load, most)
        while not turn.has_lane:
            if await _broken(crashed, limits.HEARTBEAT_S, turn.called):
                yield self._end(request)
                return
            if not turn.has_lane:
                yield Progress(request.id, 0)
        self.started = [*self.started[-999:], request]
        got_lane = trio.current_time()
        done = 0
        while done < todo:
            step = min(todo - done, max(1, int(self.settings.prefill_rate * _PROGRESS_S)))
            if await _broken(crashed, step / self.settings.prefill_rate):
                yield self._end(request)
                return
            done += step
            self._pending[request.id] = todo - done
            yield Progress(request.id, min(len(prompt), cached + done))
        self._remember(request.isolation, prompt)
        prefilled = trio.current_time()
        async with aclosing(self._decode(request, prompt, most, crashed)) as messages:
            async for message in messages:
                if isinstance(message, Finished):
                    message = msgspec.structs.replace(  # noqa: PLW2901
                        message,
                        cached_tokens=cached,
                        queue_s=got_lane - began,
                        prefill_s=prefilled - got_lane,
                        decode_s=trio.current_time() - prefilled,
                    )
                yield message

    async def _decode(
        self, request: Generate, prompt: Sequence[int], most: int, crashed: trio.Event
    ) -> AsyncGenerator[EngineReply, None]:
        source = SimulatedAnswer(prompt, request, self.settings.answer_tokens, self.settings.script)
        tokens = list(request.resume_tokens)
        text = b"".join(piece_of(token) for token in tokens)
        while True:
            ending = source.ending(tokens, text, most)
            if ending is not None:
                reason, stop = ending
                yield Finished(request.id, reason, len(tokens), len(prompt), stop_string=stop, load=self.load)
                return
            fault = self._strike(request, len(tokens))
            if fault is not None:
                yield await self._suffer(fault, request, crashed)
                return
            if await _broken(crashed, 1.0 / self.settings.decode_rate):
                yield self._end(request)
                return
            token = source.next(tokens)
            tokens.append(token)
            text += piece_of(token)
            self.generated += 1
            yield Tokens(request.id, (token,), piece_of(token), source.logprobs(token))

    async def _suffer(self, fault: Fault, request: Generate, crashed: trio.Event) -> EngineReply:
        match fault.kind:
            case FaultKind.CUT:
                raise HopError("scripted cut", sent=True)
            case FaultKind.INTERNAL:
                return Failed(request.id, FailureKind.INTERNAL, "scripted")
            case FaultKind.BAD_REQUEST:
                return Failed(request.id, FailureKind.BAD_REQUEST, "scripted")
            case FaultKind.CRASH:
                self.crash()
            case FaultKind.STALL | FaultKind.BUSY:
                await crashed.wait()
        return self._end(request)

    def _end(self, request: Generate) -> EngineReply:
        if self._dead:
            raise HopError("the simulated node is down", sent=True)
        return Failed(request.id, FailureKind.CRASH, "the simulated engine crashed")

    def _refusal(self, request: Generate, prompt_tokens: int) -> Refused | None:
        if trio.current_time() < self._loading_until:
            return Refused(request.id, RefusalReason.LOADING, "restarting", self.load, retry_after_s=1.0)
        if request.model != self.model:
            return Refused(request.id, RefusalReason.NO_MODEL, f"{request.model} is not here", self.load)
        if prompt_tokens >= self.settings.context_tokens:
            detail = f"the prompt has {prompt_tokens} tokens, the model takes {self.settings.context_tokens}"
            size = self.settings.context_tokens
            return Refused(request.id, RefusalReason.TOO_LONG, detail, self.load, prompt_tokens, size)
        full = self._lanes.is_full and self._lanes.waiting >= self.settings.queue_max
        if full or self._strike(request, 0, FaultKind.BUSY):
            return Refused(request.id, RefusalReason.BUSY, "every lane is taken", self.load, retry_after_s=1.0)
        return None

    def _strike(self, request: Generate, at_token: int, kind: FaultKind | None = None) -> Fault | None:
        for fault in self.faults:
            wanted = fault.kind is kind if kind else fault.kind is not FaultKind.BUSY
            if wanted and fault.at_token == at_token and fault.times != 0 and fault.marker in render(request.prompt):
                if fault.times is not None:
                    fault.times -= 1
                return fault
        return None

    def _cached(self, isolation: str, prompt: tuple[int, ...]) -> int:
        best = 0
        for other_isolation, other in self._cache:
            if other_isolation == isolation:
                best = max(best, common(prompt, other))
        return min(best, len(prompt) - 1) if prompt else 0

    def _remember(self, isolation: str, prompt: tuple[int, ...]) -> None:
        self._cache[isolation, prompt] = None
        self._cache.move_to_end((isolation, prompt))
        while len(self._cache) > _CACHED_PROMPTS_MAX:
            self._cache.popitem(last=False)


async def _broken(crashed: trio.Event, seconds: float, early: trio.Event | None = None) -> bool:
    """Sleep, or until `early`; True as soon as the engine is broken."""
    with trio.move_on_after(seconds):
        if early is None:
            await crashed.wait()
        else:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_on, crashed, nursery.cancel_scope)
                nursery.start_soon(_cancel_on, early, nursery.cancel_scope)
    return crashed.is_set()


async def _cancel_on(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()

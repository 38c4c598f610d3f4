"""One model as the node sees it: an engine process kept alive, requests carried to it, its ends explained.

A crash, a hang or a damaged file costs the process: requests in it fail with a kind and a sentence, and it is started
again with growing pauses.
"""

from __future__ import annotations

import contextlib
import enum
import logging
from collections.abc import AsyncIterator

import msgspec
import trio

from saiserve import limits
from saiserve.engines.engine import Heard, HopError, unheard
from saiserve.engines.llamacpp.child import Child, open_child
from saiserve.engines.llamacpp.mailbox import Mailbox, Replies
from saiserve.engines.llamacpp.mailboxes import SIGN_OF_LIFE_S, Mailboxes, mailbox_of
from saiserve.engines.llamacpp.protocol import (
    Configure,
    EngineLoadError,
    FromProcess,
    Holdings,
    Loaded,
    LoadFailed,
    Loading,
    ModelFacts,
)
from saiserve.engines.llamacpp.settings import EngineSettings
from saiserve.engines.messages import (
    Count,
    Counted,
    Embed,
    Embedded,
    EngineReply,
    Failed,
    FailureKind,
    Generate,
    Heartbeat,
    Load,
    Progress,
    RefusalReason,
    Refused,
)

logger = logging.getLogger("saiserve.engine")

STEADY_S = 60.0
"""A process that was ready this long starts the next pauses from the beginning."""


class EngineState(enum.StrEnum):
    """Where an engine is in its life."""

    LOADING = "loading"
    READY = "ready"
    WAITING = "waiting"
    """Its process ended; the next one starts after a pause."""
    STOPPED = "stopped"


REFUSED_WHEN: dict[EngineState, RefusalReason] = {
    EngineState.LOADING: RefusalReason.LOADING,
    EngineState.WAITING: RefusalReason.LOADING,
    EngineState.STOPPED: RefusalReason.NO_MODEL,
}


class LlamaEngine:
    """One model on this machine; `engines.engine.Engine`. Run `run` in a nursery, or use `open_engine`."""

    def __init__(self, settings: EngineSettings, *, heartbeat_lost_s: float = limits.HEARTBEAT_LOST_S) -> None:
        self.settings = settings
        self.facts: ModelFacts | None = None
        """What loading found out; kept over restarts."""
        self.state = EngineState.LOADING
        self.detail = ""
        """Why it is not ready, for operators."""
        self.loaded_fraction = 0.0
        self.counters: dict[str, float] = {}
        """The process's running totals, as of its last report; they begin at 0 with each process."""
        self.holdings = Holdings()
        """What the process holds for reuse, as of its last report."""
        self.crashes = 0
        """Processes that ended on their own since `run` began."""
        self._heartbeat_lost_s = heartbeat_lost_s
        self._load = Load()
        self._child: Child | None = None
        self._requests = Mailboxes()
        self._load_failed: str | None = None
        self._ready = trio.Event()
        self._told = False
        self._heard_at = 0.0

    @property
    def model(self) -> str:
        """Catalog id of the model."""
        return self.settings.model_id

    @property
    def load(self) -> Load:
        """The engine's last own report; nothing while it is not ready."""
        return self._load if self.state is EngineState.READY else Load()

    @property
    def pid(self) -> int | None:
        """The process's id, None between lives."""
        return self._child.pid if self._child is not None else None

    @property
    def running(self) -> int:
        """Requests in the process."""
        return len(self._requests)

    @property
    def load_failed(self) -> str:
        """Why the last process could not load the model, until the next one tries; empty otherwise."""
        return self._load_failed or ""

    # Life

    async def run(self, *, task_status: trio.TaskStatus[LlamaEngine] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep a process alive until cancelled; started once the model is ready.

        Raises:
            EngineLoadError: the model could not be loaded the first time.
        """
        pause_s = limits.ENGINE_RESTART_FIRST_S
        try:
            while True:
                began_at = trio.current_time()
                await self._live(task_status)
                if not self._told:
                    raise EngineLoadError(self._load_sentence())
                if trio.current_time() - began_at > STEADY_S:
                    pause_s = limits.ENGINE_RESTART_FIRST_S
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, limits.ENGINE_RESTART_MAX_S)
        finally:
            self._stop()

    async def _live(self, task_status: trio.TaskStatus[LlamaEngine]) -> None:
        """One process from start to end; one that cannot be started is one that ended."""
        async with contextlib.AsyncExitStack() as stack:
            try:
                child = await stack.enter_async_context(open_child(self.model))
            except OSError as error:
                self._end_life(FailureKind.CRASH, f"no engine process could be started: {error.strerror or error}")
                return
            self._begin(child)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._announce, task_status)
                nursery.start_soon(self._vouch)
                kind = await child.run(self._receive, self._heartbeat_lost_s)
                nursery.cancel_scope.cancel()
            how = await child.ended()
        self._end_life(kind, self._load_failed or how)

    async def _announce(self, task_status: trio.TaskStatus[LlamaEngine]) -> None:
        await self._ready.wait()
        if not self._told:
            self._told = True
            task_status.started(self)

    async def _vouch(self) -> None:
        """Give signs of life for requests while the process computes one long step and cannot read its socket."""
        while True:
            await trio.sleep(SIGN_OF_LIFE_S / 2)
            if trio.current_time() - self._heard_at <= limits.ENGINE_STEP_S:
                self._requests.vouch()

    def _begin(self, child: Child) -> None:
        self._child = child
        self._heard_at = trio.current_time()
        self._ready = trio.Event()
        self._load_failed = None
        self._load, self.holdings = Load(), Holdings()
        self.state, self.detail, self.loaded_fraction = EngineState.LOADING, "loading the model", 0.0
        child.send(Configure(self.settings))

    def _end_life(self, kind: FailureKind, how: str) -> None:
        self.crashes += 1
        self.state, self.detail = EngineState.WAITING, how
        self._child = None
        words = f"{how} without a sign of life" if kind is FailureKind.HANG else how
        logger.error("engine %s: %s; %d requests were in it", self.model, words, self.running)
        self._requests.end(kind, words)

    def _load_sentence(self) -> str:
        if self._load_failed is not None:
            return self._load_failed
        return f"{self.settings.model_path} cannot be served: {self.detail} while loading"

    def _stop(self) -> None:
        self.state, self.detail = EngineState.STOPPED, "the engine was stopped"
        self._child = None
        self._requests.end(FailureKind.UNLOADED, "the model was unloaded")

    def _receive(self, message: FromProcess) -> None:
        self._heard_at = trio.current_time()
        match message:
            case Heartbeat():
                self._load = message.load
                self.counters = {**message.counters, "steps": float(message.steps)}
            case Holdings():
                self.holdings = message
            case Loading():
                self.loaded_fraction = message.fraction
            case Loaded():
                self.facts = message.facts
                if self._child is not None:
                    self._child.forget_errors()
                self.state, self.detail = EngineState.READY, ""
                self._ready.set()
            case LoadFailed():
                self._load_failed = message.detail
            case _:
                self._deliver(message)

    def _deliver(self, message: EngineReply | Counted | Embedded) -> None:
        load = getattr(message, "load", None)
        if self._requests.deliver(message) and load is not None:
            self._load = load

    # Requests

    def generate(self, request: Generate) -> contextlib.AbstractAsyncContextManager[AsyncIterator[EngineReply]]:
        """Start one answer; see `engines.engine.Engine`."""
        return self._generate(request)

    @contextlib.asynccontextmanager
    async def _generate(self, request: Generate) -> AsyncIterator[AsyncIterator[EngineReply]]:
        mailbox = self._submit(request)
        try:
            yield Replies(mailbox)
        finally:
            self._requests.abandon(mailbox, self._child)

    async def count(self, request: Count) -> Counted | Refused:
        """Count a prompt's tokens. Raises HopError when the process ends meanwhile."""
        answer = await self._ask(request)
        assert isinstance(answer, (Counted, Refused))
        return answer

    async def embed(self, request: Embed, heard: Heard = unheard) -> Embedded | Refused:
        """Compute vectors. Raises HopError when the process ends meanwhile, or the model cannot compute them."""
        answer = await self._ask(request, heard)
        assert isinstance(answer, (Embedded, Refused))
        return answer

    async def _ask(self, request: Count | Embed, heard: Heard = unheard) -> msgspec.Struct:
        mailbox = self._submit(request)
        try:
            while isinstance(answer := await mailbox.get(), Progress):
                heard()
        finally:
            self._requests.abandon(mailbox, self._child)
        if isinstance(answer, Failed):
            raise HopError(answer.detail, sent=True)
        return answer

    def _submit(self, request: Generate | Count | Embed) -> Mailbox:
        reason = REFUSED_WHEN.get(self.state)
        if reason is None and self._child is not None:
            return self._requests.carry(request, self._child, self.load)
        mailbox, again_s = mailbox_of(request), limits.ENGINE_RESTART_FIRST_S
        reason = reason or RefusalReason.LOADING
        mailbox.put(Refused(request.id, reason, self.detail, self.load, retry_after_s=again_s))
        return mailbox


@contextlib.asynccontextmanager
async def open_engine(settings: EngineSettings) -> AsyncIterator[LlamaEngine]:
    """A ready engine; leaving ends its process.

    Raises:
        EngineLoadError: the model cannot be served.
    """
    failure: EngineLoadError | None = None
    async with trio.open_nursery() as nursery:
        engine = LlamaEngine(settings)
        try:
            await nursery.start(engine.run)
        except EngineLoadError as error:
            failure = error
        else:
            yield engine
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


__all__ = ["EngineLoadError", "EngineSettings", "EngineState", "HopError", "LlamaEngine", "open_engine"]

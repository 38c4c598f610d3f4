"""What a worker tells the node: replies in order, and in between what the engine says of itself, each at its interval."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from saiserve import limits
from saiserve.engines.llamacpp.answer import Answer
from saiserve.engines.llamacpp.embedding import EmbeddingQueue
from saiserve.engines.llamacpp.holdings import summarise
from saiserve.engines.llamacpp.prompting import PromptRefusal
from saiserve.engines.llamacpp.protocol import Holdings
from saiserve.engines.llamacpp.scheduler import Scheduler
from saiserve.engines.llamacpp.threads import ThreadChooser
from saiserve.engines.llamacpp.timings import Timings
from saiserve.engines.messages import Heartbeat, Progress, RefusalReason, Refused, Tokens
from saiserve.engines.waits import NS

GATHER_S = 0.02
"""Tokens wait so long for later ones, to be written with them: the node is woken once for all of them."""
REPORT_S = 0.1
"""Time between full reports of load and counters while steps run."""
SIGN_OF_LIFE_S = 2.0
"""An answer that waits or prefills is heard of at least this often, and so are vectors that move on."""
BUSY_RETRY_S = 1.0
"""When to come again where nothing better is known."""
HOLDINGS_S = 2.0
"""Time between reports of what is held for reuse."""


class Outbox:
    """Messages until they are taken; reports are made of what the worker's parts say of themselves."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        timings: Timings,
        threads: ThreadChooser,
        embeddings: EmbeddingQueue,
        context_tokens: int,
    ) -> None:
        """`embeddings` are those that wait."""
        self._scheduler = scheduler
        self._timings = timings
        self._threads = threads
        self._embeddings = embeddings
        self._context_tokens = context_tokens
        self._messages: list[msgspec.Struct] = []
        self._may_wait = True
        """Whether all messages are tokens that follow others soon followed by more."""
        self._taken_at = 0
        self._holdings = Holdings()
        """As last reported."""
        self._reported_at = 0
        self._signed_at = 0
        self._holdings_at = 0

    def take(self) -> list[msgspec.Struct]:
        """Messages to send, in order; each is given once."""
        messages, self._messages, self._may_wait = self._messages, [], True
        return messages

    def due(self, now: int) -> list[msgspec.Struct]:
        """All messages; none while they may wait, and at most `GATHER_S` after the last were taken."""
        if self._may_wait and now - self._taken_at < GATHER_S * NS:
            return []
        self._taken_at = now
        return self.take()

    def hurry(self) -> None:
        """What is here and what comes next does not wait."""
        self._may_wait = False

    # Replies

    def send(self, message: msgspec.Struct) -> None:
        """Add a message, which does not wait."""
        self._messages.append(message)
        self._may_wait = False

    def send_token(self, message: Tokens, *, is_first: bool) -> None:
        """Add a token, which may wait for the next ones if it is not an answer's first."""
        self._messages.append(message)
        self._may_wait &= not is_first

    def refuse(self, request_id: str, fault: PromptRefusal, retry_after_s: float = BUSY_RETRY_S) -> None:
        """Turn a request away; `retry_after_s` counts for who finds the engine busy."""
        wait_s = min(retry_after_s, limits.QUEUE_S) if fault.reason is RefusalReason.BUSY else 0.0
        load = self._scheduler.load()
        numbers = fault.prompt_tokens, self._context_tokens, wait_s, fault.index
        self.send(Refused(request_id, fault.reason, str(fault), load, *numbers))

    def progress(self, answer: Answer, now: int) -> None:
        """How far an answer's prompt is, which is also a sign that it is being worked on."""
        answer.clock.told_at = now
        self.send(Progress(answer.request.id, answer.prefilled))

    def finish(self, answer: Answer, now: int) -> None:
        """The last message of an answer that has an end."""
        self.send(answer.finished(now, self._scheduler.load()))

    # Reports

    def report(self, now: int, answers: Iterable[Answer], reading: Iterable[str] = ()) -> None:
        """A heartbeat, and signs of life for who waits; at most every `REPORT_S`.

        `reading` are requests whose long texts are being read.
        """
        if now - self._reported_at < REPORT_S * NS:
            return
        self._reported_at = now
        self._signed_at = self._signed_at or now
        self.send(Heartbeat(self._scheduler.load(), self._timings.steps, self._counters()))
        if now - self._signed_at >= SIGN_OF_LIFE_S * NS:
            self._signed_at = now
            for answer in answers:
                if now - answer.clock.told_at >= SIGN_OF_LIFE_S * NS and answer.clock.first_token_at == 0:
                    self.progress(answer, now)
            self._messages += [*self._embeddings.signs(), *(Progress(one, 0) for one in reading)]
        if now - self._holdings_at >= HOLDINGS_S * NS:
            self._holdings_at = now
            self._tell_holdings(now)

    def _tell_holdings(self, now: int) -> None:
        holdings = summarise(self._scheduler.held(), now)
        if holdings != self._holdings:
            self._holdings = holdings
            self.send(holdings)

    def _counters(self) -> dict[str, float]:
        return {
            **self._scheduler.counters(),
            **self._timings.counters(),
            "threads": float(self._threads.threads),
            "embeddings_waiting": float(len(self._embeddings)),
        }

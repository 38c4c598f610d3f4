"""Nodes that fall in the middle of an answer: the entry node's own failover over workers without sockets."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from saiserve.dispatch.attempt import AttemptState
from saiserve.dispatch.failover import Done, Failover, Start
from saiserve.engines.llamacpp.answer import Answer
from saiserve.engines.llamacpp.batch_arrays import Logits
from saiserve.engines.messages import Accepted, Cancel, EngineReply, Generate, Tokens
from saiserve.routing.candidate import Candidate, Placement, Residence
from tests.unit.llamacpp.desk import STEPS_MAX, Desk

FELL = "connection reset"
NOW = 1_000_000_000
SECOND = 1_000_000_000


@dataclass
class Told:
    """What the entry node has of an answer in the end, and what the drawing nodes drew each token from."""

    tokens: tuple[int, ...]
    data: bytes
    done: Done
    logits: list[NDArray[np.float32]]
    prompt: tuple[int, ...] = ()
    margin: float = np.inf
    """The least distance of a drawn token from the next best allowed one, where it was asked for."""


class Node:
    """A worker whose draws are noted down."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.logits: dict[str, list[NDArray[np.float32]]] = {}
        self.prompts: dict[str, tuple[int, ...]] = {}
        self.margins: dict[str, float] = {}
        self.weighs = False
        """Whether margins are found, which takes as long as a draw."""
        self._draw = desk.worker._draw
        desk.worker._draw = self._note  # type: ignore[method-assign]

    def _note(self, answer: Answer, logits: Logits, position: int, now: int) -> None:
        request_id = answer.request.id
        self.prompts[request_id] = answer.prompt.ids
        self.logits.setdefault(request_id, []).append(logits.copy())
        if self.weighs:
            self.margins[request_id] = min(self.margins.get(request_id, np.inf), _margin(answer, logits.copy()))
        self._draw(answer, logits, position, now)

    def park(self) -> None:
        """Time passes; everything idle goes to host memory."""
        self.desk.now += SECOND
        for _ in range(STEPS_MAX):
            if not self.desk.step():
                return
        raise AssertionError("the chores do not end")


def _margin(answer: Answer, logits: Logits) -> float:
    for token, bias in answer.request.sampling.logit_bias:
        logits[token] += bias
    if answer.matcher is not None:
        logits[answer.matcher.forbidden()] = -np.inf
    second, best = np.partition(logits, -2)[-2:]
    return float(best - second)


@dataclass
class Script:
    """A node that says these tokens and falls."""

    tokens: tuple[int, ...]
    data: bytes

    def replies(self, request_id: str) -> list[EngineReply]:
        return [Accepted(request_id, 1), Tokens(request_id, self.tokens, self.data)]


@dataclass
class Fleet:
    """Nodes in the order in which the entry node tries them."""

    nodes: Mapping[str, Node]
    data: bytearray = field(default_factory=bytearray)

    def answer(
        self,
        template: Generate,
        order: Sequence[str],
        *,
        falls_after: int | None = None,
        begun: Script | None = None,
        weighs: bool = False,
    ) -> Told:
        """The whole answer.

        Args:
            falls_after: tokens that the first of `order` draws before it falls; None: it does not.
            begun: what another node has said already, and fallen.
            weighs: find the margin.
        """
        self.data.clear()
        failover = Failover(template, now=NOW)
        failover.offer(tuple(map(_candidate, [*(["begun"] if begun else []), *order])))
        logits: list[NDArray[np.float32]] = []
        margin, prompt = np.inf, ()
        while isinstance(step := failover.decide(NOW), Start):
            step.attempt.sent(NOW)
            if step.candidate.node == "begun":
                assert begun is not None
                self._hear(failover, step, begun.replies(step.attempt.id), len(begun.tokens))
            else:
                node, limit = self.nodes[step.candidate.node], falls_after if step.candidate.node == order[0] else None
                node.weighs = weighs
                self._serve(failover, step, node, limit)
                logits += node.logits.pop(step.attempt.id, [])[: step.attempt.tokens + (limit is None)]
                margin = min(margin, node.margins.pop(step.attempt.id, np.inf))
                prompt = node.prompts.pop(step.attempt.id, ())
            failover.ended(NOW)
        assert isinstance(step, Done), step
        return Told(tuple(failover.tokens), bytes(self.data), step, logits, prompt, margin)

    def _serve(self, failover: Failover, start: Start, node: Node, limit: int | None) -> None:
        desk, request_id = node.desk, start.attempt.id
        desk.worker.handle(start.generate, desk.now)
        desk.collect()
        heard = 0
        for _ in range(STEPS_MAX):
            said = desk.said.get(request_id, [])
            self._hear(failover, start, said[heard:], limit)
            heard = len(said)
            if start.attempt.is_over:
                break
            if not desk.step():
                time.sleep(0.001)  # the constraint is compiling on its thread
        desk.worker.handle(Cancel(request_id), desk.now)
        desk.collect()
        assert desk.worker._scheduler.load().busy == 0
        assert limit is not None or start.attempt.state is AttemptState.FINISHED, start.attempt.detail

    def _hear(self, failover: Failover, start: Start, said: Sequence[EngineReply], limit: int | None) -> None:
        """What comes before the fall; the rest is lost on the way."""
        for message in said:
            assert start.attempt.receive(NOW, message), start.attempt.detail
            if isinstance(message, Accepted):
                failover.started()
            elif isinstance(message, Tokens):
                failover.take(message)
                self.data += message.data
            if limit is not None and start.attempt.accepted and start.attempt.tokens >= limit:
                start.attempt.hop_failed(sent=True, detail=FELL)
                return


def _candidate(name: str) -> Candidate:
    return Candidate(name, name, "tiny", Placement.PEER, Residence.READY, True, digest=b"equal000")

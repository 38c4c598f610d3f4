"""The requests that are in an engine process: carried there, answered into their mailboxes, ended with the process."""

from __future__ import annotations

import trio

from saiserve.engines.frames import FrameError
from saiserve.engines.llamacpp.child import Child
from saiserve.engines.llamacpp.mailbox import Mailbox
from saiserve.engines.messages import (
    Cancel,
    Count,
    Counted,
    Embed,
    Embedded,
    EngineReply,
    FailureKind,
    Generate,
    Load,
    Progress,
    RefusalReason,
    Refused,
    is_terminal,
)

SIGN_OF_LIFE_S = 1.0
"""Silence on a request after which the node itself speaks for a process that is alive."""
BEHIND_RETRY_S = 1.0
"""When to come again where the process is behind with reading."""


class Mailboxes:
    """One mailbox for each request in the process, by its id; never waits."""

    def __init__(self) -> None:
        self._open: dict[str, Mailbox] = {}

    def __len__(self) -> int:
        return len(self._open)

    def carry(self, request: Generate | Count | Embed, child: Child, load: Load) -> Mailbox:
        """Give a request to the process. Its mailbox holds a refusal, with this load, where that cannot be."""
        mailbox = mailbox_of(request)
        refusal = self._hand_over(request, child, load)
        if refusal is None:
            self._open[request.id] = mailbox
        else:
            mailbox.put(refusal)
        return mailbox

    def _hand_over(self, request: Generate | Count | Embed, child: Child, load: Load) -> Refused | None:
        if request.id in self._open:
            return Refused(request.id, RefusalReason.BAD_REQUEST, "this id is in use", load)
        try:
            sent = child.send(request)
        except FrameError as error:
            return Refused(request.id, RefusalReason.BAD_REQUEST, str(error), load)
        if sent:
            return None
        behind = "the engine is behind with reading"
        return Refused(request.id, RefusalReason.BUSY, behind, load, retry_after_s=BEHIND_RETRY_S)

    def deliver(self, message: EngineReply | Counted | Embedded) -> bool:
        """Put a message where it belongs; False when nobody waits for it any more."""
        mailbox = self._open.get(message.id)
        if mailbox is None:
            return False
        mailbox.put(message)
        if isinstance(message, (Counted, Embedded)) or is_terminal(message):
            del self._open[message.id]
        return True

    def abandon(self, mailbox: Mailbox, child: Child | None) -> None:
        """Nobody reads this mailbox any more: cancel its request if it is in the process."""
        if self._open.get(mailbox.request_id) is mailbox:
            del self._open[mailbox.request_id]
            if child is not None:
                child.send(Cancel(mailbox.request_id))

    def vouch(self) -> None:
        """Give a sign of life for each request that has had none for a while."""
        now = trio.current_time()
        for mailbox in self._open.values():
            if mailbox.streams and now - mailbox.heard_at >= SIGN_OF_LIFE_S:
                mailbox.put(Progress(mailbox.request_id, mailbox.prefilled))

    def end(self, kind: FailureKind, detail: str) -> None:
        """The process is gone, for this reason."""
        for mailbox in self._open.values():
            mailbox.process_ended(kind, detail)
        self._open.clear()


def mailbox_of(request: Generate | Count | Embed) -> Mailbox:
    """An empty mailbox for what comes back."""
    return Mailbox(request.id, streams=isinstance(request, Generate))

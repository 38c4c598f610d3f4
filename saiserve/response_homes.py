"""Where kept responses are, as a node sees it: see `saiserve.api.responses_kept.Homes`."""

from __future__ import annotations

from typing import Final

import trio

from saiserve.api.responses_kept import CALL, mark_of
from saiserve.engines.engine import HopError
from saiserve.errors import ApiError, ErrorKind
from saiserve.node import Node

ASK_S: Final = 5.0
"""Longest wait for another node's answer."""
RETRY_AFTER_S: Final = 2.0


class NodeHomes:
    """The members of a node's cluster as homes of responses."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.mark = mark_of(node.settings.node_name)

    def name_of(self, mark: str) -> str | None:
        """Return the live member that bears a mark."""
        return next((name for name in self._node.member_names if mark_of(name) == mark), None)

    async def ask(self, member: str, body: bytes) -> bytes:
        """Put a question to a member.

        Raises:
            ApiError: 504, it does not answer.
        """
        try:
            with trio.fail_after(ASK_S):
                if self._node.peers is not None:
                    return await self._node.peers.call(member, CALL, body)
        except (HopError, trio.TooSlowError):
            pass
        raise ApiError(
            ErrorKind.TIMED_OUT,
            f"The node {member}, which keeps this response, does not answer; try again, or send the history in `input`.",
            retry_after_s=RETRY_AFTER_S,
        )

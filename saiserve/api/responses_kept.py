"""Kept responses, wherever in the cluster they are kept: an id ends in its node's mark, and that node is asked.

Only the node that made a response holds it; the others put one question to it over the peer hop (get or delete), with
the name of the client's key, which must be the one that made it.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec
from blake3 import blake3

from saiserve.api.responses_store import ResponseStore, StoredResponse, decode_stored, encode_stored
from saiserve.errors import ApiError, ErrorKind

CALL: Final = "response"
"""Name of the peer call."""
MARK_CHARACTERS: Final = 8


class Question(msgspec.Struct, frozen=True, array_like=True):
    """What one node asks the node that keeps a response."""

    response_id: str
    key_name: str
    delete: bool = False


class Homes(Protocol):
    """The nodes that may keep responses."""

    @property
    def mark(self) -> str:
        """This node's mark."""
        ...

    def name_of(self, mark: str) -> str | None:
        """Return the member that bears a mark, None when none does now."""
        ...

    async def ask(self, member: str, body: bytes) -> bytes:
        """Put a question to a member.

        Raises:
            ApiError: 503, it cannot be reached.
        """
        ...


def mark_of(node_name: str) -> str:
    """Return the mark of a node: eight hexadecimal digits that do not tell its name."""
    return blake3(node_name.encode(), derive_key_context="saiserve 2026 kept responses").hexdigest()[:MARK_CHARACTERS]


class KeptResponses:
    """This node's own, and the way to the others'."""

    def __init__(self, store: ResponseStore | None = None, homes: Homes | None = None) -> None:
        self._store = store or ResponseStore()
        self._homes = homes
        self.put = self._store.put

    def id_for(self, request_id: str) -> str:
        """Return the id of the response to a request."""
        return f"resp_{request_id}{self._homes.mark if self._homes is not None else ''}"

    async def get(self, response_id: str, key_name: str) -> StoredResponse:
        """Return a response.

        Raises:
            ApiError: 404 when its node has it no more or is gone, 503 when that cannot be reached.
        """
        home = self._home(response_id)
        if home is None:
            return self._store.get(response_id, key_name)
        return decode_stored(await self._ask(home, Question(response_id, key_name)))

    async def delete(self, response_id: str, key_name: str) -> None:
        """Forget a response.

        Raises:
            ApiError: as `get`.
        """
        home = self._home(response_id)
        if home is None:
            self._store.delete(response_id, key_name)
        else:
            await self._ask(home, Question(response_id, key_name, delete=True))

    async def answer(self, _asker: str, body: bytes) -> bytes:
        """Answer another node's question; an empty answer means that it is not here (see `PeerCall`)."""
        question = msgspec.msgpack.decode(body, type=Question)
        try:
            stored = self._store.get(question.response_id, question.key_name)
        except ApiError:
            return b""
        if question.delete:
            self._store.delete(question.response_id, question.key_name)
        return encode_stored(stored)

    def _home(self, response_id: str) -> str | None:
        """Return the other node that keeps a response; None when only this one can."""
        homes = self._homes
        mark = response_id[-MARK_CHARACTERS:]
        if homes is None or mark == homes.mark or response_id in self._store:
            return None
        return homes.name_of(mark)

    async def _ask(self, home: str, question: Question) -> bytes:
        assert self._homes is not None
        answer = await self._homes.ask(home, msgspec.msgpack.encode(question))
        if not answer:
            raise ApiError(
                ErrorKind.NOT_FOUND,
                f"No response {question.response_id[:80]!r} is kept on {home}, which made it; send the history in "
                "`input` instead.",
                param="response_id",
            )
        return answer

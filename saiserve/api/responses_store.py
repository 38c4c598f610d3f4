"""Responses kept for `previous_response_id` and GET: in memory, on this node, bounded in number and bytes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import msgspec

from saiserve import limits
from saiserve.chat.request import ImagePart, Message, Part, Role, TextPart, ToolCall
from saiserve.errors import ApiError, ErrorKind


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One response and the conversation it ends."""

    body: dict[str, Any]
    input_items: list[Any]
    messages: tuple[Message, ...]
    """Everything said so far, instructions left out."""
    key_name: str
    size_bytes: int


class ResponseStore:
    """The newest responses; the oldest give way. A response is seen only with the key that made it."""

    def __init__(
        self, *, count_max: int = limits.RESPONSES_STORED_MAX, bytes_max: int = limits.RESPONSES_STORED_BYTES_MAX
    ) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()

    def put(self, body: dict[str, Any], input_items: list[Any], messages: tuple[Message, ...], key_name: str) -> None:
        """Keep a finished response, unless it is larger than all that may be kept."""
        size = len(msgspec.json.encode([body, input_items])) + sum(_size(message) for message in messages)
        if size > self._bytes_max:
            return
        self._responses[body["id"]] = StoredResponse(body, input_items, messages, key_name, size)
        self._bytes += size
        while self._bytes > self._bytes_max or len(self._responses) > self._count_max:
            _, oldest = self._responses.popitem(last=False)
            self._bytes -= oldest.size_bytes

    def __contains__(self, response_id: str) -> bool:
        """Whether a response is kept here, whoever asks."""
        return response_id in self._responses

    def get(self, response_id: str, key_name: str) -> StoredResponse:
        """Return a response.

        Raises:
            ApiError: 404 when it is not here, or is another key's.
        """
        stored = self._responses.get(response_id)
        if stored is None or stored.key_name != key_name:
            raise ApiError(
                ErrorKind.NOT_FOUND,
                f"No response {response_id[:80]!r} is kept on this node; send the history in `input` instead.",
                param="response_id",
            )
        return stored

    def delete(self, response_id: str, key_name: str) -> None:
        """Forget a response.

        Raises:
            ApiError: 404 when it is not here, or is another key's.
        """
        self._bytes -= self.get(response_id, key_name).size_bytes
        del self._responses[response_id]


def _size(message: Message) -> int:
    images = sum(len(getattr(part, "data", b"")) for part in message.parts)
    calls = sum(len(call.arguments) for call in message.tool_calls)
    return len(message.text) + len(message.reasoning) + calls + images + 200


def encode_stored(stored: StoredResponse) -> bytes:
    """Return a response in bytes for another node."""
    return msgspec.msgpack.encode(stored)


def decode_stored(data: bytes) -> StoredResponse:
    """Return the response another node sent.

    Raises:
        msgspec.DecodeError: it is none.
    """
    plain = msgspec.msgpack.decode(data, type=_Plain)
    messages = tuple(_message(message) for message in plain.messages)
    return StoredResponse(plain.body, plain.input_items, messages, plain.key_name, plain.size_bytes)


class _Plain(msgspec.Struct):
    """A stored response whose messages are not told apart yet."""

    body: dict[str, Any]
    input_items: list[Any]
    messages: list[dict[str, Any]]
    key_name: str
    size_bytes: int


def _message(plain: dict[str, Any]) -> Message:
    """Return a message; a part with `media_type` is an image (a union that msgspec cannot tell by itself)."""
    parts: list[Part] = []
    for part in plain.pop("parts"):
        is_image = "media_type" in part
        parts.append(msgspec.convert(part, ImagePart) if is_image else msgspec.convert(part, TextPart))
    calls = tuple(msgspec.convert(call, ToolCall) for call in plain.pop("tool_calls"))
    return Message(role=Role(plain.pop("role")), parts=tuple(parts), tool_calls=calls, **plain)

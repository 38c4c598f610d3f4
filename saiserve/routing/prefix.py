"""Prefix marks: which prompts begin alike, told by keyed hashes without a tokenizer or any text leaving the node.

One BLAKE3 state runs over model, tools and messages in render order and is read at message boundaries and, inside long
messages, at geometric byte depths. Equal marks mean equal beginnings. The key is a salt of the cluster, the same on
every node and not one that rotates, so that all nodes agree and nobody outside can probe placement.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from blake3 import blake3

from saiserve.chat.request import GenerationRequest, ImagePart, Message, Role, TextPart, Tool
from saiserve.engines.packed import ids_bytes
from saiserve.limits import PREFIX_MARKS_FIRST, PREFIX_MARKS_LAST
from saiserve.routing.candidate import History

MARK_BYTES = 16
BYTES_PER_TOKEN = 4
"""Estimate for text of any language; the serving node counts exactly."""
MESSAGE_TOKENS = 4
"""Estimate for what a template puts around a message."""
IMAGE_TOKENS = 256
FIRST_DEPTH_BYTES = 1024
"""Messages longer than this get marks inside, at this depth and each doubling of it."""
SCAFFOLD_TOKENS = 256
"""The least a shared head must measure to steer placement."""

Mark = tuple[bytes, int]
"""(digest, estimated tokens up to there)."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """What routing knows of a prompt."""

    marks: tuple[Mark, ...]
    """Shortest first; the last covers the whole prompt."""
    scaffold: bytes
    """The first mark of at least SCAFFOLD_TOKENS before the opening; empty when the head is short."""
    opening: bytes
    """The prompt of the first turn: equal in all turns of a conversation. Empty for an empty prompt."""
    tokens: int
    history: History


def prefix_marks(request: GenerationRequest, salt: bytes, *, model: str = "", isolation: str = "") -> tuple[Mark, ...]:
    """The marks of a request's prompt, shortest first: (16-byte digest, estimated tokens up to there)."""
    return read_prefix(request, salt, model=model, isolation=isolation).marks


def read_prefix(request: GenerationRequest, salt: bytes, *, model: str = "", isolation: str = "") -> Prefix:
    """Marks, scaffold, opening and history of a request.

    Sampling, identifiers and replayed reasoning leave no trace in a mark. Images count by their hash.

    Args:
        salt: any bytes, the same on every node of the cluster.
        model: canonical id; empty takes the request's own name for it.
        isolation: only requests of equal isolation share marks.
    """
    chain = _Chain(salt, f"{isolation}\x00{model or request.model}")
    if request.messages is None:
        return _completion(chain, request)
    if request.tools:
        chain.add(b"tools", _tools(request.tools))
    opening, history = _walk(chain, request.messages)
    whole = chain.marks[-1][1] if chain.marks else 0
    opening_digest, opening_tokens = opening
    scaffold = next((d for d, tokens in chain.marks if SCAFFOLD_TOKENS <= tokens < opening_tokens), b"")
    return Prefix(_thinned(chain.marks), scaffold, opening_digest, whole, history)


class _Chain:
    """The running hash and the marks read from it."""

    def __init__(self, salt: bytes, head: str) -> None:
        self._state = blake3(head.encode("utf-8", "surrogatepass"), key=blake3(salt).digest())
        self._bytes = 0
        self._extra_tokens = 0
        self.marks: list[Mark] = []

    def add(self, tag: bytes, data: bytes, extra_tokens: int = 0) -> None:
        """Append a segment, with marks at geometric depths inside it and one at its end."""
        # The lengths in front keep ("a", "bc") and ("ab", "c") apart; a segment's own length comes after its content,
        # so that a longer text with the same beginning shares the marks inside.
        self._state.update(len(tag).to_bytes(1, "big") + tag)
        start, depth = 0, FIRST_DEPTH_BYTES
        while depth < len(data):
            self._feed(data[start:depth])
            start, depth = depth, depth * 2
        self._extra_tokens += extra_tokens
        self._bytes += len(data) - start
        self._state.update(data[start:] + len(data).to_bytes(8, "big"))
        self._mark()

    def _feed(self, piece: bytes) -> None:
        self._state.update(piece)
        self._bytes += len(piece)
        self._mark()

    def _mark(self) -> None:
        tokens = -(-self._bytes // BYTES_PER_TOKEN) + self._extra_tokens
        self.marks.append((self._state.digest(length=MARK_BYTES), tokens))


def _walk(chain: _Chain, messages: tuple[Message, ...]) -> tuple[Mark, History]:
    """Add all messages; the opening's mark and the history."""
    opening: Mark | None = None
    asked = False
    turns = previous = through = calls = errors = 0
    last = len(messages) - 1
    for index, message in enumerate(messages):
        # An assistant message in last place is the beginning of this answer, not a turn that was served.
        if message.role is Role.ASSISTANT and index < last:
            before = chain.marks[-1] if chain.marks else (b"", 0)
            if asked and opening is None:
                opening = before
            turns, previous = turns + 1, before[1]
        asked = asked or message.role is Role.USER
        data, extra = _message(message)
        chain.add(message.role.encode(), data, extra)
        calls += len(message.tool_calls)
        errors += message.is_error
        if message.role is Role.ASSISTANT and index < last:
            through = chain.marks[-1][1]
    opening = opening or (chain.marks[-1] if chain.marks else (b"", 0))
    return opening, History(turns, calls, errors, previous, through)


def _message(message: Message) -> tuple[bytes, int]:
    """What a template shows of a message, and the tokens that its bytes do not tell."""
    pieces: list[bytes] = [message.name.encode("utf-8", "surrogatepass")] if message.name else []
    extra = MESSAGE_TOKENS
    for part in message.parts:
        if isinstance(part, TextPart):
            pieces.append(part.text.encode("utf-8", "surrogatepass"))
        else:
            pieces.append(_image(part))
            extra += IMAGE_TOKENS
    calls = (f"\x00call\x00{call.name}\x00{call.arguments}" for call in message.tool_calls)
    pieces.extend(call.encode("utf-8", "surrogatepass") for call in calls)
    return b"".join(pieces), extra


def _image(part: ImagePart) -> bytes:
    return b"\x00image\x00" + blake3(part.data).digest()


def _tools(tools: tuple[Tool, ...]) -> bytes:
    return b"".join(_tool(tool) for tool in tools)


def _tool(tool: Tool) -> bytes:
    body = [tool.namespace, tool.name, tool.description, tool.parameters]
    return json.dumps(body, sort_keys=True, default=str).encode()


def _completion(chain: _Chain, request: GenerationRequest) -> Prefix:
    """A raw prompt has no turns; its first kibibyte stands for the conversation."""
    if request.prompt_tokens is not None:
        data = ids_bytes(request.prompt_tokens)
    else:
        data = (request.prompt_text or "").encode("utf-8", "surrogatepass")
    if not data:
        return Prefix((), b"", b"", 0, History())
    chain.add(b"prompt", data)
    return Prefix(_thinned(chain.marks), b"", chain.marks[0][0], chain.marks[-1][1], History())


def _thinned(marks: list[Mark]) -> tuple[Mark, ...]:
    """A long chain without its middle: the head places the request, the tail finds its last turn."""
    if len(marks) <= PREFIX_MARKS_FIRST + PREFIX_MARKS_LAST:
        return tuple(marks)
    return tuple(marks[:PREFIX_MARKS_FIRST] + marks[-PREFIX_MARKS_LAST:])

"""In which order a chat template takes messages, and the same conversation in an order that it takes. Pure.

Clients send several system messages, system messages between turns and users in a row; of the templates in use a fifth
refuses some of these and another leaves messages out without a word. So each order is asked about with words that occur
nowhere else, which must all come out, in their order. What is adapted keeps its place, so that the head of a prompt
never changes as a conversation grows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Message = dict[str, Any]
Text = Callable[[Sequence[Mapping[str, Any]]], str]
"""Messages to the prompt's text; raises ValueError when the template refuses them."""

ROLES = {"S": "system", "U": "user", "A": "assistant"}
ORDERS = {
    "system_stays": ("SU", "SUA", "SUAU", "SUAUA"),
    "system_run": ("SSU", "SSSU", "SSUAU"),
    "system_later": ("US", "USU", "SUS", "SUSU", "SUSSU", "SUASU", "SUAUS", "UAUSU"),
    "users_in_row": ("UU", "UUU", "UAUU", "UUAU"),
    "assistants_in_row": ("UAAU", "UAUAAU"),
    "assistant_first": ("AU", "AUAU"),
}
"""Conversations, a letter a message, that must come out whole for a cap to be true."""
SYSTEM_MARK, USER_MARK = "System message:\n", "User message:\n"
"""What stands before the text of a system message told as a user's, and of a user's told with a tool's result."""
BETWEEN = "\n\n"
"""Between messages that become one."""


@dataclass(frozen=True, slots=True)
class OrderCaps:
    """True where messages in this order all come out, in it."""

    system_stays: bool = True
    """A system message at the head comes out there whatever follows; some move it to the newest question."""
    system_run: bool = True
    """Several system messages at the head."""
    system_later: bool = True
    """A system message behind others."""
    users_in_row: bool = True
    assistants_in_row: bool = True
    assistant_first: bool = True
    user_after_tool: bool = True
    """A user message right behind a tool's result; True also where results are not shown at all."""


def probe_order(text_of: Text, say: Callable[[str], Any], *, user_after_tool: bool = True) -> OrderCaps:
    """Ask the template about every order; `say` gives content in the form it takes."""
    found = {name: all(_comes_out(text_of, say, order) for order in orders) for name, orders in ORDERS.items()}
    return OrderCaps(**found, user_after_tool=user_after_tool)


def _comes_out(text_of: Text, say: Callable[[str], Any], order: str) -> bool:
    words = [f"zqorder{place}q" for place in range(len(order))]
    messages = [{"role": ROLES[letter], "content": say(word)} for letter, word in zip(order, words, strict=True)]
    try:
        text = text_of(messages)
    except ValueError:
        return False
    places = [text.find(word) for word in words]
    return -1 not in places and places == sorted(places)


def reorder(messages: list[Message], caps: OrderCaps, *, system: bool) -> list[Message]:
    """The same messages in an order the template takes, each at its place. `system`: it takes one at the head."""
    system = system and caps.system_stays
    head = next((at for at, message in enumerate(messages) if message.get("role") != "system"), len(messages))
    leading, rest = messages[:head], messages[head:]
    if len(leading) > 1 and not (system and caps.system_run):
        leading = [_merged(leading)]
    if not (system and caps.system_later):
        rest = [_told_by_user(message) if message.get("role") == "system" else message for message in rest]
    if leading and not system:
        leading, rest = [], _head_told_by_user(leading[0], rest)
    if not caps.users_in_row:
        rest = _joined_runs(rest, "user")
    if not caps.assistants_in_row:
        rest = _joined_runs(rest, "assistant")
    if not caps.user_after_tool:
        rest = _told_with_results(rest)
    return [*leading, *rest]


def lost(messages: Sequence[Message], caps: OrderCaps) -> str | None:
    """What the template would leave out of messages that `reorder` gave, if it does not refuse them; None: nothing."""
    roles = [message.get("role") for message in messages if message.get("role") != "system"]
    if not caps.assistant_first and roles[:1] == ["assistant"]:
        return "an answer that comes before any question"
    if not caps.assistants_in_row and any(_is_plain_run(*pair) for pair in pairwise(messages)):
        return "one of two answers in a row"
    return None


def _is_plain_run(one: Message, other: Message) -> bool:
    return one.get("role") == other.get("role") == "assistant" and not one.get("tool_calls")


def _merged(messages: Sequence[Message]) -> Message:
    content: Any = messages[0].get("content")
    for message in messages[1:]:
        content = _with(content, message.get("content"))
    return {**messages[0], "content": content}


def _told_by_user(message: Message) -> Message:
    return {"role": "user", "content": _marked(SYSTEM_MARK, message.get("content"))}


def _marked(mark: str, content: Any) -> Any:
    return [*_parts(mark), *content] if isinstance(content, list) else f"{mark}{content or ''}"


def _told_with_results(messages: Sequence[Message]) -> list[Message]:
    """What the user says right behind a tool's result goes with that result."""
    told: list[Message] = []
    for message in messages:
        if message.get("role") == "user" and told and told[-1].get("role") == "tool":
            said = message.get("content")
            if not (isinstance(said, str) and said.startswith(SYSTEM_MARK)):
                said = _marked(USER_MARK, said)
            told[-1] = {**told[-1], "content": _with(told[-1].get("content"), said)}
        else:
            told.append(message)
    return told


def _head_told_by_user(head: Message, rest: list[Message]) -> list[Message]:
    """The system text ahead of the first user message, or as one before an answer that opens the conversation."""
    if rest and rest[0].get("role") == "user":
        return [{**rest[0], "content": _with(head.get("content"), rest[0].get("content"))}, *rest[1:]]
    return [{"role": "user", "content": head.get("content")}, *rest]


def _joined_runs(messages: Sequence[Message], role: str) -> list[Message]:
    """Neighbours of this role as one message each; calls end a run, as what follows them must stay behind."""
    joined: list[Message] = []
    for message in messages:
        last = joined[-1] if joined else {}
        if message.get("role") == last.get("role") == role and not last.get("tool_calls"):
            joined[-1] = {**last, **message, "content": _with(last.get("content"), message.get("content"))}
        else:
            joined.append(message)
    return joined


def _with(before: Any, after: Any) -> Any:
    """Two contents as one, texts or lists of parts; nothing is added to an empty one."""
    if not before or not after:
        return before or after
    if isinstance(before, str) and isinstance(after, str):
        return f"{before}{BETWEEN}{after}"
    first, second = (_parts(content) if isinstance(content, str) else list(content) for content in (before, after))
    return [*first, *_parts(BETWEEN), *second]


def _parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]

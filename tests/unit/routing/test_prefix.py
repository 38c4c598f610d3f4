"""Prefix marks: equal beginnings, equal marks; and what must not show in them."""

from __future__ import annotations

from dataclasses import replace

from saiserve.chat.request import GenerationRequest, ImagePart, Message, Role, TextPart, Tool, ToolCall
from saiserve.engines.messages import Constraint, Sampling
from saiserve.limits import PREFIX_MARKS_FIRST, PREFIX_MARKS_LAST
from saiserve.routing.describe import describe, traits_of
from saiserve.routing.prefix import prefix_marks, read_prefix
from tests.unit.routing.simulated_fleet import chat

SALT = b"salt"


def shared(a: GenerationRequest, b: GenerationRequest) -> int:
    """Marks two requests have in common."""
    return len({d for d, _ in prefix_marks(a, SALT)} & {d for d, _ in prefix_marks(b, SALT)})


def test_the_opening_is_the_same_in_every_turn_and_the_history_counts() -> None:
    first = read_prefix(chat("1", "hello", system="be kind"), SALT)
    third = read_prefix(chat("3", "hello", "hi!", "how are you?", "fine", "good", system="be kind"), SALT)
    assert first.opening == third.opening == first.marks[-1][0]
    assert first.history.turns == first.history.tokens == 0
    assert third.history.turns == 2
    assert third.marks[-3][1] == third.history.previous_tokens
    assert third.marks[-2][1] == third.history.tokens


def test_an_answer_that_was_begun_is_not_a_turn() -> None:
    begun = read_prefix(chat("1", "hello", "Dear"), SALT)
    assert begun.history.turns == 0
    assert begun.opening == begun.marks[-1][0]


def test_a_greeting_before_the_first_question_belongs_to_the_opening() -> None:
    greeting = Message(Role.ASSISTANT, (TextPart("How can I help?"),))
    openings = {
        read_prefix(replace(base, messages=(greeting, *(base.messages or ()))), SALT).opening
        for base in (chat("1", "one"), chat("2", "two"), chat("3", "two", "answer", "three"))
    }
    assert len(openings) == 2


def test_several_user_messages_before_the_first_answer_are_one_opening() -> None:
    user = tuple(Message(Role.USER, (TextPart(text),)) for text in ("rules of the house", "the question"))
    answered = (*user, Message(Role.ASSISTANT, (TextPart("yes"),)), user[1])
    first, second = (replace(chat("1"), messages=messages) for messages in (user, answered))
    assert read_prefix(first, SALT).opening == read_prefix(second, SALT).opening


def test_long_texts_with_the_same_beginning_share_marks_inside() -> None:
    head = "x" * 5_000
    assert shared(chat("1", head + "one"), chat("2", head + "two")) == 3
    assert shared(chat("1", "one"), chat("2", "two")) == 0


def test_a_long_head_has_a_scaffold_and_a_short_one_has_none() -> None:
    long = "s" * 3_000
    a, b = chat("1", "one", system=long), chat("2", "two", system=long)
    assert read_prefix(a, SALT).scaffold == read_prefix(b, SALT).scaffold != b""
    assert read_prefix(a, SALT).opening != read_prefix(b, SALT).opening
    assert read_prefix(chat("1", "one", system="short"), SALT).scaffold == b""


def test_identifiers_sampling_and_reasoning_leave_no_trace() -> None:
    call = Message(Role.ASSISTANT, tool_calls=(ToolCall("id-1", "f", "{}"),), reasoning="because")
    other = replace(call, reasoning="why not", tool_calls=(ToolCall("id-2", "f", "{}"),))
    base = chat("1", "hello")
    assert base.messages is not None
    a = replace(base, messages=(*base.messages, call, *base.messages))
    b = replace(a, id="2", key_name="k", sampling=Sampling(seed=9), messages=(*base.messages, other, *base.messages))
    assert prefix_marks(a, SALT) == prefix_marks(b, SALT)


def test_model_salt_isolation_tools_images_and_roles_do_show() -> None:
    base = chat("1", "hello")
    mine = prefix_marks(base, SALT)
    picture = Message(Role.USER, (ImagePart("image/png", b"1"),))
    variants = {
        "salt": prefix_marks(base, b"other"),
        "model": prefix_marks(base, SALT, model="other"),
        "isolation": prefix_marks(base, SALT, isolation="tenant"),
        "tools": prefix_marks(replace(base, tools=(Tool("f"),)), SALT),
        "role": prefix_marks(replace(base, messages=(Message(Role.SYSTEM, (TextPart("hello"),)),)), SALT),
        "image": prefix_marks(replace(base, messages=(picture,)), SALT),
        "other image": prefix_marks(replace(base, messages=(replace(picture, parts=(ImagePart("", b"2"),)),)), SALT),
    }
    digests = [marks[-1][0] for marks in (mine, *variants.values())]
    assert len(set(digests)) == len(digests)


def test_the_order_of_keys_in_a_tools_schema_does_not_show() -> None:
    a, b = ({"type": "object", "properties": {}}, {"properties": {}, "type": "object"})
    base = chat("1", "hello")
    assert prefix_marks(replace(base, tools=(Tool("f", parameters=a),)), SALT) == prefix_marks(
        replace(base, tools=(Tool("f", parameters=b),)), SALT
    )


def test_a_very_long_conversation_keeps_its_head_and_tail() -> None:
    turns = [f"turn {number}" for number in range(1_001)]
    marks = prefix_marks(chat("1", *turns), SALT)
    assert len(marks) == PREFIX_MARKS_FIRST + PREFIX_MARKS_LAST
    following = prefix_marks(chat("2", *turns, "answer", "question"), SALT)
    assert marks[-1] in following


def test_completions_share_by_depth_and_an_empty_prompt_has_no_marks() -> None:
    base = replace(chat("1"), messages=None)
    a, b = (replace(base, prompt_text="p" * 3_000 + end) for end in "ab")
    assert read_prefix(a, SALT).opening == read_prefix(b, SALT).opening
    assert shared(a, b) == 2
    tokens = replace(base, prompt_tokens=tuple(range(1_000)))
    assert read_prefix(tokens, SALT).tokens == 1_000
    assert prefix_marks(replace(base, prompt_text=""), SALT) == ()
    assert read_prefix(replace(base, prompt_text=""), SALT).opening == b""


def test_a_description_says_what_a_request_takes_and_holds_no_text() -> None:
    base = chat("1", "a secret sentence")
    assert base.messages is not None
    rich = replace(
        base,
        tools=(Tool("f"),),
        constraint=Constraint("json_object"),
        messages=(*base.messages, Message(Role.USER, (ImagePart("image/png", b"1"),))),
    )
    assert traits_of(base) == {"chat"}
    assert traits_of(rich) == {"chat", "tools", "schema", "vision"}
    described = describe(base, SALT, upstreams=["x"])
    assert "secret" not in repr(described)
    assert described.conversation == described.opening.hex()
    assert describe(replace(base, conversation="c"), SALT).conversation == "c"


def test_lone_surrogates_do_no_harm() -> None:
    assert prefix_marks(chat("\ud800", "\ud800"), SALT, model="\udfff")

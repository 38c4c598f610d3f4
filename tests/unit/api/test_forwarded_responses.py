"""Responses that another node keeps: found by the mark in their id, never with another key."""

from __future__ import annotations

import pytest

from saiserve.api.responses_kept import KeptResponses, mark_of
from saiserve.api.responses_store import StoredResponse, decode_stored, encode_stored
from saiserve.chat.request import ImagePart, Message, Role, TextPart, ToolCall
from saiserve.errors import ApiError, ErrorKind

MESSAGES = (
    Message(Role.USER, (TextPart("Look:"), ImagePart("image/png", b"\x89PNG"))),
    Message(Role.ASSISTANT, reasoning="hm", tool_calls=(ToolCall("c1", "run", '{"x": 1}', "ns"),)),
    Message(Role.TOOL, (TextPart("out"),), tool_call_id="c1", is_error=True),
)


class Cluster:
    """Nodes by name; one that is down does not answer."""

    def __init__(self, *names: str) -> None:
        self.nodes = {name: KeptResponses(homes=Home(self, name)) for name in names}
        self.down: set[str] = set()


class Home:
    def __init__(self, cluster: Cluster, name: str) -> None:
        self.mark = mark_of(name)
        self._cluster = cluster

    def name_of(self, mark: str) -> str | None:
        return next((name for name in self._cluster.nodes if mark_of(name) == mark), None)

    async def ask(self, member: str, body: bytes) -> bytes:
        if member in self._cluster.down:
            raise ApiError(ErrorKind.TIMED_OUT, f"{member} does not answer")
        return await self._cluster.nodes[member].answer("someone", body)


def kept(node: KeptResponses, key: str = "k") -> str:
    response_id = node.id_for("0" * 32)
    node.put({"id": response_id, "status": "completed"}, [{"role": "user"}], MESSAGES, key)
    return response_id


async def test_another_node_finds_a_response_by_its_id_and_may_delete_it() -> None:
    cluster = Cluster("one", "two")
    one, two = cluster.nodes.values()
    response_id = kept(one)
    found = await two.get(response_id, "k")
    assert found.messages == MESSAGES
    assert found == await one.get(response_id, "k")
    await two.delete(response_id, "k")
    for node in (one, two):
        with pytest.raises(ApiError) as refused:
            await node.get(response_id, "k")
        assert refused.value.kind is ErrorKind.NOT_FOUND


async def test_another_key_is_told_nothing_on_any_node() -> None:
    cluster = Cluster("one", "two")
    one, two = cluster.nodes.values()
    response_id = kept(one)
    for node in (one, two):
        with pytest.raises(ApiError) as refused:
            await node.get(response_id, "other")
        assert refused.value.kind is ErrorKind.NOT_FOUND
    assert (await two.get(response_id, "k")).key_name == "k"


async def test_a_home_that_is_down_is_not_a_response_that_is_gone() -> None:
    cluster = Cluster("one", "two")
    one, two = cluster.nodes.values()
    response_id = kept(one)
    cluster.down.add("one")
    with pytest.raises(ApiError) as refused:
        await two.get(response_id, "k")
    assert refused.value.kind is ErrorKind.TIMED_OUT


async def test_a_home_that_left_is_a_404_that_says_what_to_do() -> None:
    cluster = Cluster("one", "two")
    response_id = kept(cluster.nodes["one"])
    del cluster.nodes["one"]
    with pytest.raises(ApiError, match="send the history") as refused:
        await cluster.nodes["two"].get(response_id, "k")
    assert refused.value.kind is ErrorKind.NOT_FOUND


async def test_a_node_alone_keeps_plain_ids() -> None:
    alone = KeptResponses()
    response_id = kept(alone)
    assert response_id == "resp_" + "0" * 32
    assert (await alone.get(response_id, "k")).messages == MESSAGES


def test_a_stored_response_survives_the_way_to_another_node() -> None:
    stored = StoredResponse({"id": "resp_1", "x": None}, [{"a": [1]}, "t"], MESSAGES, "k", 5)
    assert decode_stored(encode_stored(stored)) == stored

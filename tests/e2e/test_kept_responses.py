"""A response kept on one node of a real cluster is read, continued and deleted at another."""

from __future__ import annotations

import pytest

from acceptance.cluster import wait_view
from acceptance.nodes import fleet

MODEL = "simulated:parrot"


@pytest.mark.slow
async def test_any_node_leads_to_the_response_that_another_keeps() -> None:
    async with fleet() as nodes:
        first = await nodes.start_ready("first", MODEL)
        second = await nodes.start_ready("second", MODEL)
        await wait_view([first, second], {"first", "second"}, 60)
        async with first.client() as at_first, second.client() as at_second:
            made = (await at_first.post("/v1/responses", json={"model": "parrot", "input": "hi"})).json()
            seen = await at_second.get(f"/v1/responses/{made['id']}")
            assert seen.status_code == 200, seen.text
            assert seen.json() == made
            items = (await at_second.get(f"/v1/responses/{made['id']}/input_items")).json()
            assert len(items["data"]) == 1
            body = {"model": "parrot", "input": "and?", "previous_response_id": made["id"]}
            longer = await at_second.post("/v1/responses", json=body)
            assert longer.status_code == 200, longer.text
            assert longer.json()["usage"]["input_tokens"] > made["usage"]["input_tokens"]
            back = await at_first.get(f"/v1/responses/{longer.json()['id']}")
            assert back.status_code == 200
            assert (await at_second.post(f"/v1/responses/{made['id']}/cancel")).status_code == 400
            assert (await at_second.delete(f"/v1/responses/{made['id']}")).status_code == 200
            assert (await at_first.get(f"/v1/responses/{made['id']}")).status_code == 404
            first.kill()
            gone = await at_second.get(f"/v1/responses/{longer.json()['id']}")
            assert gone.status_code == 200, "the second node keeps what it made itself"

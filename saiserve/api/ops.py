"""What probes and operators ask: is it alive, is it ready, who is there."""

from __future__ import annotations

from saiserve.api.context import Api
from saiserve.api.http import Call, Reply, json_reply
from saiserve.errors import ApiError, ErrorKind

UNREADY_RETRY_S = 2.0


async def health(api: Api, call: Call) -> Reply:
    """`GET /health`: the process answers; nothing else is claimed."""
    return json_reply({"status": "ok"})


async def ready(api: Api, call: Call) -> Reply:
    """`GET /ready`: 200 when this node takes requests, 503 with the reason while it loads or drains."""
    reason = api.service.unready()
    if reason:
        kind = ErrorKind.DRAINING if "drain" in reason else ErrorKind.MODEL_UNAVAILABLE
        raise ApiError(kind, f"Not ready: {reason}.", retry_after_s=UNREADY_RETRY_S)
    return json_reply({"status": "ready"})


async def cluster_state(api: Api, call: Call) -> Reply:
    """`GET /cluster/state`: this node's view of all members."""
    return json_reply(api.service.cluster_state())


async def nothing(api: Api, call: Call) -> Reply:
    """Answer a reachability check."""
    return Reply(b"")

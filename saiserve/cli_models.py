"""`saiserve load` and `saiserve unload`: ask a running node, and show how far it is."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Final

import httpx2

from saiserve.auth import parse_client_keys
from saiserve.errors import SettingsError

POLL_S: Final = 0.5
ANSWER_S: Final = 10.0
UNLOAD_S: Final = 3600.0
"""An unload answers when the last request has ended, at most after the node's DRAIN_S."""


class AskError(SettingsError):
    """A node did not answer, or refused; the message says what to do."""


def operator_headers() -> dict[str, str]:
    """What an operator shows: the cluster secret, or on a single box a client key; from the environment."""
    secret = os.environ.get("CLUSTER_SECRET", "").partition(",")[0].strip()
    keys = parse_client_keys(os.environ.get("API_KEY", ""))
    return {"X-SAI-Cluster": secret} if secret or not keys else {"x-api-key": keys[0].secret.decode()}


def ask(method: str, url: str, path: str, body: dict[str, Any] | None = None, timeout_s: float = ANSWER_S) -> Any:
    """One question to a node.

    Raises:
        AskError: no answer, or a refusal.
    """
    url = url if "://" in url else f"http://{url}"
    try:
        response = httpx2.request(
            method, f"{url.rstrip('/')}{path}", headers=operator_headers(), json=body, timeout=timeout_s
        )
    except httpx2.InvalidURL as error:
        raise AskError(f"{url} is no address of a node ({error}): give --url, or PORT alone") from error
    except httpx2.HTTPError as error:
        raise AskError(f"{url} does not answer ({type(error).__name__}): is a node running there?") from error
    if response.status_code == 401:
        raise AskError(
            "the node refuses: set CLUSTER_SECRET to the cluster's secret, or for a single box API_KEY to its key"
        )
    try:
        answer = response.json()
    except ValueError:
        answer = {}
    if response.status_code >= 400:
        said = answer.get("error", {}).get("message") if isinstance(answer, dict) else None
        raise AskError(said or f"{url} answered status {response.status_code}")
    return answer


def load(url: str, model: str, *, pin: bool) -> int:
    """Have a model loaded and show its progress until it serves."""
    status = ask("POST", url, "/admin/models/load", {"model": model, "pin": pin, "wait": False})
    live = sys.stderr.isatty()
    while status["state"] == "loading":
        _show(status, live=live)
        time.sleep(POLL_S)
        status = ask("GET", url, f"/admin/models/{status['id']}")
    if status["error"]:
        raise AskError(status["error"])
    size = (status["held_bytes"] or 0) / 1e9
    print(f"{status['id']} is {status['state']}: {size:.2f} GB, {status['load_s'] or 0:.1f} s")
    return 0


def unload(url: str, model: str) -> int:
    """Have a model unloaded; returns when its process is gone."""
    status = ask("POST", url, "/admin/models/unload", {"model": model}, UNLOAD_S)
    print(f"{status['id']} is unloaded")
    return 0


def _show(status: dict[str, Any], *, live: bool) -> None:
    progress = status.get("progress")
    if live and progress is not None:
        sys.stderr.write(f"\r{status['id']}: {progress['stage']} {progress['fraction']:.0%}    ")
        sys.stderr.flush()

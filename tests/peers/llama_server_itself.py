"""llama-server with its own flags, but for models of a hub, for which it gets the file of SmolLM2."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import trio

from saiserve.config import load_settings
from saiserve.models.catalog import builtin_catalog
from saiserve.models.store import store_from
from tests.peers.llama_server import MODEL
from tests.peers.llama_server_tests import LLAMA_SERVER

HUB_FLAGS = frozenset({"--hf-repo", "--hf-file", "--model-url", "--mmproj-url"})


def arguments_of(given: Sequence[str], model: str) -> list[str]:
    """Return the flags with the hub's replaced by a file; a server that names no model keeps none."""
    kept: list[str] = []
    flags = iter(given)
    is_hub = False
    for flag in flags:
        if flag in HUB_FLAGS:
            next(flags)
            is_hub = True
        elif flag != "--offline":
            kept.append(flag)
    return [*kept, "--model", model] if is_hub else kept


def main(given: Sequence[str]) -> None:
    """Become llama-server."""
    store = store_from(load_settings({}, {}))
    model = trio.run(store.locate, builtin_catalog().entries[MODEL])
    os.execv(LLAMA_SERVER, [str(LLAMA_SERVER), *arguments_of(given, str(model))])


if __name__ == "__main__":
    main(sys.argv[1:])

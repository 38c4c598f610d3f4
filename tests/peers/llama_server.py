"""A node behind llama-server's command line: SmolLM2 stands for every model of a hub, a tiny ranker for every ranker.

Flags that are settings of a node become settings. The rest is what llama-server does and a node does not, and is done
here, in front of the node's application: any model name means the one model, `--temp`, `--seed` and `--n-predict` fill
fields that a request leaves out, no `--api-key` means no key, `--no-slots` and a missing `--metrics` switch their routes off, and
`/health` answers once the model is loaded. Nothing the node answers is changed, but that header names are written with
capitals: they mean the same in any case (RFC 9110 §5.1), and the tests read them in a dictionary that minds it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from saiserve import http_server, serve
from saiserve.api.errors import ErrorStyle, error_body
from saiserve.api.http import Message, Receive, Reply, Scope, Send, send_reply
from saiserve.app import AsgiApp
from saiserve.config import load_settings
from saiserve.errors import ApiError, ErrorKind
from saiserve.models.catalog import Catalog, CatalogEntry, builtin_catalog
from tests.fixtures.vector_models import qwen3_ranker

MODEL = "smollm2-135m"
KEY = "key-of-a-server-without-keys"
CONTEXT_DEFAULT = 8192
LANES_DEFAULT = 4
IGNORED_WITH_VALUE = (
    "--hf-repo", "--hf-file", "--model-url", "--model-draft", "--models-dir", "--models-max", "--models-preset",
    "--batch-size", "--ubatch-size", "--n-gpu-layers", "-ctk", "-ctv", "-fa", "--slot-save-path",
    "--grp-attn-n", "--grp-attn-w", "--lora", "--spec-type", "--spec-draft-n-max", "--spec-draft-n-min",
    "--spec-synth-len", "--spec-synth-rates", "--mmproj-url", "--media-path", "--sleep-idle-seconds",
    "--tools-runtime", "--mcp-servers-config", "--mcp-servers-json", "--reasoning-format",
)  # fmt: skip
IGNORED_ALONE = (
    "--offline", "--cont-batching", "--embedding", "--reranking", "--swa-full", "--context-shift",
    "--no-models-autoload", "--jinja", "--no-jinja", "--no-mmproj", "--no-cache-idle-slots", "--ui-mcp-proxy",
    "--backend_sampling", "--no-ui",
)  # fmt: skip
NAMED_TEMPLATES = {
    "chatml": (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    ),
    "llama3": (
        "{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n"
        "{{ message.content | trim }}<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
    ),
    "command-r": (
        "{% for message in messages %}<|START_OF_TURN_TOKEN|>"
        "<|{{ {'system': 'SYSTEM', 'user': 'USER', 'assistant': 'CHATBOT'}[message.role] }}_TOKEN|>"
        "{{ message.content | trim }}<|END_OF_TURN_TOKEN|>{% endfor %}"
        "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}"
    ),
}
"""llama.cpp knows these by name in C++; said again here in Jinja."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read llama-server's flags, as its tests use them."""
    parser = argparse.ArgumentParser(prog="llama-server", allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", default="8080")
    for flag in ("--model", "--alias", "--tags", "--api-key", "--chat-template", "--chat-template-file"):
        parser.add_argument(flag, default="")
    parser.add_argument("--cors-origins", default="")
    parser.add_argument("--pooling", choices=("none", "mean", "cls", "last", "rank"))
    parser.add_argument("--tools", default="")
    parser.add_argument("--reasoning", default="auto", choices=("on", "off", "auto"))
    parser.add_argument("--temp", type=float)
    for flag in ("--seed", "--n-predict", "--ctx-size", "--parallel", "--threads", "--cache-ram"):
        parser.add_argument(flag, type=int)
    for flag in ("--slots", "--no-slots", "--metrics", "--kv-unified", "--verbose"):
        parser.add_argument(flag, action="store_true")
    for flag in IGNORED_WITH_VALUE:
        parser.add_argument(flag, action="append")
    for flag in IGNORED_ALONE:
        parser.add_argument(flag, action="store_true")
    return parser.parse_args(arguments)


def entries_of(flags: argparse.Namespace, folder: Path) -> tuple[CatalogEntry, ...]:
    """Return the model the flags mean; none for a router."""
    if not (flags.model or flags.hf_repo or flags.model_url):
        return ()
    names = sorted(filter(None, flags.alias.split(",")))
    entry = builtin_catalog().entries[MODEL]
    template = flags.chat_template_file
    if flags.chat_template:
        template = str(folder / "template.jinja")
        Path(template).write_text(NAMED_TEMPLATES.get(flags.chat_template, flags.chat_template), "utf-8")
    tags = frozenset(filter(None, flags.tags.split(",")))
    name = names[0] if names else "model"
    if flags.reranking:
        # A node refuses to rank with a model that has no head for it; here is one, of random weights.
        qwen3_ranker(folder / "ranker.gguf")
        return (CatalogEntry(name, f"path:{folder / 'ranker.gguf'}"),)
    return (
        replace(
            entry,
            id=name,
            aliases=tuple(names) if len(names) > 1 else (),
            template=template or entry.template,
            capabilities=tags or entry.capabilities,
        ),
    )


def environment_of(flags: argparse.Namespace, folder: Path) -> dict[str, str]:
    """Return the node's settings."""
    lanes = flags.parallel or LANES_DEFAULT
    whole = flags.ctx_size or CONTEXT_DEFAULT
    context = whole if flags.kv_unified or not flags.parallel else whole // lanes
    settings = {
        "HOST": flags.host,
        "PORT": flags.port,
        "API_KEY": flags.api_key or KEY,
        "MODELS": "none",
        "CONTEXT_TOKENS": str(context),
        "LANES": str(lanes),
        "THREADS": str(flags.threads or 1),
        "STATE_DIR": str(folder),
        "LOG_LEVEL": "warning",
        "DRAIN_S": "2",
    }
    origins = flags.cors_origins or ("localhost" if flags.tools else "")
    return settings | ({"CORS_ORIGINS": origins} if origins else {})


@dataclass
class FrontOfNode:
    """llama-server's habits in front of a node's application."""

    app: AsgiApp
    flags: argparse.Namespace
    model: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path, method = scope["path"], scope["method"]
        is_off = (path == "/slots" and not self.flags.slots) or (path == "/metrics" and not self.flags.metrics)
        if is_off:
            error = ApiError(ErrorKind.NOT_SUPPORTED, f"This server was started without {path}.")
            await send_reply(send, Reply(error_body(error, ErrorStyle.LLAMA), error.row.status))
            return
        scope, send = dict(scope), _with_capitals(send)
        if path == "/health":
            scope["path"], scope["raw_path"] = "/ready", b"/ready"
        if not self.flags.api_key:
            kept = [
                (name, value)
                for name, value in scope["headers"]
                if name.lower() not in (b"authorization", b"x-api-key")
            ]
            scope["headers"] = [*kept, (b"authorization", b"Bearer " + KEY.encode())]
        if method == "POST":
            body = await _whole(receive)
            receive = _given(self._filled(path, body), receive)
            scope["headers"] = [(n, v) for n, v in scope["headers"] if n.lower() != b"content-length"]
        await self.app(scope, receive, send)

    def _filled(self, path: str, data: bytes) -> bytes:
        """Return a body with what the flags say of fields it leaves out."""
        try:
            body = json.loads(data)
        except ValueError:
            return data
        if not isinstance(body, dict):
            return data
        if self.model:
            body["model"] = self.model
        flags = self.flags
        fill: dict[str, Any] = {"temperature": flags.temp, "seed": flags.seed}
        if "messages" in path:
            fill = {"temperature": flags.temp}
        elif not path.endswith("embeddings") and not {"max_tokens", "max_completion_tokens", "n_predict"} & set(body):
            name = "max_tokens" if path.endswith("chat/completions") or path.startswith("/v1") else "n_predict"
            fill[name] = flags.n_predict if flags.n_predict is not None else -1
        if path.endswith(("embedding", "embeddings")):
            fill["pooling"] = flags.pooling
        if path.endswith("chat/completions"):
            fill["verbose"] = flags.verbose
        if flags.reasoning != "auto" and "messages" in body:
            fill["chat_template_kwargs"] = {"enable_thinking": flags.reasoning == "on"}
        for name, value in fill.items():
            if value is not None:
                body.setdefault(name, value)
        return json.dumps(body).encode()


def _with_capitals(send: Send) -> Send:
    """Return a `send` that writes header names as llama-server does."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [(name.title(), value) for name, value in message["headers"]]}
        await send(message)

    return sending


async def _whole(receive: Receive) -> bytes:
    data = bytearray()
    while True:
        message = await receive()
        data += message.get("body", b"")
        if message["type"] != "http.request" or not message.get("more_body", False):
            return bytes(data)


def _given(data: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives this body, then what the client does."""
    first: list[Message] = [{"type": "http.request", "body": data, "more_body": False}]

    async def given() -> Message:
        return first.pop() if first else await receive()

    return given


def main(arguments: Sequence[str]) -> int:
    """Run a node until it is told to stop; returns the exit code."""
    flags = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="saiserve-peer-") as name:
        folder = Path(name)
        entries = entries_of(flags, folder)
        create_app = vars(http_server)["create_app"]

        def fronted(*given: Any, **named: Any) -> AsgiApp:
            app: AsgiApp = create_app(*given, **named)
            return FrontOfNode(app, flags, entries[0].id if entries else "")

        def given_models(_text: str, _catalog: Catalog) -> tuple[CatalogEntry, ...]:
            return entries

        vars(http_server)["create_app"] = fronted
        vars(serve)["parse_models"] = given_models
        return serve.serve_node(load_settings(environment_of(flags, folder), {}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Structured output against the official JSON-Schema-Test-Suite, on real weights at temperature 1.

The suite travels in the source package of `jsonschema`, which is fetched once, at the version installed, into a cache.
Of it come the draft 2020-12 schemas made of nothing but what OpenAI's strict mode allows, each as it is and with objects
made strict as the official SDK makes them, as the one property of an object or the items of an array there.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import httpx2
import jsonschema
import trio

from acceptance.check import Check, Scale, SkippedError
from acceptance.cluster import SMOL, UNHURRIED_S, wait_view
from acceptance.nodes import Node, fleet

CACHE: Final = Path(__file__).parents[1] / ".cache" / "json-schema-suite"
DRAFT: Final = "json/tests/draft2020-12/"
FETCH_S: Final = 120
PARALLEL: Final = 4
ANSWER_TOKENS: Final = 96
SEED: Final = int(os.environ.get("SEED", "1"))

ALLOWED: Final = frozenset(
    [
        "$schema",
        "$defs",
        "$ref",
        "$comment",
        "title",
        "description",
        "type",
        "enum",
        "const",
        "anyOf",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "minItems",
        "maxItems",
        "pattern",
        "format",
        "multipleOf",
        "maximum",
        "minimum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "minLength",
        "maxLength",
    ]
)
"""Keywords of OpenAI's strict mode, and annotations."""
BY_NAME: Final = frozenset({"properties", "$defs"})
ONE: Final = frozenset({"items", "additionalProperties"})


def suite_folder() -> Path:
    """The folder of the draft's files, fetched when it is not there.

    Raises:
        SkippedError: it cannot be fetched.
    """
    version = metadata.version("jsonschema")
    home = CACHE / version
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent) as folder:
            _unpack(_download(version, Path(folder)), Path(folder) / "suite")
            (Path(folder) / "suite").rename(home)
    return home


def _download(version: str, folder: Path) -> Path:
    options = [
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-binary",
        "jsonschema",
        "--dest",
        str(folder),
    ]
    command = [sys.executable, "-m", "pip", "download", *options, f"jsonschema=={version}"]
    try:
        done = subprocess.run(command, check=False, timeout=FETCH_S, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        raise SkippedError(f"the source package of jsonschema did not come in {FETCH_S} s") from None
    found = sorted(folder.glob("*.tar.gz"))
    if not found:
        raise SkippedError(f"the source package of jsonschema {version} cannot be had: {done.stderr.strip()[-200:]}")
    return found[0]


def _unpack(archive: Path, folder: Path) -> None:
    """Write the draft's files, named by their path in it."""
    folder.mkdir()
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            _, found, name = member.name.partition(DRAFT)
            file = tar.extractfile(member) if found and name.endswith(".json") and member.isfile() else None
            if file is not None:
                (folder / name.replace("/", "--")).write_bytes(file.read())


def keywords(schema: Any) -> Iterator[str]:
    """Every keyword in a schema and its subschemas."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            yield key
            inner = value.values() if key in BY_NAME else value if key == "anyOf" else [value] if key in ONE else []
            for one in inner:
                yield from keywords(one)


def made_strict(schema: Any) -> Any:
    """A schema whose objects have all their properties and no others."""
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for key, value in schema.items():
        if key in BY_NAME:
            made[key] = {name: made_strict(one) for name, one in value.items()}
        elif key == "anyOf":
            made[key] = [made_strict(one) for one in value]
        elif key in ONE:
            made[key] = made_strict(value)
    if isinstance(made.get("properties"), dict):
        made |= {"type": "object", "required": sorted(made["properties"]), "additionalProperties": False}
    return made


def rooted(schema: Any, *, many: bool = False) -> dict[str, Any]:
    """The object whose one property has this schema, or is an array of it; local references follow it to its place."""
    place = "#/properties/value/items" if many else "#/properties/value"
    inner = _moved(schema, place)
    if isinstance(inner, dict):
        inner.pop("$schema", None)
    value = {"type": "array", "items": inner, "minItems": 1, "maxItems": 3} if many else inner
    return {"type": "object", "properties": {"value": value}, "required": ["value"], "additionalProperties": False}


def _moved(value: Any, place: str) -> Any:
    if isinstance(value, list):
        return [_moved(one, place) for one in value]
    if not isinstance(value, dict):
        return value
    moved = {key: _moved(one, place) for key, one in value.items()}
    reference = value.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = place + reference.removeprefix("#").rstrip("/")
    return moved


def schemas() -> list[dict[str, Any]]:
    """All schemas to choose from, without repetition."""
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(suite_folder().glob("*.json")):
        for group in json.loads(file.read_text("utf-8")):
            if ALLOWED.issuperset(keywords(group["schema"])):
                for schema in (group["schema"], made_strict(group["schema"])):
                    for made in (rooted(schema), rooted(schema, many=True)):
                        found.setdefault(json.dumps(made, sort_keys=True), made)
    return list(found.values())


@dataclass
class Seen:
    """What became of the requests."""

    ends: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


async def _ask(client: httpx2.AsyncClient, schema: dict[str, Any], seed: int, seen: Seen) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "made_up", "strict": True, "schema": schema}}
    body = {
        "model": SMOL,
        "messages": [{"role": "user", "content": "Make up a value."}],
        "temperature": 1,
        "seed": seed,
        "max_tokens": ANSWER_TOKENS,
        "response_format": form,
    }
    reply = await client.post("/v1/chat/completions", json=body)
    end, fault = judge(reply.status_code, reply.json(), schema)
    seen.ends[end] += 1
    if end == "refused":
        seen.reasons[reply.json()["error"]["message"].partition("enforced")[2][:60]] += 1
    if fault:
        seen.faults.append(f"{json.dumps(schema)}: {fault}")


def judge(status: int, reply: dict[str, Any], schema: dict[str, Any]) -> tuple[str, str]:
    """How a request ended, and what was wrong with that; empty when nothing was."""
    if status == 400:
        error = reply["error"]
        named = str(error["param"]).startswith("response_format") and error["type"] == "invalid_request_error"
        return "refused", "" if named else f"400 that names no part: {error}"
    if status != 200:
        return "failed", f"status {status}: {reply}"
    choice = reply["choices"][0]
    if choice["finish_reason"] == "length":
        return "cut", ""
    return "finished", _invalid(choice["message"]["content"], schema)


def _invalid(content: str, schema: dict[str, Any]) -> str:
    try:
        value = json.loads(content, parse_float=Decimal)
        exact = json.loads(json.dumps(schema), parse_float=Decimal)
        jsonschema.Draft202012Validator(exact, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER).validate(
            value
        )
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{content!r} is not valid: {str(error)[:200]}"
    return ""


async def _suite(scale: Scale) -> str:
    everything = await trio.to_thread.run_sync(schemas)
    chosen = random.Random(SEED).sample(everything, scale.pick(200, 24))
    seen, places = Seen(), trio.CapacityLimiter(PARALLEL)
    async with fleet() as group:
        entry = await group.start_ready("entry", "none", seeds="")
        worker = await group.start_ready("worker", SMOL)
        await wait_view([entry, worker], {"entry", "worker"}, UNHURRIED_S)

        async def one(node: Node, schema: dict[str, Any], seed: int) -> None:
            async with places, node.client() as client:
                await _ask(client, schema, seed, seen)

        async with trio.open_nursery() as nursery:
            for place, schema in enumerate(chosen):
                nursery.start_soon(one, (entry, worker)[place % 2], schema, place)
    assert not seen.faults, f"seed {SEED}: {len(seen.faults)} of {len(chosen)}: " + "\n".join(seen.faults[:10])
    assert seen.ends["finished"] > len(chosen) // 3, f"seed {SEED}: too few were served: {seen.ends} {seen.reasons}"
    return (
        f"seed {SEED}, {len(chosen)} of {len(everything)} schemas: {dict(seen.ends)}; refused for {dict(seen.reasons)}"
    )


CHECKS = (
    Check("json-schema", "schemas of the official suite: every finished output validates, every refusal is a 400 by name", _suite),
)  # fmt: skip

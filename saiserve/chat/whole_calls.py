"""Whole calls out of text: JSON in the shapes models write it, fenced or not, and Qwen's XML."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from saiserve.chat.call_pieces import ParsedCall
from saiserve.chat.request import Tool

PYTHON_TAG = "<|python_tag|>"

_FENCE = re.compile(r"\A\s*```(?:json|tool_call|tool_code)?\s*\n(?P<body>.*?)\n?```\s*\Z", re.DOTALL)
_XML_CALL = re.compile(r"<function=(?P<name>[^>\s]+)>\s*(?P<body>.*?)\s*</function>", re.DOTALL)
_XML_PARAMETER = re.compile(r"<parameter=(?P<name>[^>]+)>\n?(?P<value>.*?)\n?</parameter>", re.DOTALL)
_QUOTE = re.compile(r'(?<!\\)(?:\\\\)*"')


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


class CallReader:
    """Reads calls. With `known_only` a name that is no tool's makes no call, because nothing marks the text as one."""

    def __init__(self, tools: Sequence[Tool], *, known_only: bool) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._known_only = known_only

    def knows(self, name: str) -> bool:
        """Whether there is a tool of this name."""
        return name in self._tools

    def properties_of(self, name: str) -> dict[str, Any]:
        """Return the schemas of a tool's parameters by name."""
        tool = self._tools.get(name)
        properties = tool.parameters.get("properties") if tool is not None else None
        return properties if isinstance(properties, dict) else {}

    def calls_in(self, text: str) -> tuple[ParsedCall, ...]:
        """Return the calls a whole text is, if it is nothing but calls."""
        text = text.strip().removeprefix(PYTHON_TAG).strip()
        fenced = _FENCE.match(text)
        if fenced:
            text = fenced["body"].strip()
        if text.startswith("<function="):
            return self._xml_calls(text)
        calls: list[ParsedCall] = []
        at = 0
        while at < len(text):
            try:
                value, at = DECODER.raw_decode(text, at)
            except (ValueError, RecursionError):
                return ()
            found = self.calls_of(value)
            if not found:
                return ()
            calls += found
            while at < len(text) and text[at] in "; \n\t,":
                at += 1
        return tuple(calls)

    def calls_of(self, value: Any) -> tuple[ParsedCall, ...]:
        """Return the calls a JSON value means; none when it means something else."""
        items = value if isinstance(value, list) else [value]
        calls = [self._call_of(item) for item in items]
        whole = tuple(call for call in calls if call is not None)
        return whole if len(whole) == len(items) else ()

    def _call_of(self, item: Any) -> ParsedCall | None:
        if not isinstance(item, dict):
            return None
        if isinstance(item.get("function"), dict):
            item = item["function"]
        name = item.get("name")
        arguments = item.get("arguments", item.get("parameters", {}))
        if isinstance(arguments, str):
            try:
                arguments = DECODER.decode(arguments)
            except (ValueError, RecursionError):
                return None
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            return None
        if self._known_only and name not in self._tools:
            return None
        return _whole_call(name, arguments)

    def _xml_calls(self, text: str) -> tuple[ParsedCall, ...]:
        calls: list[ParsedCall] = []
        for match in _XML_CALL.finditer(text):
            schema = self.properties_of(match["name"])
            arguments = {
                parameter["name"]: xml_value(parameter["value"], schema.get(parameter["name"], {}))
                for parameter in _XML_PARAMETER.finditer(match["body"])
            }
            call = _whole_call(match["name"], arguments)
            if call is not None:
                calls.append(call)
        return tuple(calls)


def xml_value(text: str, schema: Any) -> Any:
    """Return a parameter's value: text where the schema says string, JSON where it parses, else text."""
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        return DECODER.decode(text)
    except (ValueError, RecursionError):
        return text


def _whole_call(name: str, arguments: dict[str, Any]) -> ParsedCall | None:
    """Return a call that is valid JSON in valid Unicode; None for one that cannot be."""
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        if not text.isascii() and text != text.encode("utf-8", "replace").decode():
            text = json.dumps(arguments, allow_nan=False)
        name.encode()
    except (ValueError, RecursionError):
        return None
    return ParsedCall(name, text)


def is_open(body: str) -> bool:
    """Whether a closer after `body` would stand inside it: in a string of JSON, or before the function's end."""
    text = body.lstrip()
    if text.startswith("<function="):
        return "</function>" not in text
    return text.startswith(("{", "[")) and len(_QUOTE.findall(text)) % 2 == 1

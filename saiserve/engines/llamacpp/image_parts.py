"""Takes the images out of a conversation before its template is rendered, and leaves a mark where each was. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from saiserve.engines.llamacpp.image_file import ImageError, image_bytes
from saiserve.engines.llamacpp.vocabulary import unused_character
from saiserve.engines.messages import Prompt

IMAGES_MAX = 32
"""In one conversation."""


def has_images(prompt: Prompt) -> bool:
    """Whether any message's content is a list with an image in it."""
    return any(
        isinstance(part, dict) and part.get("type") == "image_url"
        for message in prompt.messages or ()
        if isinstance(message.get("content"), list)
        for part in message["content"]
    )


def lift_images(prompt: Prompt) -> tuple[Prompt, str, tuple[bytes, ...]]:
    """The conversation with texts only, the mark in them, and the images in the order of their marks.

    Raises:
        ImageError: too many, or one that is not in the request itself.
    """
    messages = prompt.messages or ()
    mark = unused_character([msgspec.json.encode(messages).decode()])
    images: list[bytes] = []
    told = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            told.append({**message, "content": "".join(_part(part, mark, images) for part in content)})
        else:
            told.append(message)
    if len(images) > IMAGES_MAX:
        raise ImageError(f"{len(images)} images; {IMAGES_MAX} are possible in one conversation")
    return msgspec.structs.replace(prompt, messages=tuple(told)), mark, tuple(images)


def _part(part: Any, mark: str, images: list[bytes]) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text":
        return str(part.get("text", ""))
    if kind == "image_url":
        images.append(image_bytes(str(part.get("image_url", {}).get("url", ""))))
        return mark
    raise ImageError(f"a content part of type {kind!r} cannot be read")

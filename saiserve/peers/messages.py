"""What nodes ask of each other, inside signed requests: engine messages in an envelope that says for whom."""

from __future__ import annotations

from typing import Final

import msgspec

from saiserve.engines.messages import Count, Embed, Generate

PREFIX: Final = "/cluster/peer/"
GENERATE: Final = PREFIX + "generate"
COUNT: Final = PREFIX + "count"
EMBED: Final = PREFIX + "embed"
SWIM: Final = "/cluster/swim"


class PeerGenerate(msgspec.Struct, frozen=True, array_like=True):
    """One attempt to be served by the node it is sent to, or refused: it is never sent on."""

    generate: Generate
    key_name: str = ""
    """The name of the client's key, for the serving node's records; keys themselves never travel."""


class PeerCount(msgspec.Struct, frozen=True, array_like=True):
    """Count a prompt."""

    count: Count
    key_name: str = ""


class PeerEmbed(msgspec.Struct, frozen=True, array_like=True):
    """Compute vectors."""

    embed: Embed
    key_name: str = ""

"""The flight recorder: the last inputs of a member, kept in memory, written on request, run again by `replay`.

A member is a machine fed by inputs, so a checkpoint of the machine and the inputs since then repeat an incident
exactly. Inputs are kept in segments of bounded length; each begins with a checkpoint, and when one is full the oldest
goes. A dump carries no secret: keys are left out of checkpoints, and every frame that verified is signed anew with a
key made from its public key id. Payloads are in it as they were on the wire, so it is written for its owner only.
"""

from __future__ import annotations

import copy
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from swimcluster.checkpoint import save_checkpoint
from swimcluster.dump_file import Dump, Input, SegmentRecord, encode_dump
from swimcluster.keyring import Keyring
from swimcluster.resigning import resign_input
from swimcluster.swim import Swim

INPUTS_MAX: Final = 4096
"""Inputs of one segment; between one and two segments are kept."""
BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of inputs of one segment, whatever their number."""
SEGMENTS: Final = 2


@dataclass(slots=True)
class _Segment:
    checkpoint: bytes
    key_ids: tuple[bytes, ...]
    """Keys held when the segment began, as at the checkpoint."""
    keyring: Keyring
    """Those and all that were installed since: what tells which frames verified."""
    inputs: list[Input] = field(default_factory=list)
    bindings: dict[int, bytes] = field(default_factory=dict)
    bytes: int = 0


class FlightRecorder:
    """Keeps the last inputs of one machine; `Driver.feed` notes each before the machine sees it."""

    def __init__(self, machine: Swim, *, inputs_max: int = INPUTS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._machine = machine
        self._inputs_max = inputs_max
        self._bytes_max = bytes_max
        self._segments: deque[_Segment] = deque(maxlen=SEGMENTS)
        self._begin_segment()

    def note(self, now: int, call: str, arguments: tuple[Any, ...]) -> None:
        """Keep one input."""
        segment = self._segments[-1]
        if len(segment.inputs) >= self._inputs_max or segment.bytes >= self._bytes_max:
            segment = self._begin_segment()
        if call == "install_key":
            segment.keyring.remember(arguments[0])
            arguments = (Keyring.key_id(arguments[0]),)
        elif call == "exchange_replied":
            pending = self._machine.core.exchanges.get(arguments[0])
            if pending is not None:
                segment.bindings[len(segment.inputs)] = pending.binding
        segment.inputs.append(Input(now, call, arguments))
        for argument in arguments:
            if isinstance(argument, bytes):
                segment.bytes += len(argument)

    def dump(self) -> bytes:
        """Return everything kept, without secrets, in the form `python -m swimcluster.replay` reads."""
        records = [
            SegmentRecord(
                segment.checkpoint,
                segment.key_ids,
                segment.keyring.is_secret,
                [
                    resign_input(segment.keyring, item, segment.bindings.get(place, b""))
                    for place, item in enumerate(segment.inputs)
                ],
            )
            for segment in self._segments
        ]
        return encode_dump(Dump(self._machine.core.config, records))

    def write(self, path: Path) -> None:
        """Write a dump readable by its owner only.

        Raises:
            OSError: the disk refused.
        """
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(self.dump())

    @property
    def inputs(self) -> Sequence[Input]:
        """What is kept, oldest first."""
        return [item for segment in self._segments for item in segment.inputs]

    def _begin_segment(self) -> _Segment:
        # The keyring is copied, as a key removed later is still needed to tell which frames verified.
        keyring = self._machine.keyring
        segment = _Segment(save_checkpoint(self._machine), keyring.ids(), copy.deepcopy(keyring))
        self._segments.append(segment)
        return segment

"""What the scheduler is told: limits and first guesses."""

from __future__ import annotations

from dataclasses import dataclass

from saiserve import limits


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits and first guesses. Rates are learned; give what was measured at load."""

    lanes: int
    """Streams at once, ≥ 1; see lanes.py."""
    batch_max: int
    """Rows in one step at most: n_ubatch."""
    queue_max: int = limits.ENGINE_QUEUE_MAX
    """Jobs waiting for a lane; the next is refused."""
    prefill_budget_s: float = 0.25
    """Time for prompts between two tokens of the running streams; as much again per further prompt, four times at most."""
    apart: bool = False
    """Prompts get steps of their own, in turn with those of running streams: for flash attention on a CPU."""
    hot_cells_max: int = 2048
    """Cells that only idle prefixes hold; beyond it they move to host memory, one per step."""
    host_bytes_max: int = 0
    """Host memory for moved prefixes and checkpoints; 0: none, idle prefixes are dropped instead."""
    prefill_rate: float = 0.0
    """Tokens per second measured at load, 0: unknown."""
    decode_rate: float = 0.0
    """Tokens per second of one stream alone measured at load, 0: unknown."""
    pins: bool = True
    """WINDOW only: hold cells by twin ids. Right with swa_full=True, wrong with False (docs/engine.md)."""
    speculates: bool = False
    """A stream alone may compute guesses of its next tokens in one batch (FULL, and WINDOW with pins)."""
    park_after_s: float | None = None
    """FULL: an idle prefix moves to host memory after so long, even if hot_cells_max allows more, while there is room
    for it without evicting anything. None: not."""

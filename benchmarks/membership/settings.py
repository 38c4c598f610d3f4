"""What both sides are told, so that a ratio compares programs and not presets."""

from __future__ import annotations

PROBE_INTERVAL_S = 1.0
PROBE_TIMEOUT_S = 0.5
INDIRECT_PROBES = 3
SUSPICION_MULT = 4
SUSPICION_MAX_MULT = 6
CONFIRMATIONS = 3
GOSSIP_INTERVAL_S = 0.2
GOSSIP_NODES = 3
RETRANSMIT_MULT = 4
PUSH_PULL_INTERVAL_S = 30.0
CLUSTER = "beside"
KEY = bytes(range(32))
"""Both sides run with a key: swimcluster signs each packet, kinship encrypts it."""

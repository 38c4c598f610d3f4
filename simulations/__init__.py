"""Questions about membership, each a program that measures, puts theory beside measurement, and states its bound.

`python -m simulations --list` names them; `python -m simulations NAME` answers one and exits 0 exactly when its
bound holds.
"""

QUESTIONS: tuple[str, ...] = (
    "detection_time",
    "probe_completeness",
    "false_positive_oracle",
    "message_load",
    "dissemination",
    "join_under_loss",
    "lifeguard",
    "partition_heal",
    "mass_restart",
    "identity",
    "hostile_network",
    "regain",
    "explore",
    "search",
)
"""Modules of this package that hold a `QUESTION`."""

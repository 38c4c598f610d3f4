"""What a program hands in must be: bytes within a documented limit, and a name as text."""

from __future__ import annotations

from swimcluster.errors import PayloadTooLargeError, PayloadTypeError

UNCHANGED = "nothing was changed"
UNSTARTED = "nothing was started"
UNSENT = "nothing was sent"


def check_payload(what: str, payload: bytes, limit: int, effect: str) -> None:
    """Refuse a value before anything has been done with it.

    Args:
        what: the value in the message, as in "a request".
        limit: most bytes.
        effect: what the caller may rely on, `UNCHANGED`, `UNSTARTED` or `UNSENT`.
    Raises:
        PayloadTypeError: not bytes. Text would reach the wire as text and every other member would refuse the packet.
        PayloadTooLargeError: over the limit.
    """
    if not isinstance(payload, bytes):
        raise PayloadTypeError(f"{what} must be bytes, not {type(payload).__name__}; {effect}")
    if len(payload) > limit:
        raise PayloadTooLargeError(f"{what} of {len(payload)} bytes: at most {limit}; {effect}")


def check_name(name: str) -> None:
    """Refuse what cannot be a member's name before anything has been sent.

    Raises:
        PayloadTypeError: not text; a `Member` has its name in `member.name`.
    """
    if not isinstance(name, str):
        raise PayloadTypeError(f"a member's name must be text, not {type(name).__name__}; {UNSENT}")

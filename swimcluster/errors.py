"""Everything this library raises on purpose.

SwimclusterError
├── ConfigError        yours: a setting is out of range; nothing was started
├── PayloadTooLargeError  yours: a value is over its limit; nothing was changed or sent
├── JoinError          theirs: no seed answered; the node is running and keeps trying
├── NameInUseError     theirs: a live member holds the name; this node has not joined
├── DecodeError        theirs: bytes are not a message of this protocol; state unchanged
├── AuthError          theirs: the MAC or key does not fit; state unchanged
├── ExchangeError      the network's: an exchange got no reply; state unchanged
└── ClosedError        yours: the cluster object has been closed
"""

from __future__ import annotations


class SwimclusterError(Exception):
    """Base of every error raised here."""


class ConfigError(SwimclusterError):
    """A setting is missing, out of range or contradicts another; nothing was started."""


class PayloadTooLargeError(SwimclusterError):
    """A value given by the caller is over its documented limit; nothing was changed."""


class JoinError(SwimclusterError):
    """No seed answered in time; the node is running and keeps trying in the background."""


class NameInUseError(SwimclusterError):
    """A live member answers under this node's name; this node has not joined."""


class DecodeError(SwimclusterError):
    """Bytes received are not a message of this protocol; state unchanged."""


class AuthError(SwimclusterError):
    """A MAC does not verify, or was made with a key this node does not hold; state unchanged."""


class ExchangeError(SwimclusterError):
    """An exchange with another member brought no reply; state unchanged."""


class ClosedError(SwimclusterError):
    """The cluster object was used after it was closed."""

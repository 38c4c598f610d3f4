"""Everything this library raises on purpose.

SwimclusterError
├── ConfigError        yours: a setting is out of range; nothing was started
├── PayloadTypeError   yours: a value is not bytes, or a name not text; nothing was changed or sent
├── PayloadTooLargeError  yours: a value is over its limit; nothing was changed or sent
├── JoinError          theirs: no seed answered; the node is running and keeps trying
├── NameInUseError     theirs: a live member holds the name; this node has not joined
├── DecodeError        theirs: bytes are not a message of this protocol; state unchanged
├── AuthError          theirs: the MAC or key does not fit; state unchanged
├── ExchangeError      theirs: no such live member, and nothing was sent; or no reply: unchanged here, unknown there;
│   │                  yours: to this member itself, or after it left, or too many at once; nothing was sent
│   └── RefusedError   theirs: who answers there is no member; nothing changed here or there
└── ClosedError        yours: the cluster object has been closed
"""

from __future__ import annotations


class SwimclusterError(Exception):
    """Base of every error raised here."""


class ConfigError(SwimclusterError):
    """A setting is missing, of another type, out of range or contradicts another; nothing was started or changed."""


class PayloadTypeError(SwimclusterError, TypeError):
    """A value given by the caller is not bytes, or a name not text; nothing was changed or sent."""


class PayloadTooLargeError(SwimclusterError):
    """A value given by the caller is over its documented limit; nothing was changed or sent."""


class JoinError(SwimclusterError):
    """No seed answered in time; the node is running and keeps trying in the background."""


class NameInUseError(SwimclusterError):
    """A live member answers under this node's name; this node has not joined."""


class DecodeError(SwimclusterError):
    """Bytes received are not a message of this protocol; state unchanged."""


class AuthError(SwimclusterError):
    """A MAC does not verify, or was made with a key this node does not hold; state unchanged."""


class ExchangeError(SwimclusterError):
    """An exchange with another member did not take place or brought no reply; nothing changed here.

    Where nothing was sent, the message says so and why: no such live member, this member itself, one that has left, too
    many exchanges under way. Otherwise it is not known whether the other side took the request and acted on it: the
    connection, the other side or the network may have failed before or after that.
    """


class RefusedError(ExchangeError):
    """Who answers at the address is no member of any cluster; the message says so in words for an operator.

    Raised by a transport that shares its port with other services. Nothing changed on either side.
    """


class ClosedError(SwimclusterError):
    """The cluster object was used after it was closed."""

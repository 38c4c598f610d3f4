"""Who answers at an address under this node's name: this process, another one, or nobody (rule P7)."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from swimcluster.address import Address
from swimcluster.codec import encode_message
from swimcluster.core import Core
from swimcluster.member import Claim
from swimcluster.messages import Packet, Ping


class Answerer(Enum):
    """Who answered."""

    SELF = 1
    NAMESAKE = 2
    NOBODY = 3
    """No answer, or one under another name: nothing shows that somebody else holds the name there."""


class NamesakeCheck:
    """Dials an address; `decided(now, check, answerer)` is called once, with None when the question is void by then.

    By exchange alone, and whoever answers counts by its name: a copy has this node's instance, may draw another in the
    meantime, and would take a datagram of its own instance for the sign of a copy itself.
    """

    def __init__(
        self,
        core: Core,
        *,
        address: Address,
        claim: Claim | None,
        decided: Callable[[int, NamesakeCheck, Answerer | None], None],
    ) -> None:
        self._core = core
        self._decided = decided
        self.address = address
        self.claim = claim
        """What is to be judged; None when a copy was heard in this very life."""
        self._life = core.identity.claim.life
        # Drawn, not counted: a copy counts alike, and what was recorded earlier must not pass for this one.
        self._sequence = core.rng.getrandbits(32)
        self._has_met_itself = False
        self._is_over = False

    def start(self, now: int) -> None:
        """Dial."""
        core, identity = self._core, self._core.identity
        wait = core.health.scale(core.probe_interval_ns)
        ping = encode_message(Ping(self._sequence, identity.name, identity.instance))
        core.exchange(self.address, [ping], self, wait)
        core.timers.set(now + wait, self.failed)

    def met_itself(self, sequence: int) -> None:
        """A ping of this node's own instance came in: if it is the one sent, this node is at that address."""
        self._has_met_itself = self._has_met_itself or sequence == self._sequence

    def replied(self, now: int, packet: Packet) -> None:
        """Take the answer."""
        is_namesake = not self._has_met_itself and packet.name == self._core.identity.name
        self._decide(now, Answerer.NAMESAKE if is_namesake else self._unanswered())

    def failed(self, now: int) -> None:
        """There is no answer, or none in time."""
        self._decide(now, self._unanswered())

    def _unanswered(self) -> Answerer:
        return Answerer.SELF if self._has_met_itself else Answerer.NOBODY

    def _decide(self, now: int, answerer: Answerer) -> None:
        if not self._is_over:
            self._is_over = True
            # In another life by now, a reply to the old instance proves nothing; the cause will be heard again.
            is_valid = self._core.is_active and self._core.identity.claim.life == self._life
            self._decided(now, self, answerer if is_valid else None)

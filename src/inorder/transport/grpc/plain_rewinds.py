"""A key of which a message has failed: the server goes back to that one, and so must whoever reads what it has sent.

An answer may overtake what was sent before it. So when a server has confirmed a nack, messages that it had sent before,
from behind the one that failed, may still come; and google.pubsub.v1 has no word that tells them from those that it
sends afterwards. All that is passed over comes again: at once where the server has gone back, else when its lease is
over, as nobody keeps it.
"""

from __future__ import annotations

from inorder.clock import MICROSECONDS

LONG_WAY_US = 60 * MICROSECONDS  # nothing is on its way for longer


class Rewind:
    """One key, from a nack until its messages come again. Not thread-safe.

    Mostly it ends with the message that failed. That one may not come, as its attempts were used up, or it went to
    somebody else: then it ends with the next that had come before, as what was on its way does not go back. If that is
    not certain, since a nack was lost, or several were taken for one, it ends when a lease has passed since then.
    """

    def __init__(self, lease_us: int, places: dict[str, int], last: int) -> None:
        """`places` are of messages that are out, in the order of the key; `last` is where that one has that came last.

        The server waits for an answer for `lease_us`.
        """
        self._lease_us = lease_us
        self._places = places
        self._behind_all = max(places.values())
        self._last = last
        self._failed = self._behind_all
        self._turns = 0  # so often the server is still to go back
        self._unheard = 0  # so many nacks nobody has answered yet
        self._gone_back_us = 0  # when the server had done so for all others
        self._passed_over_us = 0  # when a message was, for the last time
        self._lost = False  # a nack was: so the server goes back whenever a lease is over

    def fail(self, message_id: str, place: int) -> None:
        """The server has been told so, perhaps."""
        self._places[message_id] = place
        self._failed = min(self._failed, place)
        self._turns += 1
        self._unheard += 1

    def went_back(self, at_us: int) -> None:
        """The server has heard of a nack."""
        self._unheard -= 1
        self._gone_back_us = max(self._gone_back_us, at_us)

    def lost(self, until_us: int) -> None:
        """Nobody knows whether it has; it goes back when the lease is over, at the latest."""
        self.went_back(until_us)
        self._lost = True

    def ends_with(self, message_id: str, now_us: int) -> bool:
        """Whether this one, which has come now, is where the server has gone back to."""
        if self.is_over(now_us):
            return True
        place = self._places.get(message_id)
        if place is None:
            self._behind_all += 1
            place = self._places[message_id] = self._behind_all
        goes_back = place <= self._last
        self._turns -= goes_back
        self._last = place
        if place <= self._failed or (goes_back and self._is_certain(now_us)):
            return True
        self._passed_over_us = now_us
        return False

    def _is_certain(self, now_us: int) -> bool:
        """If the server goes back now, whether it has done so for all that failed."""
        if self._turns <= 0 and not self._lost:
            return True
        return not self._unheard and now_us >= self._gone_back_us + self._lease_us

    def is_over(self, now_us: int) -> bool:
        """Whether all that was sent before has come, and nothing that was passed over is still to come again."""
        over_us = max(self._gone_back_us + LONG_WAY_US, self._passed_over_us + self._lease_us)
        return not self._unheard and now_us >= over_us

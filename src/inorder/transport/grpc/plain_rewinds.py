"""A key of which a message has failed: the server goes back to that one, and so must whoever reads what it has sent.

An answer may overtake what was sent before it. So when a server has confirmed a nack, messages that it had sent before,
from behind the one that failed, may still come; and google.pubsub.v1 has no word that tells them from those that it
sends afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping


class Rewind:
    """One key, from a nack until its messages come again. Not thread-safe.

    Mostly it ends with the message that failed. That one may not come, as its attempts were used up, or it went to
    somebody else: then it ends with the next that had come before, as what was on its way does not go back.
    """

    def __init__(self, failed: int, places: Mapping[str, int], last: int, before: Rewind | None, since_us: int) -> None:
        """`places` are of messages that are out, in the order of the key; `last` is where that one has that came last.

        `before` has not ended.
        """
        self.since_us = since_us
        self._failed = failed
        self._places: dict[str, int] = {**places}
        self._last: int = last
        self._turns: int = 1  # so often the server goes back
        if before is not None:
            self._places = {**before._places, **places}
            self._last = before._last
            self._turns += before._turns
        self._behind_all = max(self._places.values())

    def ends_with(self, message_id: str) -> bool:
        """Whether this one, which has come now, is where the server has gone back to."""
        place = self._places.get(message_id)
        if place is None:
            self._behind_all += 1
            place = self._places[message_id] = self._behind_all
        if place <= self._last:
            self._turns -= 1
        self._last = place
        return place <= self._failed or not self._turns

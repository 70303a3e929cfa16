"""What takes have brought to clients, in case that one says that it never saw it.

Where several messages of a key may be out, the ones behind would go before them otherwise: the client asks again, and
those that it has not seen are out until their deadline. And what it was told of gaps would be told to nobody.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from inorder.message import Leased

MAX_NAME_LENGTH = 64
MAX_TAKES = 10_000  # that are remembered; what others brought and nobody saw comes when its deadline has passed


class Brought(NamedTuple):
    """What a take has brought; nothing of nowhere, once it was given up."""

    ack_id_prefix: str = ""
    runs: Sequence[range] = ()  # of leases
    gaps: Sequence[Leased] = ()  # what it has told, too


GIVEN_UP = Brought()


class Takes:
    """The last takes, by the names that their clients gave them."""

    def __init__(self) -> None:
        self._brought: OrderedDict[str, Brought] = OrderedDict()

    def brought(self, take: str, ack_id_prefix: str, leases: Sequence[int], gaps: Sequence[Leased] = ()) -> None:
        if take and leases:
            self._remember(take, Brought(ack_id_prefix, [*_runs(leases)], gaps))

    def give_up(self, take: str, ack_id_prefix: str) -> tuple[list[int], Sequence[Leased]]:
        """The leases and the gaps that it has brought of a subscription. Should it come only now, it brings nothing."""
        brought = self._brought.get(take, GIVEN_UP)
        self._remember(take, GIVEN_UP)
        if brought.ack_id_prefix != ack_id_prefix:
            return [], ()
        return [lease for run in brought.runs for lease in run], brought.gaps

    def given_up(self, take: str) -> bool:
        return self._brought.get(take) is GIVEN_UP

    def _remember(self, take: str, brought: Brought) -> None:
        self._brought[take] = brought
        self._brought.move_to_end(take)
        if len(self._brought) > MAX_TAKES:
            self._brought.popitem(last=False)


def _runs(leases: Sequence[int]) -> Iterator[range]:
    """The same as ranges: mostly they follow one another, as they were granted."""
    first = last = leases[0]
    for lease in leases[1:]:
        if lease != last + 1:
            yield range(first, last + 1)
            first = lease
        last = lease
    yield range(first, last + 1)

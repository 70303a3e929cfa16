"""What takes have brought to clients, in case that one says that it never saw it.

Where several messages of a key may be out, the ones behind would go before them otherwise: the client asks again, and
those that it has not seen are out until their deadline.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

MAX_TAKES = 10_000  # that are remembered; what others brought and nobody saw comes when its deadline has passed


class Takes:
    """The last takes, by the names that their clients gave them."""

    def __init__(self) -> None:
        self._brought: OrderedDict[str, tuple[str, list[range]]] = OrderedDict()

    def brought(self, take: str, ack_id_prefix: str, leases: Sequence[int]) -> None:
        if take and leases:
            self._remember(take, ack_id_prefix, [*_runs(leases)])

    def give_up(self, take: str, ack_id_prefix: str) -> list[int]:
        """What it has brought of a subscription; should it come only now, it must not bring anything."""
        prefix, runs = self._brought.get(take, ("", []))
        self._remember(take, "", [])
        return [lease for run in runs for lease in run] if prefix == ack_id_prefix else []

    def given_up(self, take: str) -> bool:
        return self._brought.get(take) == ("", [])

    def _remember(self, take: str, ack_id_prefix: str, runs: list[range]) -> None:
        self._brought[take] = ack_id_prefix, runs
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

"""A snapshot: where a seek can bring a subscription of the topic back to, for as long as it lives."""

from __future__ import annotations

from collections.abc import Sequence

from inorder.core.ledger import SnapshotLedger
from inorder.message import Record


class Snapshot:
    """What was done when it was made, and the messages that were not.

    A history that is complete has those messages anyway; else they are held here, and so is what comes after.
    """

    __slots__ = ("ledger", "records")

    def __init__(self, ledger: SnapshotLedger, records: Sequence[Record]) -> None:
        self.ledger = ledger
        self.records = list(records)

    def keep(self, records: Sequence[Record], stored_us: int) -> None:
        """These were published just now. One whose time is over keeps nothing any more."""
        if self.ledger.expires_us > stored_us:
            self.records += records
        else:
            self.records.clear()

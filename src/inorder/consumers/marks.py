"""Which handlers have run for which messages, written in the transaction of what they did.

A mark is of use until its message is acked, and no longer than a message is retained.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from inorder.clock import MICROSECONDS
from inorder.consumers.store import Conflict, Connection
from inorder.options import DAY_SECONDS

KEPT_US = 31 * DAY_SECONDS * MICROSECONDS  # as long as a subscription can retain a message


class Marks:
    """The marks of one dispatcher within a transaction."""

    def __init__(self, connection: Connection, consumer: str) -> None:
        self._connection = connection
        self._consumer = consumer

    def of(self, message_ids: Collection[str]) -> dict[str, set[str]]:
        """The handlers that have run, by message."""
        done: dict[str, set[str]] = {}
        rows = self._connection.query_in(
            "SELECT message_id, handler FROM inorder_marks WHERE consumer = :consumer AND message_id IN {among}",
            {"consumer": self._consumer},
            message_ids,
        )
        for message_id, handler in rows:
            done.setdefault(message_id, set()).add(handler)
        return done

    def add(self, marks: Iterable[tuple[str, str]], now_us: int) -> None:
        """These handlers have run: (message, handler). `Conflict` if one had been run by somebody else."""
        rows = [(self._consumer, message_id, handler, now_us) for message_id, handler in marks]
        if not rows:
            return
        written = self._connection.write(
            """INSERT INTO inorder_marks (consumer, message_id, handler, since_us)
            VALUES (:consumer, :message_id, :handler, :since_us) ON CONFLICT DO NOTHING""",
            rows,
        )
        if written != len(rows):
            raise Conflict(self._consumer, [message_id for _, message_id, _, _ in rows])

    def forget(self, message_ids: Iterable[str]) -> None:
        """These messages are acked, and do not come again."""
        rows = [(self._consumer, message_id) for message_id in message_ids]
        if rows:
            self._connection.write(
                "DELETE FROM inorder_marks WHERE consumer = :consumer AND message_id = :message_id", rows
            )

    def forget_old(self, now_us: int) -> None:
        """Messages that cannot come any more: whoever acked them was killed before he could say so here."""
        self._connection.write(
            "DELETE FROM inorder_marks WHERE consumer = :consumer AND since_us < :since_us",
            [(self._consumer, now_us - KEPT_US)],
        )

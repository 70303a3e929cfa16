"""What a journal holds, in figures, read beside its owner."""

from __future__ import annotations

import os
from typing import NamedTuple

from inorder.core.ledger import Ledger
from inorder.journal import Location
from inorder.journal.files import Folder
from inorder.journal.frames import FORMAT
from inorder.journal.layout import DATABASE
from inorder.journal.lock import owner_of
from inorder.journal.opener import JournalKind
from inorder.journal.reading import JournalReader, TopicView
from inorder.journal.sqlite import FORMAT as SQLITE_FORMAT


class SnapshotInfo(NamedTuple):
    """What spares the next start from reading everything."""

    before: Location  # it stands for all frames before
    size: int


class SubscriptionInfo(NamedTuple):
    """What is remembered of a subscription."""

    name: str
    topic: str
    detached: bool  # its topic was deleted, or it was detached on request
    topic_deleted: bool
    backlog: int  # messages; a filter may leave some of them out, and some may be too old by now
    oldest_unacked: int | None  # the position of the first that is still to come, or of the first gap
    parked: list[str]  # keys that wait for somebody to resume or skip them
    waiting: int  # keys, and messages without one, that wait for a retry
    gaps: int  # that are still to be told


class JournalInfo(NamedTuple):
    """A journal at one moment."""

    folder: str
    kind: JournalKind
    format: int
    size: int  # bytes of all its files
    parts: int
    end: Location  # up to which it is durable
    snapshot: SnapshotInfo | None
    owner: str | None
    topics: list[TopicView]
    subscriptions: list[SubscriptionInfo]


def info(folder: str | os.PathLike[str], now_us: int) -> JournalInfo:
    """All figures of the journal in a folder. Takes no lock, and changes nothing."""
    reader = JournalReader(folder)
    return JournalInfo(
        folder=str(reader.folder),
        kind=reader.kind,
        format=FORMAT if reader.kind == "segments" else SQLITE_FORMAT,
        size=_size(reader.folder),
        parts=len(reader.parts),
        end=reader.at,
        snapshot=SnapshotInfo(*reader.snapshot) if reader.snapshot else None,
        owner=owner_of(reader.folder.path),
        topics=reader.topics(),
        subscriptions=[subscription_info(ledger, reader, now_us) for ledger in reader.book.subscriptions.values()],
    )


def subscription_info(ledger: Ledger, reader: JournalReader, now_us: int) -> SubscriptionInfo:
    """What is remembered of one subscription, in figures."""
    end = 0 if ledger.detached else reader.end(ledger.topic)
    done = ledger.sorted_done().within(0, end)
    unacked = end - done.count()
    holds = [(key, hold.until_us) for key, hold in ledger.holds.items()]
    waiting = [until_us for _, until_us in holds if until_us is not None]
    waiting += [wait.until_us for wait in ledger.waits.values()]
    return SubscriptionInfo(
        name=ledger.name,
        topic=ledger.topic,
        detached=ledger.detached,
        topic_deleted=ledger.detached and not ledger.on_request,
        backlog=unacked - len(ledger.gaps),
        oldest_unacked=done.end_at(0) if unacked else None,
        parked=[key for key, until_us in holds if until_us is None],
        waiting=sum(until_us > now_us for until_us in waiting),
        gaps=len(ledger.gaps),
    )


def _size(folder: Folder) -> int:
    """Of the files that belong to the journal; what a repair has set aside is not among them."""
    endings = (".log", ".snapshot", "head", DATABASE, f"{DATABASE}-wal")
    total = 0
    for name in folder.names():
        if name.endswith(endings):
            try:
                total += (folder.path / name).stat().st_size
            except FileNotFoundError:
                continue  # dropped between the two looks
    return total

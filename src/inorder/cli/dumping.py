"""What stands in a journal, as lines of JSON, one by one: a journal may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from inorder.cli.showing import json_line, plain_record
from inorder.cli.wording import timestamp
from inorder.core.ranges import runs
from inorder.errors import FrameDropped, TopicNotFound
from inorder.journal import Location
from inorder.journal.codec import Batch
from inorder.journal.decoding import EVENTS, Acks, Fact, decoded
from inorder.journal.reading import JournalReader
from inorder.message import POSITION

_END = 1 << 63  # behind every position


class Wanted(NamedTuple):
    """What somebody wants to see."""

    topic: str | None = None
    first: int = 0
    end: int = _END
    events: frozenset[str] = frozenset(EVENTS)


def lines(reader: JournalReader, wanted: Wanted) -> Iterator[str]:
    """A line for each message that was published, and for each other event. TopicNotFound if there is no trace."""
    return _Dump(reader, wanted).lines()


class _Dump:
    def __init__(self, reader: JournalReader, wanted: Wanted) -> None:
        self._reader = reader
        self._wanted = wanted
        self._topics = {topic.serial: (topic.name, topic.id_prefix) for topic in reader.book.topics.values()}
        self._topic_of = {ledger.name: ledger.topic for ledger in reader.book.subscriptions.values()}
        self._traced = wanted.topic is None or wanted.topic in reader.book.topics

    def lines(self) -> Iterator[str]:
        for location, body in self._frames():
            try:
                said = list(decoded(body))
            except ValueError as error:
                raise self._reader.frames.damage(location, f"the frame cannot be decoded: {error}") from None
            for one in said:
                if isinstance(one, Batch) and self._is_behind(one):
                    return
                for event in self._events(one):
                    self._traced = True
                    yield json_line(event)
        if not self._traced:
            raise TopicNotFound(str(self._wanted.topic))

    def _frames(self) -> Iterator[tuple[Location, bytes]]:
        """All that are durable and there, whatever was dropped between them."""
        start, wanted = 0, self._wanted
        if wanted.first and wanted.topic in self._reader.book.topics:
            start = self._reader.location(wanted.topic, wanted.first)
        for part in self._reader.parts:
            if part.end <= start:
                continue
            try:
                yield from self._reader.frames.read(max(part.first, start), part.end)
            except FrameDropped:
                continue  # since the last look

    def _is_behind(self, found: Batch) -> bool:
        """Whether no message can follow that is wanted, and only messages are."""
        topic, _, end, events = self._wanted
        known = self._reader.book.topics.get(topic) if topic else None
        return known is not None and known.serial == found.serial and found.first >= end and events == {"published"}

    def _events(self, said: Batch | Acks | Fact) -> Iterator[dict[str, Any]]:
        if isinstance(said, Batch):
            yield from self._published(said)
        elif isinstance(said, Acks):
            yield from self._acked(said)
        else:
            yield from self._fact(said)

    def _is_wanted(self, event: str, topic: str | None) -> bool:
        return event in self._wanted.events and self._wanted.topic in (None, topic)

    def _published(self, found: Batch) -> Iterator[dict[str, Any]]:
        topic, id_prefix = self._topics.get(found.serial, (None, ""))
        _, first, end, _ = self._wanted
        if self._is_wanted("published", topic) and found.first < end and first < found.end:
            for record in found.records():
                if first <= record[POSITION] < end:
                    yield {"event": "published", "topic": topic, **plain_record(record, id_prefix)}

    def _acked(self, acks: Acks) -> Iterator[dict[str, Any]]:
        if self._is_wanted("acked", self._topic_of.get(acks.subscription)):
            _, first, end, _ = self._wanted
            positions = [position for position in sorted(acks.positions) if first <= position < end]
            if positions:
                yield {"event": "acked", "subscription": acks.subscription, "positions": _ranges(positions)}

    def _fact(self, fact: Fact) -> Iterator[dict[str, Any]]:
        event, parts = fact
        if event == "topic_created":
            self._topics[parts["serial"]] = parts["topic"], parts["id_prefix"]
        if event == "subscription_created":
            self._topic_of[parts["subscription"]] = parts["topic"]
        topic = parts.get("topic") or self._topic_of.get(parts.get("subscription", ""))
        if self._is_wanted(event, topic):
            yield {"event": event, **_readable(parts)}


def _readable(parts: dict[str, Any]) -> dict[str, Any]:
    """The parts of an event with words for numbers that have to be explained."""
    shown = dict(parts)
    for name in ("created", "expires", "opened", "attempted"):
        if f"{name}_us" in shown:
            shown[name] = timestamp(shown.pop(f"{name}_us"))
    if "attempt" in shown:
        shown["producer"], shown["epoch"], shown["attempt"] = shown["attempt"]
    if "key" in shown:
        shown["ordering_key"] = shown.pop("key")
    if "returns" in shown:
        shown["returned"] = [_returned(*back) for back in shown.pop("returns")]
    for name in {"gaps", "gone"} & set(shown):
        shown[name] = _ranges(sorted(shown[name]))
    return shown


def _returned(_: str, failures: list[Any], until_us: int | None, waits_for: int, key: str) -> dict[str, Any]:
    back: dict[str, Any] = {"ordering_key": key} if key else {}
    back["failures"] = [{"position": position, "times": times} for position, (times, _) in failures]
    if until_us is None:
        back |= {"parked_at": waits_for}
    elif until_us:
        back |= {"waits_at": waits_for, "until": timestamp(until_us)}
    return back


def _ranges(positions: Sequence[int]) -> list[list[int]]:
    """Ascending positions as pairs: the first, and the one behind the last."""
    return [[start, end] for start, end in runs(positions)]

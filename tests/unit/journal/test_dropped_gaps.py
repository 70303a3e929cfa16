"""What is dropped from the journal because of its age is still told, also after a restart, on both stores."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from inorder.broker import MessageQueue
from inorder.core import subscription as core
from inorder.journal import Store, codec, journal
from inorder.journal.files import Folder
from inorder.journal.journal import Journal
from inorder.journal.segments import SegmentStore
from inorder.journal.sqlite import SqliteStore
from inorder.message import KEY, Gap, Message
from inorder.testing.clock import ManualClock
from inorder.testing.faults import FaultyDisk

RETENTION_SECONDS = 100
POLICY = {"dead_letter_topic": "dead", "max_delivery_attempts": 1}
PARKS = {"dead_letter_policy": POLICY, "on_poison": "park_key"}

both = pytest.mark.parametrize("kind", [SegmentStore, SqliteStore])


class Broker:
    """A broker on disk that can be opened again."""

    def __init__(self, folder: Path, kind: Callable[..., Store], **options: Any) -> None:
        self._folder, self._kind = folder, kind
        self.clock = ManualClock()
        self._open()
        self.queue.register_topic("orders")
        given = {"enable_message_ordering": True, "message_retention_duration": RETENTION_SECONDS, **options}
        self.queue.register_subscription("billing", "orders", given)

    def _open(self) -> None:
        self.queue = MessageQueue(self.clock, Journal(self._kind(Folder(self._folder), segment_bytes=1_000)))

    def reopen(self) -> None:
        self.queue.close()
        self._open()

    def publish(self, *texts: str, key: str = "k") -> None:
        for text in texts:
            self.queue.publish("orders", [Message(text.encode().ljust(100), ordering_key=key)])

    def keep_this_part(self) -> None:
        """The journal does not drop the part that it is at: another topic needs it."""
        self.queue.register_topic("others")
        self.queue.register_subscription("keeps", "others")
        self.queue.publish("others", [Message(b"keeps its part")])

    def taken(self) -> tuple[list[Gap], list[bytes]]:
        """The gaps that are told, and the data of the messages, one by one, which are acked."""
        gaps: list[Gap] = []
        others: list[bytes] = []
        while messages := self.queue.take("billing", 1):
            data: Any = messages[0].data
            if isinstance(data, Gap):
                gaps.append(data)
            else:
                others.append(data.strip())
            self.queue.ack(messages)
        return gaps, others

    def parts(self) -> int:
        assert self.queue._journal is not None
        return len(self.queue._journal.store.parts())

    def drop_what_was_published(self) -> None:
        """It is too old now, and the journal does not have it any more."""
        self.publish(*"abcdefghijklmnopqrst", key="other")
        self.clock.advance(RETENTION_SECONDS + 1)
        before = self.parts()
        self.queue._save()
        assert self.parts() < before
        assert self.queue._state.subscriptions["billing"]._log.history.read(0, 1) == []

    def consumed(self, key: str = "k") -> list[str | tuple[str, int]]:
        """All that comes of a key: messages, and gaps by their reason and size, those side by side as one."""
        found: list[str | tuple[str, int]] = []

        def tell(gap: Gap) -> None:
            if gap.ordering_key == key:
                before = found[-1][1] if found and found[-1][0] == gap.reason else 0
                assert isinstance(before, int)
                found[len(found) - bool(before) :] = [(gap.reason, before + gap.count)]

        while messages := self.queue.pull("billing", 1, tell):
            found += [message.data.decode().strip() for message in messages if message.ordering_key == key]
            self.queue.ack(messages)
        return found

    def fail(self) -> None:
        [message] = self.queue.pull("billing", 1)
        self.queue.nack(message)

    def park_and_drop(self) -> None:
        """The first message of a key is what it waits for, and the journal does not have it; the next one it has."""
        self.publish("1")
        self.fail()
        self.drop_what_was_published()
        self.publish("2")

    def parked(self) -> list[tuple[str, int, float]]:
        return [(key.ordering_key, key.position, key.age_seconds) for key in self.queue.blocked_keys("billing")]

    def close(self) -> None:
        self.queue.close()


Opened = Callable[..., Broker]


@pytest.fixture
def opened(tmp_path: Path, kind: Callable[..., Store]) -> Iterator[Opened]:
    """Makes a broker with these options, which is closed in the end."""
    with ExitStack() as brokers:
        yield lambda **options: brokers.enter_context(closing(Broker(tmp_path, kind, **options)))


@both
def test_what_nobody_has_read_is_told_once_in_its_place(opened: Opened) -> None:
    broker = opened()
    broker.publish("1", "2", "3")
    broker.drop_what_was_published()
    broker.publish("4")
    broker.reopen()
    broker.reopen()
    assert broker.consumed() == [("expired", 3), "4"]
    broker.reopen()
    assert broker.consumed() == []


@both
def test_so_is_what_was_left_on_disk(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "READ_AHEAD", 1)
    monkeypatch.setattr(core, "HOT_BYTES", 1)
    broker = opened()
    broker.publish("1", key="first")
    broker.publish("2", "3", "4")
    broker.drop_what_was_published()
    broker.publish("5")
    assert broker.queue.metrics("billing").counters.outdated >= 4
    broker.reopen()
    assert broker.consumed() == [("expired", 3), "5"]


@both
def test_so_is_what_was_out(opened: Opened) -> None:
    broker = opened(ack_deadline_seconds=600)
    broker.publish("1", "2")
    [message] = broker.queue.pull("billing", 1)
    assert message.data.strip() == b"1"
    broker.drop_what_was_published()
    broker.reopen()
    assert broker.consumed() == [("expired", 2)]


@both
def test_what_was_acked_after_it_was_dropped_is_not_told(opened: Opened) -> None:
    broker = opened(ack_deadline_seconds=600)
    broker.publish("1")
    messages = broker.queue.pull("billing", 1)
    broker.drop_what_was_published()
    broker.queue.ack(messages)
    broker.reopen()
    assert broker.consumed() == []


@both
def test_a_gap_keeps_its_reason(opened: Opened) -> None:
    broker = opened(**PARKS)
    broker.publish("1", "2")
    broker.fail()
    broker.queue.skip("billing", "k")
    broker.drop_what_was_published()
    broker.reopen()
    assert broker.consumed() == [("skipped", 1), ("expired", 1)]


@both
def test_a_parked_key_stays_parked(opened: Opened) -> None:
    broker = opened(**PARKS)
    broker.park_and_drop()
    broker.reopen()
    assert broker.parked() == [("k", 0, RETENTION_SECONDS + 1)]
    assert broker.consumed() == []
    broker.queue.skip("billing", "k")
    broker.reopen()
    assert broker.consumed() == [("skipped", 1), "2"]


@both
def test_so_does_one_that_waits_for_a_later_message(opened: Opened) -> None:
    broker = opened(max_outstanding_per_key=3, **PARKS)
    broker.publish("1")
    broker.publish(*"abcdefghijklmnopqrst", key="other")
    broker.clock.advance(60)
    broker.publish("2")
    broker.clock.advance(60)  # the first is too old by now
    gap, message = (
        lease for lease, record in zip(*broker.queue.lease("billing", 3)[::2], strict=True) if record[KEY] == "k"
    )
    broker.queue.settle("billing", (), [message])
    broker.queue.release("billing", [gap])
    broker.queue.update_subscription("billing", {"max_outstanding_per_key": 1})
    broker.queue._save()
    broker.reopen()
    assert broker.consumed() == []
    broker.queue.resume_key("billing", "k")
    assert broker.consumed() == [("expired", 1), "2"]


@both
def test_a_key_that_was_parked_when_books_did_not_say_so_is_parked(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_lost(ledger: Any) -> dict[str, Any]:
        return {name: value for name, value in to_json(ledger).items() if name != "lost"}

    to_json = codec._ledger_to_json
    monkeypatch.setattr(codec, "_ledger_to_json", without_lost)
    broker = opened(**PARKS)
    broker.park_and_drop()
    broker.reopen()
    assert [key for key, _, _ in broker.parked()] == ["k"]
    broker.queue.resume_key("billing", "k")
    assert broker.consumed() == [("expired", 1), "2"]


def test_an_answered_skip_of_what_was_dropped_survives_a_kill() -> None:
    disk, clock = FaultyDisk(0), ManualClock()

    def opened() -> MessageQueue:
        return MessageQueue(clock, Journal(SegmentStore(disk, segment_bytes=1_000)))

    queue = opened()
    queue.register_topic("orders")
    options = {"enable_message_ordering": True, "message_retention_duration": RETENTION_SECONDS, **PARKS}
    queue.register_subscription("billing", "orders", options)
    queue.publish("orders", [Message(b"1", ordering_key="k")])
    queue.nack(queue.pull("billing", 1))
    for _ in range(20):
        queue.publish("orders", [Message(bytes(100))])
    clock.advance(RETENTION_SECONDS + 1)
    queue.publish("orders", [Message(b"2", ordering_key="k")])
    queue._save()
    queue.skip("billing", "k")
    queue.nack([message for message in queue.pull("billing", 10) if message.data == b"2"])
    queue.skip("billing", "k")
    disk.kill()
    gaps: list[Gap] = []
    queue = opened()
    assert [message.data for message in queue.pull("billing", 10, gaps.append)] == []
    assert [(gap.reason, gap.count) for gap in gaps] == [("skipped", 1)]  # the first one was told by the first pull


def test_what_was_told_of_a_key_that_had_waited_for_it_is_not_told_again_after_a_kill() -> None:
    disk, clock = FaultyDisk(0), ManualClock()

    def opened() -> MessageQueue:
        return MessageQueue(clock, Journal(SegmentStore(disk, segment_bytes=1_000)))

    queue = opened()
    queue.register_topic("orders")
    options = {
        "enable_message_ordering": True,
        "message_retention_duration": RETENTION_SECONDS,
        "ack_deadline_seconds": 600,
        "retry_policy": {"minimum_backoff": 1},
    }
    queue.register_subscription("billing", "orders", options)
    queue.publish("orders", [Message(b"1", ordering_key="k")])
    out = queue.pull("billing", 1)
    for _ in range(20):
        queue.publish("orders", [Message(bytes(100))])
    clock.advance(RETENTION_SECONDS + 1)
    queue._save()
    queue.nack(out)
    clock.advance(1)
    gaps: list[Gap] = []
    assert queue.pull("billing", 10, gaps.append) == []
    assert [(gap.reason, gap.count) for gap in gaps] == [("expired", 1)]
    queue.sync()
    disk.kill()
    queue = opened()
    assert queue.pull("billing", 10, gaps.append) == []
    assert len(gaps) == 1


@both
def test_a_seek_forgets_what_was_not_told(opened: Opened) -> None:
    broker = opened()
    broker.publish("1")
    broker.drop_what_was_published()
    broker.publish("2")
    broker.reopen()
    broker.queue.seek("billing", position=0)
    broker.reopen()
    assert broker.consumed() == ["2"]


@both
def test_of_many_parts_some_are_dropped_at_a_time(opened: Opened) -> None:
    broker = opened()
    broker.publish(*map(str, range(100)))
    broker.clock.advance(RETENTION_SECONDS + 1)
    counts = []
    while not counts or counts[-1] != broker.parts():
        counts.append(broker.parts())
        broker.queue._save()
    assert counts[-1] <= 2
    assert all(before - after <= journal.UNTOLD_PARTS for before, after in pairwise(counts))
    broker.reopen()
    assert broker.consumed() == [("expired", 100)]


@both
@pytest.mark.parametrize("reopened", [1, 5])
def test_a_gap_of_what_was_dropped_waits_for_what_lies_before_it(
    opened: Opened, reopened: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the journal is dropped, and one before it is kept for another topic: see `Lost`."""
    monkeypatch.setattr(core, "READ_AHEAD", 1)
    broker = opened()
    broker.keep_this_part()
    broker.publish(*map(str, range(30)))
    broker.clock.advance(RETENTION_SECONDS + 1)
    broker.queue._save()
    history = broker.queue._state.subscriptions["billing"]._log.history
    assert history.read(0, 1)
    assert history.missing(30).count()
    for _ in range(reopened):
        broker.reopen()
        broker.publish("later")  # so that the books are saved once more
    gaps, others = broker.taken()
    assert sum(gap.count for gap in gaps) == 30
    assert all(before.first_position <= after.first_position for before, after in pairwise(gaps)), gaps
    assert others == [b"later"] * reopened


@both
def test_a_gap_of_what_was_dropped_leaves_out_what_was_not(opened: Opened) -> None:
    """A part of the journal is kept for another topic, between two that are dropped."""
    broker = opened()
    broker.publish(*map(str, range(9)))
    broker.keep_this_part()
    broker.publish(*map(str, range(9, 16)))
    broker.clock.advance(RETENTION_SECONDS + 1)
    broker.queue._save()
    broker.publish("last")
    broker.reopen()
    gaps, others = broker.taken()
    assert sum(gap.count for gap in gaps) == 16
    assert all(before.last_position < after.first_position for before, after in pairwise(gaps)), gaps
    assert others == [b"last"]

"""Snapshots of subscriptions: what they bring back, how long they live, that they survive; in memory and on disk."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inorder.broker import MessageQueue
from inorder.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from inorder.journal import Store
from inorder.journal.files import Folder
from inorder.journal.journal import Journal
from inorder.journal.segments import SegmentStore
from inorder.journal.sqlite import SqliteStore
from inorder.message import Message
from inorder.testing import ManualClock

DAY = 86_400
KINDS: dict[str, Callable[..., Store]] = {"segments": SegmentStore, "sqlite": SqliteStore}


class Desk:
    """A broker with a topic and two subscriptions, and the words of these tests."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder, self.clock = kind, folder, ManualClock()
        self.queue = self.opened()
        self.queue.register_topic("orders")
        for name in ("billing", "stock"):
            self.queue.register_subscription(name, "orders", {"enable_message_ordering": True})

    def opened(self) -> MessageQueue:
        if self.kind == "memory":
            return MessageQueue(self.clock)
        return MessageQueue(self.clock, Journal(KINDS[self.kind](Folder(self.folder), segment_bytes=2_000)))

    def publish(self, letters: str) -> None:
        self.queue.publish("orders", [Message(letter.encode(), ordering_key=letter) for letter in letters])

    def pulled(self, name: str = "billing", *, ack: str = "") -> str:
        """What is there now; those of `ack` are acked, and the others go back."""
        messages = self.queue.pull(name, 1_000)
        done = [message for message in messages if message.data.decode() in ack]
        self.queue.ack(done)
        self.queue.nack([message for message in messages if message not in done])
        return "".join(sorted(message.data.decode() for message in messages))

    def restart(self) -> None:
        self.queue.close()
        self.queue = self.opened()


@pytest.fixture(params=["memory", *KINDS])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    made = Desk(request.param, tmp_path)
    yield made
    made.queue.close()


@pytest.fixture(params=[*KINDS])
def durable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    made = Desk(request.param, tmp_path)
    yield made
    made.queue.close()


def test_a_snapshot_brings_back_what_was_unacked_and_what_came_after(desk: Desk) -> None:
    desk.publish("abc")
    assert desk.pulled(ack="a") == "abc"
    desk.queue.create_snapshot("before", "billing")
    desk.publish("de")
    assert desk.pulled(ack="bcde") == "bcde"
    assert desk.pulled() == ""
    desk.queue.seek("billing", snapshot="before")
    assert desk.pulled() == "bcde"


def test_what_a_snapshot_has_done_does_not_come_even_if_it_is_unacked(desk: Desk) -> None:
    desk.publish("abc")
    assert desk.pulled(ack="ab") == "abc"
    desk.queue.create_snapshot("before", "billing")
    assert desk.pulled("stock") == "abc"
    desk.queue.seek("stock", snapshot="before")
    assert desk.pulled("stock") == "c"


def test_what_a_filter_leaves_out_is_done_for_a_snapshot_too(desk: Desk) -> None:
    desk.queue.register_subscription("few", "orders", {"filter": "attributes:wanted"})
    desk.queue.publish("orders", [Message(b"a"), Message(b"b", {"wanted": "1"}), Message(b"c")])
    desk.queue.create_snapshot("here", "few")
    desk.publish("d")
    desk.queue.seek("billing", snapshot="here")
    assert desk.pulled() == "bd"


def test_a_snapshot_outlives_its_subscription(desk: Desk) -> None:
    desk.publish("ab")
    desk.queue.create_snapshot("before", "billing")
    desk.queue.unregister_subscription("billing")
    assert desk.pulled("stock", ack="ab") == "ab"
    desk.queue.seek("stock", snapshot="before")
    assert desk.pulled("stock") == "ab"


def test_keys_keep_their_order_after_a_seek(desk: Desk) -> None:
    desk.queue.publish("orders", [Message(b"%d" % number, ordering_key="k") for number in range(5)])
    desk.queue.ack(desk.queue.pull("billing", 1))
    desk.queue.create_snapshot("before", "billing")
    seen: list[bytes] = []
    for _ in range(2):
        while messages := desk.queue.pull("billing", 10):
            seen += [message.data for message in messages]
            desk.queue.ack(messages)
        desk.queue.seek("billing", snapshot="before")
    assert seen == [b"1", b"2", b"3", b"4"] * 2


def test_a_snapshot_lives_for_seven_days_less_the_age_of_its_oldest_message(desk: Desk) -> None:
    desk.queue.create_snapshot("empty", "billing")
    desk.publish("a")
    desk.clock.advance(2 * DAY)
    desk.queue.create_snapshot("aged", "billing")
    lives = {one.name: (one.expires - one.created).total_seconds() for one in desk.queue.get_all_snapshots()}
    assert lives == {"empty": 7 * DAY, "aged": 5 * DAY}
    desk.clock.advance(5 * DAY - 3_599)
    with pytest.raises(FailedPrecondition, match="less than 3600 seconds"):
        desk.queue.create_snapshot("late", "billing")
    assert desk.queue.get_snapshot("aged") is not None
    desk.clock.advance(3_600)
    assert desk.queue.get_snapshot("aged") is None
    with pytest.raises(NotFound, match="aged"):
        desk.queue.seek("billing", snapshot="aged")
    desk.queue.create_snapshot("aged", "billing")  # the name is free again
    assert sorted(desk.queue.delete_old_snapshots()) == ["empty"]


def test_snapshots_are_changed_and_deleted(desk: Desk) -> None:
    desk.queue.create_snapshot("before", "billing", "one")
    with pytest.raises(AlreadyExists, match="before"):
        desk.queue.create_snapshot("before", "stock")
    made = desk.queue.get_snapshot("before")
    assert made is not None
    assert (made.topic, made.annotations) == ("orders", "one")
    sooner = made.created.timestamp() + 60
    desk.queue.update_snapshot("before", annotations="two", expires=sooner)
    changed = desk.queue.get_snapshot("before")
    assert changed is not None
    assert (changed.annotations, changed.expires.timestamp()) == ("two", sooner)
    for wrong in (made.created, made.created.timestamp() + 7 * DAY + 1):
        with pytest.raises(InvalidArgument, match="expires: after now"):
            desk.queue.update_snapshot("before", expires=wrong)
    desk.queue.delete_snapshot("before")
    for call in (desk.queue.delete_snapshot, desk.queue.update_snapshot):
        with pytest.raises(NotFound, match="before"):
            call("before")


def test_what_cannot_be_a_snapshot_or_be_sought_is_refused(desk: Desk) -> None:
    desk.queue.register_topic("others")
    desk.queue.register_subscription("far", "others")
    desk.queue.create_snapshot("before", "billing")
    with pytest.raises(FailedPrecondition, match="'before' is of topic 'orders'"):
        desk.queue.seek("far", snapshot="before")
    with pytest.raises(InvalidArgument, match="give one of"):
        desk.queue.seek("billing", snapshot="before", position=0)
    with pytest.raises(InvalidArgument, match="snapshot name"):
        desk.queue.create_snapshot("1", "billing")
    with pytest.raises(NotFound, match="nobody"):
        desk.queue.create_snapshot("other", "nobody")
    desk.queue.detach_subscription("stock")
    for detached in (
        lambda: desk.queue.create_snapshot("other", "stock"),
        lambda: desk.queue.seek("stock", snapshot="before"),
    ):
        with pytest.raises(FailedPrecondition, match="detached"):
            detached()
    desk.queue.unregister_topic("orders")
    assert desk.queue.get_all_snapshots() == []


def test_snapshots_survive_a_restart(durable: Desk) -> None:
    durable.publish("abc")
    durable.pulled(ack="b")
    durable.queue.create_snapshot("before", "billing", "mine")
    durable.publish("d")
    durable.pulled(ack="acd")
    made = durable.queue.get_snapshot("before")
    for _ in range(2):  # the second start reads the journal's own snapshot
        durable.restart()
        assert durable.queue.get_snapshot("before") == made
        durable.queue.seek("billing", snapshot="before")
        assert durable.pulled(ack="acd") == "acd"


def test_the_journal_keeps_what_a_snapshot_needs_and_drops_it_afterwards(durable: Desk) -> None:
    durable.publish("a")
    durable.queue.create_snapshot("before", "billing")
    for _ in range(100):
        durable.queue.publish("orders", [Message(b"x" * 100)])
    for name in ("billing", "stock"):
        durable.queue.ack(durable.queue.pull(name, 1_000))
    journal = durable.queue._journal
    assert journal is not None
    durable.queue._save()
    kept = len(journal.store.parts())
    durable.queue.seek("billing", snapshot="before")
    assert len(durable.queue.pull("billing", 1_000)) == 101
    durable.queue.seek("billing", position=101)
    durable.clock.advance(7 * DAY + 1)  # it need not be deleted: its time is over
    durable.publish("z")
    durable.queue._save()
    assert len(journal.store.parts()) <= 3 < kept


def test_what_had_expired_for_its_subscription_is_not_in_a_snapshot(desk: Desk) -> None:
    """Whoever seeks it, for whom it has not expired: now, and after a restart."""
    desk.queue.register_subscription(
        "hasty", "orders", {"enable_message_ordering": True, "message_retention_duration": 600}
    )
    desk.publish("a")
    assert desk.pulled("stock", ack="a") == "a"
    desk.clock.advance(DAY)
    desk.publish("b")
    desk.queue.create_snapshot("before", "hasty")
    desk.queue.seek("billing", snapshot="before")
    assert desk.pulled() == "b"
    if desk.kind != "memory":
        desk.restart()
    assert desk.pulled() == "b"

"""A partitioned topic: where messages go, who consumes them, and how it is resized."""

import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from inorder import Message, PubSub, QueueLimits
from inorder.broker import MessageQueue
from inorder.client.connection import Connection
from inorder.consumers import PartitionedTopic, SqliteStore
from inorder.consumers.partitions.chores import Chore
from inorder.consumers.partitions.gate import Gate
from inorder.consumers.partitions.membership import Membership
from inorder.consumers.partitions.resizing import Resizer
from inorder.consumers.partitions.router import MAX_HELD, Router
from inorder.consumers.partitions.table import Table
from inorder.errors import (
    Aborted,
    AlreadyExists,
    Closed,
    FailedPrecondition,
    InvalidArgument,
    InvalidName,
    InvalidOrderingKey,
    KeyPaused,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from inorder.message import Batch, position_of
from inorder.patterns import slot_of
from inorder.pending import Pending
from inorder.testing.clock import ManualClock
from inorder.testing.history import History, anomalies
from inorder.transport.embedded import EmbeddedTransport

from ..interrupts import is_interrupted

PATIENCE_SECONDS = 30


def wait_until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.002)


@pytest.fixture
def store() -> Iterator[SqliteStore]:
    store = SqliteStore(":memory:")
    yield store
    store.close()


@pytest.fixture(params=["memory", "file"])
def pubsub(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PubSub]:
    with PubSub("memory:" if request.param == "memory" else f"file:{tmp_path / 'data'}") as pubsub:
        yield pubsub


@pytest.fixture
def topic(pubsub: PubSub, store: SqliteStore) -> Iterator[PartitionedTopic]:
    with PartitionedTopic(pubsub, "orders", store=store) as topic:
        yield topic.create(4)


def keys_of(topic: PartitionedTopic, partition: int, count: int) -> list[str]:
    """Keys that are in a partition now."""
    return list(
        islice((key for key in map("key-{}".format, range(10_000)) if topic.partition_of(key) == partition), count)
    )


def moving_key(topic: PartitionedTopic, count: int) -> str:
    """A key whose slot a resize to so many partitions would move."""
    routes = topic._table.current()
    moves = {slot for slots in routes.resized(count).leaving().values() for slot in slots}
    return next(key for key in map("key-{}".format, range(10_000)) if slot_of(key) in moves)


def staying_key(topic: PartitionedTopic, count: int, partition: int) -> str:
    after = topic._table.current().resized(count)
    return next(key for key in keys_of(topic, partition, 100) if after.open_term(slot_of(key)) is not None)


# -- routing ---------------------------------------------------------------------------------------


def test_all_events_of_an_entity_go_to_one_partition_in_order(topic: PartitionedTopic, pubsub: PubSub) -> None:
    """ordering-in-event-driven-systems Partition per entity and ordering-guarantees Pattern 2."""
    topic.group("billing").create()
    for event in (b"created", b"paid", b"shipped"):
        for order in range(8):
            topic.publish_message(event, ordering_key=f"order-{order}").result()
    found: dict[str, tuple[int, list[bytes]]] = {}
    for partition in topic.partitions:
        subscription = topic.group("billing").subscription(partition)
        while messages := subscription.pull(100).result():
            for message in messages:
                assert message.ordering_key is not None
                place, events = found.setdefault(message.ordering_key, (partition, []))
                assert place == partition == topic.partition_of(message.ordering_key)
                events.append(message.data)
                message.ack().result()
    assert {key: events for key, (_, events) in found.items()} == {
        f"order-{order}": [b"created", b"paid", b"shipped"] for order in range(8)
    }


def test_the_partition_key_may_come_from_the_metadata(pubsub: PubSub, store: SqliteStore) -> None:
    """ordering-in-event-driven-systems Partition per entity: a function takes the entity's id from the message."""
    with PartitionedTopic(pubsub, "orders", store=store, key=lambda message: message.attributes["entity_id"]) as topic:
        topic.create(4).group("billing").create()
        topic.publish_message(b"1", {"entity_id": "order-7"}).result()
        partition = topic.partition_of("order-7")
        [message] = topic.group("billing").subscription(partition).pull().result()
        assert (message.data, message.ordering_key) == (b"1", "order-7")


def test_partitions_are_topics_of_their_own_names(topic: PartitionedTopic, pubsub: PubSub) -> None:
    """ordering-guarantees Pattern 2: `events-partition-0` to `-3`."""
    assert {one.name for one in pubsub.topics().result()} == {
        *map("orders-{}".format, range(4)),
        "orders-changes",
        "orders-flushes",
    }


def test_what_was_not_created_is_told_by_the_name_that_its_user_gave(pubsub: PubSub, store: SqliteStore) -> None:
    with (
        PartitionedTopic(pubsub, "orders", store=store) as topic,
        pytest.raises(NotFound, match="partitions of 'orders' do not exist; create them first"),
    ):
        topic.publish_message(b"1", ordering_key="order-7").result()


def test_a_message_without_a_key_is_refused(topic: PartitionedTopic) -> None:
    """ordering-in-event-driven-systems Partition per entity: it requires choosing a partition key."""
    with pytest.raises(InvalidOrderingKey, match="belongs to no partition"):
        topic.publish_message(b"1").result()


def test_one_bad_message_refuses_them_all(topic: PartitionedTopic) -> None:
    with pytest.raises(InvalidArgument):
        topic.publish_many([Message(b"1", None, "a"), Message("2", None, "b")]).result()  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="expected several of Message, not Message"):
        topic.publish_many(Message(b"1", None, "a")).result()  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="not of str"):
        topic.publish_many(["1"]).result()  # type: ignore[list-item]
    assert all(not topic._pubsub.topic(f"orders-{n}").metadata().result().published for n in topic.partitions)


@pytest.mark.parametrize("count", [0, -1, 4_097, 2.0, True, "4"])
def test_a_wrong_number_of_partitions_is_named(pubsub: PubSub, store: SqliteStore, count: Any) -> None:
    topic = PartitionedTopic(pubsub, "orders", store=store)
    with pytest.raises(InvalidArgument, match=r"partitions: "):
        topic.create(count)
    topic.create(2)
    with pytest.raises(InvalidArgument, match=r"partitions: "):
        topic.resize(count).result()


def test_partitions_that_do_not_exist_are_named(pubsub: PubSub, store: SqliteStore) -> None:
    topic = PartitionedTopic(pubsub, "orders", store=store)
    with pytest.raises(NotFound):
        topic.publish_message(b"1", ordering_key="a").result()
    with pytest.raises(NotFound, match="group 'billing' does not exist"):
        topic.create(1).group("billing").join(print)


def test_to_create_what_is_there_finds_it(topic: PartitionedTopic, pubsub: PubSub, store: SqliteStore) -> None:
    again = PartitionedTopic(pubsub, "orders", store=store).create(7)
    assert again.partitions == [0, 1, 2, 3]


class OwnBytes(SqliteStore):
    """Of a driver that has its own kind of bytes, as psycopg2 has."""

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        with super().transaction() as connection:
            raw: Any = connection
            query_in = raw.query_in
            raw.query_in = lambda *given: [[self._own(value) for value in row] for row in query_in(*given)]
            yield raw

    def _own(self, value: Any) -> Any:
        return memoryview(value) if isinstance(value, bytes) else value


class Away(SqliteStore):
    """Sometimes it is not there."""

    asked_in_vain = 0
    away = False

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        if self.away:
            self.asked_in_vain += 1
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error
        with super().transaction() as connection:
            yield connection


@pytest.mark.parametrize("asynchronous", [False, True])
def test_while_the_store_is_not_there_no_message_is_taken_for_failed(pubsub: PubSub, asynchronous: bool) -> None:
    handled: list[bytes] = []

    def handle(message: Message) -> None:
        handled.append(message.data)
        message.ack()

    async def handle_later(message: Message) -> None:
        handle(message)

    morgue = pubsub.topic("dead").create().result().subscription("morgue").create().result()
    policy = {"dead_letter_topic": "dead", "max_delivery_attempts": 1}
    with closing(Away(":memory:")) as store, PartitionedTopic(pubsub, "orders", store=store) as topic:
        group = topic.create(2).group("billing").create(dead_letter_policy=policy)
        with group.join(handle_later if asynchronous else handle):
            store.away = True
            topic._table.announce()  # as who joins does: all look at the store
            published = topic.publish_message(b"1", ordering_key="a")
            wait_until(lambda: store.asked_in_vain > 20)
            store.away = False
            published.result(PATIENCE_SECONDS)
            wait_until(lambda: handled == [b"1"])
    assert morgue.metrics().result().backlog_messages == 0


def test_who_closes_does_not_wait_for_a_store_that_is_not_there(pubsub: PubSub) -> None:
    with closing(Away(":memory:")) as store, PartitionedTopic(pubsub, "orders", store=store) as topic:
        member = topic.create(1).group("billing").create().join(lambda message: message.ack())
        store.away = True
        topic._table.announce()
        topic.publish_message(b"1", ordering_key="a")
        wait_until(lambda: store.asked_in_vain > 20)
        with pytest.raises(sqlite3.OperationalError):  # nobody could be told that it leaves
            member.close()


def test_a_driver_may_have_its_own_kind_of_bytes(pubsub: PubSub) -> None:
    with (
        closing(OwnBytes(":memory:")) as store,
        PartitionedTopic(pubsub, "orders", store=store) as topic,
        topic.create(2).group("billing").create().join(lambda message: message.ack()) as member,
    ):
        topic.publish_message(b"1", ordering_key="a").result()
        member.step()
        assert member.partitions == [0, 1]


def test_a_store_that_knows_another_broker_is_refused(store: SqliteStore) -> None:
    clock = ManualClock()
    PartitionedTopic(PubSub(MessageQueue(clock=clock)), "orders", store=store).create(2)
    clock.advance(1)
    with pytest.raises(FailedPrecondition, match="another broker"):
        PartitionedTopic(PubSub(MessageQueue(clock=clock)), "orders", store=store).create(2)


@pytest.mark.parametrize("name", ["b" * 244, "projects/shop/topics/billing"])
def test_a_group_without_room_for_its_name_in_a_subscription_s_is_refused_and_in_nobody_s_way(
    topic: PartitionedTopic, name: str
) -> None:
    with pytest.raises(InvalidName, match="subscription name"):
        topic.group(name)
    with topic.group("b" * 243).create().join(lambda message: message.ack()):
        topic.resize(11).result(PATIENCE_SECONDS)


def test_wrong_options_are_named(topic: PartitionedTopic, pubsub: PubSub, store: SqliteStore) -> None:
    with pytest.raises(InvalidArgument, match="key: something to call"):
        PartitionedTopic(pubsub, "orders", store=store, key="id")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="max_held"):
        PartitionedTopic(pubsub, "orders", store=store, max_held=0)
    group = topic.group("billing")
    with pytest.raises(InvalidArgument, match="enable_message_ordering is True"):
        group.create(message_ordering=False)
    group.create()
    with pytest.raises(InvalidArgument, match="session_seconds"):
        group.join(print, session_seconds=0)
    with pytest.raises(InvalidArgument, match="handler: something to call"):
        group.join(None)  # type: ignore[arg-type]


# -- consuming -------------------------------------------------------------------------------------


class Workers:
    """Members whose handlers record what they do, and can be stopped at a message."""

    def __init__(self, topic: PartitionedTopic, count: int, *, asynchronous: bool = False) -> None:
        self.history = History()
        self.seen: dict[str, set[str]] = {}  # keys by member
        self.done = 0
        self.answers: list[tuple[str, bytes, Pending[str]]] = []
        self.go = threading.Event()
        self.go.set()
        self.hold: set[bytes] = set()
        self.held = threading.Semaphore(0)
        self._lock = threading.Lock()
        group = topic.group("billing").create()
        self.members = [
            group.join(self._handler(f"m{number}", asynchronous), member=f"m{number}", session_seconds=5)
            for number in range(count)
        ]

    def _handler(self, member: str, asynchronous: bool) -> Callable[[Message], Any]:
        def note(message: Message) -> None:
            with self._lock:
                self.seen.setdefault(member, set()).add(message.ordering_key or "")
            if message.data in self.hold:
                self.held.release()
                assert self.go.wait(PATIENCE_SECONDS)
            message.ack()
            with self._lock:
                self.done += 1

        async def note_async(message: Message) -> None:
            note(message)

        return self.history.handler(note_async if asynchronous else note, consumer=member)

    def publish(self, topic: PartitionedTopic, keys: list[str], count: int, first: int = 0) -> None:
        for number in range(first, first + count):
            for key in keys:
                self.history.publishing(key, str(number).encode())
                answer = topic.publish_message(str(number).encode(), ordering_key=key)
                self.answers.append((key, str(number).encode(), answer))

    def close(self) -> None:
        self.go.set()
        for member in self.members:
            member.close()

    def check(self, count: int) -> None:
        wait_until(lambda: self.done >= count)
        self.close()
        for key, value, answer in self.answers:  # in the order of the calls: answers may come in another one
            answer.result(PATIENCE_SECONDS)
            self.history.published(key, value)
        found = anomalies(self.history)
        assert not found, str(found)
        assert found.messages == count


@pytest.mark.parametrize("asynchronous", [False, True], ids=["def", "async def"])
def test_members_share_partitions_and_each_key_has_one_of_them(topic: PartitionedTopic, asynchronous: bool) -> None:
    """ordering-in-event-driven-systems Partition per entity: consumers only receive events of their partitions."""
    workers = Workers(topic, 2, asynchronous=asynchronous)
    wait_until(lambda: [len(member.partitions) for member in workers.members] == [2, 2])
    keys = [f"order-{number}" for number in range(20)]
    mine = {
        member.name: {key for key in keys if topic.partition_of(key) in member.partitions} for member in workers.members
    }
    workers.publish(topic, keys, 5)
    workers.check(100)
    assert workers.seen == mine


def test_different_entities_are_processed_in_parallel(topic: PartitionedTopic) -> None:
    """ordering-in-event-driven-systems Partition per entity and ordering-guarantees Gotcha 1: order is per entity."""
    workers = Workers(topic, 2)
    first, second = keys_of(topic, 0, 1) + keys_of(topic, 3, 1)
    workers.hold.add(b"0")
    workers.go.clear()
    workers.publish(topic, [first, second], 3)
    assert workers.held.acquire(timeout=PATIENCE_SECONDS)
    assert workers.held.acquire(timeout=PATIENCE_SECONDS)  # both at once
    workers.go.set()
    workers.check(6)


def test_a_failed_event_blocks_its_own_key_only(topic: PartitionedTopic) -> None:
    """ordering-in-event-driven-systems Partition per entity: failed events only block their own partition."""
    group = topic.group("billing").create()
    bad, same, other = keys_of(topic, 0, 1) + keys_of(topic, 0, 2)[1:] + keys_of(topic, 1, 1)
    done: list[tuple[str | None, bytes]] = []
    failing = True

    def handle(message: Message) -> None:
        if failing and message.ordering_key == bad:
            raise ValueError("not now")
        done.append((message.ordering_key, message.data))
        message.ack()

    with group.join(handle):
        for key in (bad, same, other):
            for data in (b"1", b"2"):
                topic.publish_message(data, ordering_key=key).result()
        wait_until(lambda: len(done) == 4)
        assert {key for key, _ in done} == {same, other}
        failing = False
        wait_until(lambda: len(done) == 6)
        assert done[4:] == [(bad, b"1"), (bad, b"2")]


def test_a_strict_partition_is_handled_one_after_the_other(pubsub: PubSub, store: SqliteStore) -> None:
    """ordering-guarantees Pattern 2: one consumer at a time for each queue, maxConcurrency=1."""
    with PartitionedTopic(pubsub, "orders", store=store) as topic:
        group = topic.create(2, strict=True).group("billing").create()
        keys = [*keys_of(topic, 0, 3), *keys_of(topic, 1, 3)]
        sent: dict[int, list[tuple[str, bytes]]] = {0: [], 1: []}
        for number in range(10):
            for key in keys:
                topic.publish_message(str(number).encode(), ordering_key=key).result()
                sent[topic.partition_of(key)].append((key, str(number).encode()))
        got: dict[int, list[tuple[str, bytes]]] = {0: [], 1: []}
        running: dict[int, int] = {0: 0, 1: 0}
        overlaps: list[int] = []

        def handle(message: Message) -> None:
            key = message.attributes["inorder-key"]
            partition = topic.partition_of(key)
            running[partition] += 1
            overlaps.append(running[partition])
            got[partition].append((key, message.data))
            running[partition] -= 1
            message.ack()

        with group.join(handle), group.join(handle):
            wait_until(lambda: sum(map(len, got.values())) == 60)
        assert got == sent
        assert {*overlaps} == {1}


def test_a_partition_that_changes_hands_is_finished_first(topic: PartitionedTopic) -> None:
    """ordering-guarantees Gotcha 1: a second worker gets a partition only when the first has stopped with it."""
    workers = Workers(topic, 1)
    keys = [key for partition in range(4) for key in keys_of(topic, partition, 2)]
    workers.hold.add(b"0")
    workers.go.clear()
    workers.publish(topic, keys, 5)
    for _ in keys:
        assert workers.held.acquire(timeout=PATIENCE_SECONDS)
    second = topic.group("billing").join(workers._handler("m1", False), member="m1", session_seconds=5)
    workers.members.append(second)
    assert second.partitions == []
    workers.go.set()
    wait_until(lambda: len(second.partitions) == 2)
    workers.publish(topic, keys, 5, first=5)
    workers.check(80)
    assert {*workers.seen} == {"m0", "m1"}


def test_a_member_that_dies_is_replaced(store: SqliteStore) -> None:
    clock = ManualClock()
    pubsub = PubSub(MessageQueue(clock=clock))
    topic = PartitionedTopic(pubsub, "orders", store=store).create(4)
    first, second = [Membership(store, Table(pubsub, store, "orders"), "billing", name, clock, 10) for name in "ab"]
    assert first.beat().keeps == {0, 1, 2, 3}
    assert second.beat().keeps == set()
    place = first.beat()
    assert len(place.to_give) == 2
    first.give(place.to_give)
    assert second.beat().keeps == place.to_give
    clock.advance(9)
    second.beat()
    clock.advance(2)  # nothing was heard of the first for 11 seconds
    assert second.beat().keeps == {0, 1, 2, 3}
    assert first.beat().keeps == set()  # it was only asleep: it must stop, and starts over
    assert topic.group("billing").assignment() == dict.fromkeys(range(4), "b")


def test_a_member_that_leaves_leaves_its_partitions_at_once(topic: PartitionedTopic) -> None:
    workers = Workers(topic, 2)
    wait_until(lambda: [len(member.partitions) for member in workers.members] == [2, 2])
    workers.members[0].close()
    wait_until(lambda: workers.members[1].partitions == [0, 1, 2, 3])
    workers.publish(topic, [f"order-{number}" for number in range(8)], 3)
    workers.check(24)


def test_a_member_that_could_not_join_consumes_nothing(topic: PartitionedTopic, pubsub: PubSub) -> None:
    group = topic.group("billing").create()
    full = QueueLimits(max_messages=1, when_full="error")
    pubsub.topic("orders-changes").subscription("full").create(queue_limits=full).result()
    pubsub.topic("orders-changes").publish_message().result()  # so that nothing can be announced
    handled: list[bytes] = []
    with pytest.raises(ResourceExhausted):
        group.join(lambda message: handled.append(message.data))
    assert group.assignment() == {}
    topic.publish_message(b"placed", ordering_key="order-7").result()
    [message] = group.subscription(topic.partition_of("order-7")).pull().result()
    assert (message.data, handled) == (b"placed", [])


def test_a_member_whose_joining_is_interrupted_at_any_step_leaves(topic: PartitionedTopic) -> None:
    group = topic.group("billing").create()
    members: list[Any] = []

    def join() -> None:
        members.append(group.join(lambda message: message.ack()))

    for step in range(1, 200):
        is_interrupted(join, step, "inorder.consumers.partitions", "inorder.pending")
        if members:
            break
        wait_until(lambda: group.assignment() == {})
    assert members.pop().close().done()


def test_a_member_ends_with_its_broker(store: SqliteStore) -> None:
    pubsub = PubSub("memory:")
    topic = PartitionedTopic(pubsub, "orders", store=store).create(2)
    member = topic.group("billing").create().join(lambda message: message.ack())
    pubsub.close().result(PATIENCE_SECONDS)
    member._thread.join(PATIENCE_SECONDS)
    assert not member._thread.is_alive()
    member.close()
    assert topic.group("billing").assignment() == {}


def test_every_group_gets_every_message(topic: PartitionedTopic) -> None:
    got: dict[str, list[bytes]] = {"billing": [], "audit": []}

    def handler(group: str) -> Callable[[Message], None]:
        def handle(message: Message) -> None:
            got[group].append(message.data)
            message.ack()

        return handle

    with topic.group("billing").create().join(handler("billing")), topic.group("audit").create().join(handler("audit")):
        for number in range(10):
            topic.publish_message(str(number).encode(), ordering_key=f"k{number}").result()
        wait_until(lambda: [len(one) for one in got.values()] == [10, 10])


# -- resizing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [(4, 7), (4, 1), (1, 4)])
def test_keys_stay_in_order_while_partitions_are_added_and_removed(
    pubsub: PubSub, store: SqliteStore, before: int, after: int
) -> None:
    """ordering-guarantees Gotcha 7: in-flight messages of the old partition come before those in the new one."""
    with PartitionedTopic(pubsub, "orders", store=store) as topic:
        workers = Workers(topic.create(before), 2)
        keys = [f"order-{number}" for number in range(30)]
        workers.publish(topic, keys, 10)
        resized = topic.resize(after)
        workers.publish(topic, keys, 10, first=10)
        resized.result(PATIENCE_SECONDS)
        workers.publish(topic, keys, 10, first=20)
        assert topic.partitions == list(range(after))
        workers.check(900)


def test_a_moved_slot_waits_until_its_old_partition_is_acked_and_the_others_do_not(topic: PartitionedTopic) -> None:
    """ordering-guarantees Gotcha 7: the barrier."""
    group = topic.group("billing").create()
    moved = moving_key(topic, 5)
    source = topic.partition_of(moved)
    unmoved = staying_key(topic, 5, source)
    for key in (moved, unmoved):
        topic.publish_message(b"old", ordering_key=key).result()
    resized = topic.resize(5)
    wait_until(lambda: topic._table.load().draining())
    held = topic.publish_message(b"new", ordering_key=moved)
    topic.publish_message(b"new", ordering_key=unmoved).result(PATIENCE_SECONDS)  # its pause is none
    [wait] = topic.waiting()
    assert (wait.ordering_key, wait.source, wait.group) == (moved, source, "billing")
    assert wait.reason == "waiting"
    assert not held.done()
    assert not resized.done()
    [message] = [one for one in group.subscription(source).pull(10).result() if one.ordering_key == moved]
    assert message.data == b"old"
    message.ack().result()
    held.result(PATIENCE_SECONDS)
    resized.result(PATIENCE_SECONDS)
    [message] = group.subscription(4).pull(10).result()
    assert (message.data, topic.partition_of(moved)) == (b"new", 4)


def test_attributes_that_were_copied_from_a_strict_partition_mean_nothing_in_others(topic: PartitionedTopic) -> None:
    moved, stays = moving_key(topic, 5), staying_key(topic, 5, 0)
    topic.resize(5).result(PATIENCE_SECONDS)  # now the slot of the one has a second term, and that of the other has not
    handled: list[bytes] = []

    def handle(message: Message) -> None:
        handled.append(message.data)
        message.ack()

    with topic.group("billing").create().join(handle):
        copied = {"inorder-key": stays, "inorder-term": "0"}
        topic.publish_message(b"placed", copied, ordering_key=moved).result()
        wait_until(lambda: handled == [b"placed"])


def test_a_parked_key_keeps_its_slot_only_and_says_so(topic: PartitionedTopic) -> None:
    """ordering-guarantees Gotcha 7: a poison message never drains; its slot waits, and can be let go or left."""
    policy = {"dead_letter_topic": "dead", "max_delivery_attempts": 1}
    group = topic.group("billing").create(on_poison="park_key", dead_letter_policy=policy)
    moved = moving_key(topic, 5)
    source = topic.partition_of(moved)
    topic.publish_message(b"poison", ordering_key=moved).result()
    [message] = group.subscription(source).pull().result()
    message.nack().result()
    resized = topic.resize(5)
    wait_until(lambda: topic._table.load().owners.count(4) > 100)  # all other slots have moved
    [wait] = topic.waiting()
    assert (wait.ordering_key, wait.reason) == (moved, "parked")
    held = topic.publish_message(b"next", ordering_key=moved)
    group.subscription(source).skip(moved).result()
    group.subscription(source).pull().result()  # the gap is told
    resized.result(PATIENCE_SECONDS)
    held.result(PATIENCE_SECONDS)
    assert topic.waiting() == []


def test_a_backlog_that_was_not_read_yet_is_waited_for(tmp_path: Path, store: SqliteStore) -> None:
    with PubSub(tmp_path / "data") as pubsub, PartitionedTopic(pubsub, "orders", store=store) as topic:
        group = topic.create(1).group("billing").create()
        moved = moving_key(topic, 2)
        other = staying_key(topic, 2, 0)
        for _ in range(11):  # more than a subscription keeps in memory; what is to move lies behind it
            topic.publish_many([Message(b"x", None, other)] * 1_000).result()
        topic.publish_message(b"last", ordering_key=moved).result()
        topic.resize(2)
        wait_until(lambda: topic._table.load().draining())
        [wait] = topic.waiting()
        assert (wait.slot, wait.source, wait.reason) == (None, 0, "waiting")
        assert group.subscription(0).unacked().result().known_to < 11_000
        assert topic._table.load().owners.count(1) == 0


def test_a_resize_can_be_cancelled(topic: PartitionedTopic) -> None:
    group = topic.group("billing").create()
    moved = moving_key(topic, 5)
    source = topic.partition_of(moved)
    topic.publish_message(b"1", ordering_key=moved).result()
    resized = topic.resize(5)
    wait_until(lambda: topic.waiting())
    held = topic.publish_message(b"2", ordering_key=moved)
    topic.cancel_resize()
    held.result(PATIENCE_SECONDS)
    assert topic.partition_of(moved) == source
    with pytest.raises(Aborted, match="the resize to 5 partitions was given up"):
        resized.result(PATIENCE_SECONDS)
    subscription = group.subscription(source)
    for expected in (b"1", b"2"):
        [message] = subscription.pull(10).result()
        assert message.data == expected
        message.ack().result()


def test_a_group_that_is_deleted_is_not_waited_for(topic: PartitionedTopic) -> None:
    topic.group("billing").create()
    moved = moving_key(topic, 5)
    topic.publish_message(b"1", ordering_key=moved).result()
    resized = topic.resize(5)
    wait_until(lambda: topic.waiting())
    topic.group("billing").delete()
    resized.result(PATIENCE_SECONDS)


def test_a_resize_that_was_begun_by_somebody_who_died_is_finished_by_members(
    topic: PartitionedTopic, store: SqliteStore
) -> None:
    Resizer(topic._pubsub, topic._table).plan(6)  # and no more
    group = topic.group("billing").create()
    with group.join(lambda message: message.ack(), session_seconds=0.2):
        wait_until(lambda: not topic._table.load().moving)
    assert topic.partitions == list(range(6))


def test_the_last_of_several_resizes_wins(topic: PartitionedTopic) -> None:
    topic.group("billing").create()
    moved = moving_key(topic, 8)
    topic.publish_message(b"1", ordering_key=moved).result()
    first = topic.resize(8)
    wait_until(lambda: topic.waiting())
    topic.resize(2)
    [message] = topic.group("billing").subscription(topic.partition_of(moved)).pull().result()
    message.ack().result()
    with pytest.raises(Aborted, match=r"the slots of each are {0: 2048, 1: 2048}"):
        first.result(PATIENCE_SECONDS)


def test_what_waits_for_a_slot_has_a_limit(pubsub: PubSub, store: SqliteStore) -> None:
    with PartitionedTopic(pubsub, "orders", store=store, max_held=3) as topic:
        topic.create(4).group("billing").create()
        moved = moving_key(topic, 5)
        stays = staying_key(topic, 5, topic.partition_of(moved))
        topic.publish_message(b"0", ordering_key=moved).result()
        topic.resize(5)
        wait_until(lambda: topic.waiting())
        held = [topic.publish_message(b"1", ordering_key=moved) for _ in range(3)]
        with pytest.raises(ResourceExhausted, match=r"3 messages wait .*, 1 more would, and no more than 3 may"):
            topic.publish_message(b"2", ordering_key=moved).result()
        topic.publish_many([Message(b"3", None, stays)] * 9).result(PATIENCE_SECONDS)  # these wait for nothing
        assert MAX_HELD == 10_000
    for answer in held:
        with pytest.raises(Closed, match="while slot"):
            answer.result(PATIENCE_SECONDS)


def test_what_waits_for_a_slot_is_as_it_was_published(topic: PartitionedTopic) -> None:
    billing = topic.group("billing").create()
    moved = moving_key(topic, 5)
    topic.publish_message(b"0", ordering_key=moved).result()
    resized = topic.resize(5)
    wait_until(lambda: topic.waiting())
    data, attributes = bytearray(b"1"), {"step": "paid"}
    held = topic.publish_message(data, attributes, moved)  # type: ignore[arg-type]
    data[:], attributes["step"] = b"2", "shipped"  # as of a publisher that uses them for its next message
    subscription = billing.subscription(topic.partition_of(moved))
    for message in subscription.pull().result():
        message.ack().result()
    resized.result(PATIENCE_SECONDS)
    held.result(PATIENCE_SECONDS)
    [message] = billing.subscription(topic.partition_of(moved)).pull().result()
    assert (message.data, message.attributes["step"]) == (b"1", "paid")


def test_one_publish_of_many_that_would_wait_keeps_the_limit(pubsub: PubSub, store: SqliteStore) -> None:
    with PartitionedTopic(pubsub, "orders", store=store, max_held=3) as topic:
        topic.create(4).group("billing").create()
        moved = moving_key(topic, 5)
        topic.publish_message(b"0", ordering_key=moved).result()
        topic.resize(5)
        wait_until(lambda: topic.waiting())
        with pytest.raises(ResourceExhausted, match=r"0 messages wait .*, 4 more would, and no more than 3 may"):
            topic.publish_many([Message(b"1", None, moved)] * 4).result(PATIENCE_SECONDS)
        held = topic.publish_many([Message(b"1", None, moved)] * 3)
        assert not held.done()


FULL = [  # of which nothing may be added to any
    (Message(b"", {f"a{number}": "" for number in range(100)}, "full"), "10[12] attributes exceed"),
    (Message(bytes(10_000_000 - 10), None, "full"), r"message of 1\d+ bytes exceeds"),
    (Message(b"", {"half": "k" * 512}, "x" * 1_024), None),
    (Message(b"", {"half": "é" * 256}), None),
    (Message(b"", {"half": "k" * 513}), "1026"),
    (Message(b"", {"half": "é" * 257}), "1028"),
]


def entity_of(message: Message) -> str:
    return 2 * message.attributes.get("half", "") or message.ordering_key or ""


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("full", "problem"), FULL, ids=map(str, range(len(FULL))))
def test_a_message_that_has_no_room_for_what_is_added_refuses_them_all(
    pubsub: PubSub, store: SqliteStore, full: Message, problem: str | None, strict: bool
) -> None:
    """And pauses no key."""
    with PartitionedTopic(pubsub, "orders", store=store, key=entity_of) as topic:
        group = topic.create(4, strict=strict).group("billing").create()
        others = [Message(b"", None, f"k{number}") for number in range(8)]
        if problem is None:
            topic.publish_many([*others, full]).result()
            assert sum(group.backlogs().values()) == 9
            return
        with pytest.raises(InvalidArgument, match=problem):
            topic.publish_many([*others, full]).result()
        assert sum(group.backlogs().values()) == 0
        assert topic.paused_keys() == []
        topic.publish_many(others).result()


def test_one_who_publishes_by_old_routes_finds_out_and_sends_again(pubsub: PubSub, store: SqliteStore) -> None:
    """ordering-guarantees Gotcha 7: several publishers, one of whom does not know of the resize yet."""
    one, other = (PartitionedTopic(pubsub, "orders", store=store) for _ in range(2))
    with one, other:
        group = one.create(4).group("billing").create()
        moved = moving_key(one, 5)
        source = one.partition_of(moved)
        other.publish_message(b"1", ordering_key=moved).result()
        [message] = group.subscription(source).pull().result()
        message.ack().result()
        assert other._table.known.open_term(0) is not None
        one.resize(5).result(PATIENCE_SECONDS)
        late = other.publish_message(b"2", ordering_key=moved)  # to the old partition, where it is too late
        late.result(PATIENCE_SECONDS)
        got: list[tuple[int, bytes]] = []

        def handle(message: Message) -> None:
            got.append((one.partition_of(moved), message.data))
            message.ack()

        with group.join(handle):
            wait_until(lambda: group.backlogs() == dict.fromkeys(range(5), 0))
        assert got == [(4, b"2")]


def test_a_slot_that_was_opened_by_somebody_who_died_before_he_told_is_found_open(
    pubsub: PubSub, store: SqliteStore
) -> None:
    with PartitionedTopic(pubsub, "orders", store=store) as topic:
        group = topic.create(4).group("billing").create()
        moved = moving_key(topic, 5)
        table = Table(pubsub, store, "orders")
        resizer = Resizer(pubsub, table)
        resizer.provide(resizer.plan(5))
        sealed = resizer.seal()
        gate = Gate(topic._table, resizer)
        assert topic._table.look().routes == sealed
        table._save(sealed.opened([slot for slots in sealed.draining().values() for slot in slots]), sealed.version)
        with PartitionedTopic(pubsub, "orders", store=store) as other:
            other.publish_message(b"1", ordering_key=moved).result(PATIENCE_SECONDS)
        [message] = group.subscription(4).pull().result()
        assert topic._table.unchanged().result() == sealed  # nothing was announced
        assert gate.counts(message)


def test_who_writes_the_routes_knows_them_without_reading(pubsub: PubSub, store: SqliteStore) -> None:
    table = Table(pubsub, store, "orders")
    table.create(4, strict=False)
    written = table.change(lambda routes: routes.resized(5))
    assert table.unchanged().result() is written
    assert table.load() is written


class Overtaken(Table):
    """Somebody else writes, and tells, before this one comes to tell what it has written."""

    other: Table | None = None

    def announce(self) -> None:
        other, self.other = self.other, None
        if other is not None:
            other.change(lambda routes: routes.resized(6))
        super().announce()


def test_who_was_overtaken_while_he_wrote_the_routes_reads_them_again(pubsub: PubSub, store: SqliteStore) -> None:
    table = Overtaken(pubsub, store, "orders")
    table.create(4, strict=False)
    table.other = Table(pubsub, store, "orders")
    table.change(lambda routes: routes.resized(5))
    assert table.unchanged().result() is None
    assert table.current().live == [0, 1, 2, 3, 4, 5]


# -- a publisher whose requests take their time ----------------------------------------------------


class SlowTransport(EmbeddedTransport):
    """Keeps requests to partitions until the test lets them go."""

    def __init__(self, broker: MessageQueue) -> None:
        super().__init__(broker, owned=False)
        self.requests: list[Callable[[Exception | None], None]] = []

    def publish(self, topic: str, batch: Batch) -> Pending[list[str]]:
        if topic.endswith(("-changes", "-flushes")):
            return super().publish(topic, batch)
        answer: Pending[list[str]] = Pending()

        def go(error: Exception | None) -> None:
            if error is not None:
                answer.set_exception(error)
            else:
                super(SlowTransport, self).publish(topic, batch).hand_to(answer)

        self.requests.append(go)
        return answer


class Slow:
    def __init__(self, store: SqliteStore) -> None:
        self.broker = MessageQueue()
        self.pubsub = PubSub(self.broker)
        self.topic = PartitionedTopic(self.pubsub, "orders", store=store).create(4)
        self.group = self.topic.group("billing").create()
        self.transport = SlowTransport(self.broker)
        slow = PubSub(self.broker)
        slow._connection = Connection(self.transport)
        self.router = Router(slow, Table(slow, store, "orders"))

    def publish(self, key: str, data: bytes) -> Pending[str]:
        return self.router.publish([Message(data, None, key)])[0]

    def go(self, error: Exception | None = None) -> None:
        self.transport.requests.pop(0)(error)


def test_a_message_that_is_stored_behind_the_seal_is_sent_again_in_its_place(store: SqliteStore) -> None:
    slow = Slow(store)
    moved = moving_key(slow.topic, 5)
    source = slow.topic.partition_of(moved)
    first, second = slow.publish(moved, b"1"), slow.publish(moved, b"2")
    slow.topic.resize(5).result(PATIENCE_SECONDS)  # nothing of the slot is stored yet: it is drained at once
    third = slow.publish(moved, b"3")
    while slow.transport.requests:
        slow.go()
    assert not first.done()
    while not third.done():
        slow.router.tend()
        while slow.transport.requests:
            slow.go()
    assert [position_of(answer.result()) for answer in (first, second, third)] == [0, 1, 2]
    assert slow.pubsub.topic(f"orders-{source}").metadata().result().published > 0  # void, all of them
    subscription = slow.group.subscription(4)
    for expected in (b"1", b"2", b"3"):
        [message] = subscription.pull(10).result()
        assert message.data == expected
        message.ack().result()
    slow.topic.close()


def test_a_publish_that_fails_pauses_its_key_until_it_is_resumed(store: SqliteStore) -> None:
    slow = Slow(store)
    failed, behind = slow.publish("a", b"1"), slow.publish("a", b"2")
    slow.go(Unavailable("no network"))
    with pytest.raises(Unavailable):
        failed.result()
    with pytest.raises(KeyPaused):
        behind.result()
    assert slow.router.paused_keys() == ["a"]
    with pytest.raises(KeyPaused):
        slow.publish("a", b"3")
    slow.router.resume("a")
    again = slow.publish("a", b"1")
    slow.go()
    assert again.result()
    slow.topic.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Ctrl-C at the end of a generator
@pytest.mark.parametrize("moving", [False, True])
def test_a_publish_that_is_interrupted_at_any_step_holds_up_nothing_behind_it(
    pubsub: PubSub, store: SqliteStore, moving: bool
) -> None:
    with PartitionedTopic(pubsub, "orders", store=store) as topic:
        group = topic.create(1).group("billing").create()
        moves = {slot for slots in topic._table.current().resized(2).leaving().values() for slot in slots}
        by_slot = {slot_of(key): key for key in map("key-{}".format, range(300)) if slot_of(key) in moves}
        keys = list(by_slot.values())
        for key in keys:
            topic.publish_message(b"1", ordering_key=key).result()
        if moving:
            topic.resize(2)
            wait_until(lambda: len(topic.waiting()) == len(keys))
        for step, key in enumerate(keys, 1):
            is_interrupted(partial(topic.publish_message, b"2", None, key), step, "inorder.consumers")
        assert not is_interrupted(partial(topic.publish_message, b"2", None, keys[0]), 100, "inorder.consumers")
        with group.join(lambda message: message.ack()):
            topic.resize(2).result(PATIENCE_SECONDS)
            for key in keys:
                topic.resume_publishing(key)
            for answer in [topic.publish_message(b"3", ordering_key=key) for key in keys]:
                answer.result(PATIENCE_SECONDS)
        wait_until(lambda: topic._router.unanswered() == [])


def test_what_keeps_a_chore_from_being_done_is_told_once_until_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    full, away = ResourceExhausted("full"), OSError("away")
    outcomes: list[Exception | None] = [away, away, away, full, full, None, full]

    def do() -> bool:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return bool(outcomes)

    chore = Chore("chore", do, lambda error: None)
    for _ in range(len(outcomes)):
        chore._once()
    assert [record.message for record in caplog.records] == ["chore: the store failed", "chore: full", "chore: full"]
    assert caplog.records[0].exc_info is not None
    assert caplog.records[0].exc_info[1] is away


def test_a_chore_whose_start_is_interrupted_is_done_by_the_next_who_wakes_it() -> None:
    done = threading.Event()

    def do() -> bool:
        done.set()
        return False

    chore = Chore("chore", do, lambda error: None)

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is threading.Thread.start.__code__:
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            chore.wake()
    finally:
        sys.setprofile(None)
    chore.wake()
    assert done.wait(PATIENCE_SECONDS)
    chore.stop()


def test_a_key_that_is_paused_with_its_strict_partition_is_named_as_its_publisher_knows_it(
    pubsub: PubSub, store: SqliteStore
) -> None:
    with PartitionedTopic(pubsub, "orders", store=store) as topic:
        group = topic.create(1, strict=True).group("billing")
        group.create(queue_limits={"max_messages": 1, "when_full": "error"})
        topic.publish_message(b"1", ordering_key="a").result()
        with pytest.raises(ResourceExhausted):
            topic.publish_message(b"2", ordering_key="b").result()
        with pytest.raises(KeyPaused, match=r"call resume_publishing\('c'\) to go on"):
            topic.publish_message(b"3", ordering_key="c").result()
        [message] = group.subscription(0).pull().result()
        message.ack().result()
        topic.resume_publishing("c")
        topic.publish_message(b"3", ordering_key="c").result()


def test_a_closed_publisher_takes_no_more(topic: PartitionedTopic) -> None:
    topic.close()
    with pytest.raises(Closed):
        topic.publish_message(b"1", ordering_key="a").result()


def test_a_topic_that_is_closed_by_who_is_answered_answers_all(topic: PartitionedTopic, store: SqliteStore) -> None:
    stays, moves = staying_key(topic, 5, 0), moving_key(topic, 5)
    topic.publish_message(b"0", ordering_key=stays).result()
    Resizer(topic._pubsub, Table(topic._pubsub, store, "orders")).plan(5)  # by somebody else, who goes no further
    with topic._router._tending:
        counts, undecided = topic.publish_message(b"1", None, stays), topic.publish_message(b"1", None, moves)
        counts.add_done_callback(lambda _: topic.close())
    assert counts.result(PATIENCE_SECONDS)
    with pytest.raises(Closed):
        undecided.result(PATIENCE_SECONDS)


def test_a_closed_topic_begins_no_resize(topic: PartitionedTopic) -> None:
    topic.close()
    with pytest.raises(Closed):
        topic.resize(6).result(PATIENCE_SECONDS)
    assert not topic._table.load().moving


def test_a_handler_may_close_its_member_also_while_that_waits_for_it(topic: PartitionedTopic) -> None:
    group = topic.group("billing").create()
    begun, go_on, members = threading.Semaphore(0), threading.Event(), list[Any]()

    def close(_: Message) -> None:
        begun.release()
        assert go_on.wait(PATIENCE_SECONDS)
        members[0].close()

    members.append(group.join(close))
    for partition in range(4):
        topic.publish_message(b"1", ordering_key=keys_of(topic, partition, 1)[0]).result()
        assert begun.acquire(timeout=PATIENCE_SECONDS)
    with group.join(lambda message: message.ack()) as other:
        wait_until(lambda: members[0]._closing)  # it has to give some of its partitions, and waits for these handlers
        go_on.set()
        members[0]._left.result(PATIENCE_SECONDS)
        assert members[0].close().done()
        wait_until(lambda: other.partitions == [0, 1, 2, 3])


# -- the end of a group ----------------------------------------------------------------------------


def test_a_group_that_is_deleted_leaves_nothing_in_partitions_that_are_out_of_use(topic: PartitionedTopic) -> None:
    """Else they fill up, and a later group of that name gets old messages."""
    group = topic.group("billing").create()
    topic.resize(6).result(PATIENCE_SECONDS)
    topic.resize(2).result(PATIENCE_SECONDS)
    resizer = Resizer(topic._pubsub, topic._table)
    resizer.provide(resizer.plan(8))
    resizer.cancel()  # so 6 and 7 never had a slot
    assert all(group.subscription(partition).exists().result() for partition in range(8))
    group.delete()
    assert not any(group.subscription(partition).exists().result() for partition in range(8))


def test_who_is_about_to_make_subscriptions_of_a_group_that_is_deleted_meanwhile_leaves_none(
    topic: PartitionedTopic,
) -> None:
    group = topic.group("billing").create()
    resizer = Resizer(topic._pubsub, topic._table)
    known = resizer.plan(6)
    group.delete()
    resizer.provide(known)
    assert not any(group.subscription(partition).exists().result() for partition in range(6))
    assert topic._pubsub.topic("orders-5").exists().result()


def test_members_of_a_group_that_is_deleted_end_and_hold_nothing_of_a_later_one(topic: PartitionedTopic) -> None:
    handled: list[tuple[str, bytes]] = []

    def handler(name: str) -> Callable[[Message], None]:
        def handle(message: Message) -> None:
            handled.append((name, message.data))
            message.ack()

        return handle

    group = topic.group("billing").create()
    first = group.join(handler("first"))
    group.delete()
    first._left.result(PATIENCE_SECONDS)
    assert (first.partitions, group.assignment()) == ([], {})
    with group.create().join(handler("second")) as second:
        assert second.partitions == [0, 1, 2, 3]
        topic.publish_message(b"placed", ordering_key="order-7").result()
        wait_until(lambda: handled == [("second", b"placed")])
    first.close()


def test_a_subscription_of_a_group_that_somebody_deleted_is_made_and_consumed_anew(topic: PartitionedTopic) -> None:
    handled: list[bytes] = []

    def handle(message: Message) -> None:
        handled.append(message.data)
        message.ack()

    group = topic.group("billing").create()
    with group.join(handle, session_seconds=0.2):
        before = group.subscription(0)
        before.delete().result()
        wait_until(lambda: before.exists().result())
        topic.publish_message(b"placed", ordering_key=keys_of(topic, 0, 1)[0]).result()
        wait_until(lambda: handled == [b"placed"])


# -- skew ------------------------------------------------------------------------------------------


def test_a_hot_partition_is_told_with_its_keys(topic: PartitionedTopic) -> None:
    """ordering-guarantees Gotcha 6 and ordering-in-event-driven-systems Partition per entity: skewed keys."""
    group = topic.group("billing").create()
    hot = "order-1"
    for number in range(60):
        topic.publish_message(b"", ordering_key=hot).result()
        topic.publish_message(b"", ordering_key=f"other-{number}").result()
    for report in (topic.skew(), group.skew()):
        assert report.total == 120
        assert report.keys[0][:2] == (hot, 60)
        assert report.partitions[0].number == topic.partition_of(hot)
        assert report.imbalance > 2
        assert report.least_possible >= 0.5
    assert max(group.backlogs(), key=group.backlogs().__getitem__) == topic.partition_of(hot)
    assert sum(group.backlogs().values()) == 120


def test_more_partitions_help_where_many_keys_are_hot(topic: PartitionedTopic) -> None:
    """ordering-guarantees Gotcha 6: adjust the number of partitions."""
    for number in range(400):
        topic.publish_message(b"", ordering_key=f"order-{number}").result()
    before = topic.skew().partitions[0].load
    topic.resize(8).result(PATIENCE_SECONDS)
    assert topic.skew().partitions[0].load < before * 0.75


def test_a_strict_partition_does_not_tell_keys_of_its_backlog(pubsub: PubSub, store: SqliteStore) -> None:
    with PartitionedTopic(pubsub, "orders", store=store) as topic:
        group = topic.create(2, strict=True).group("billing").create()
        with pytest.raises(FailedPrecondition, match="see `backlogs`"):
            group.skew()


def test_an_existing_topic_is_no_partition_by_accident(pubsub: PubSub, store: SqliteStore) -> None:
    pubsub.topic("orders-0").create().result()
    PartitionedTopic(pubsub, "orders", store=store).create(1)
    with pytest.raises(AlreadyExists):
        pubsub.topic("orders-0").create().result()

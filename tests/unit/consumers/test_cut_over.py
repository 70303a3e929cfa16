"""Publishers during a switch: at the source, held, at the target; all keys at once or one after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inorder import PubSub
from inorder.broker import MessageQueue
from inorder.consumers import Forwarder, MovingTopic, SqliteStore, forwarding_subscription, is_barrier
from inorder.errors import Aborted, Closed, FailedPrecondition, InvalidArgument, ResourceExhausted
from inorder.testing.history import History, anomalies


class Move:
    """A topic at two brokers, a forwarder between them, and a reader at the target."""

    def __init__(self) -> None:
        self.source, self.target = PubSub(MessageQueue()), PubSub(MessageQueue())
        self.old, self.new = (pubsub.topic("orders").create().result() for pubsub in (self.source, self.target))
        self.mover = forwarding_subscription(self.old, "mover").result()
        self.reader = self.new.subscription("reader")
        self.reader.create(enable_message_ordering=True, max_outstanding_per_key=1_000).result()
        self.forwarder = Forwarder(self.mover, self.new)

    def moving(self, **options: Any) -> MovingTopic:
        return MovingTopic(self.old, self.new, **options)

    def run(self) -> None:
        while self.forwarder.step():
            pass

    def read(self) -> list[str]:
        messages = self.reader.pull(1_000).result()
        for message in messages:
            message.ack().result()
        return [message.data.decode() for message in messages]

    def published_at_source(self) -> int:
        return self.old.metadata().result().published


@pytest.fixture
def move() -> Iterator[Move]:
    move = Move()
    yield move
    move.forwarder.close()
    move.source.close().result()
    move.target.close().result()


def test_publishers_are_held_until_the_source_is_drained(move: Move) -> None:
    moving = move.moving()
    before = moving.publish_message(b"placed", {"by": "web"}, "order-7")
    assert (before.done(), moving.state) == (True, "copying")
    switched = moving.switch(move.forwarder)
    held = moving.publish_message(b"paid", ordering_key="order-7")
    assert (held.done(), moving.state, moving.state_of("order-7")) == (False, "draining", "draining")
    assert move.read() == []
    move.run()
    assert (switched.done(), held.done(), moving.state) == (True, True, "switched")
    moving.publish_message(b"shipped", ordering_key="order-7").result()
    assert move.read() == ["placed", "paid", "shipped"]
    assert move.published_at_source() == 1


def test_what_is_held_is_as_it_was_published(move: Move) -> None:
    moving = move.moving()
    moving.hold().result()
    data, attributes = bytearray(b"placed"), {"by": "web"}
    held = moving.publish_message(data, attributes, "order-7")  # type: ignore[arg-type]
    data[:], attributes["by"] = b"paid", "app"  # as of a publisher that uses them for its next message
    moving.go()
    held.result(0)
    [message] = move.reader.pull().result()
    assert (message.data, message.attributes) == (b"placed", {"by": "web"})


def test_what_no_topic_would_take_is_refused_and_not_held(move: Move) -> None:
    moving = move.moving(max_held=1)
    moving.hold().result()
    with pytest.raises(InvalidArgument, match="Attribute values must be strings"):
        moving.publish_message(b"placed", {"by": 1}, "order-7").result(0)  # type: ignore[dict-item]
    held = moving.publish_message(b"placed", {"by": "web"}, "order-7")
    moving.go()
    held.result(0)


def test_json_is_published_as_a_topic_does(move: Move) -> None:
    moving = move.moving()
    moving.publish_json({"event": "placed"}, ordering_key="order-7").result()
    with pytest.raises(InvalidArgument, match="not representable as JSON"):
        moving.publish_json({1, 2}).result(0)
    move.run()
    assert move.read() == ['{"event": "placed"}']


def test_keys_can_be_switched_one_after_the_other(move: Move) -> None:
    moving = move.moving()
    for key in "ab":
        moving.publish_message(b"1", ordering_key=key)
    switched = moving.switch(move.forwarder, "a")
    held, free = (moving.publish_message(b"2", ordering_key=key) for key in "ab")
    assert (held.done(), free.done()) == (False, True)
    assert [moving.state_of(key) for key in ("a", "b", None)] == ["draining", "copying", "copying"]
    move.run()
    assert switched.done()
    assert (moving.state, moving.state_of("a")) == ("copying", "switched")
    moving.publish_message(b"3", ordering_key="a").result()
    seen = [(message.ordering_key, message.data) for message in move.reader.pull(10).result()]
    assert [data for key, data in seen if key == "a"] == [b"1", b"2", b"3"]
    assert [data for key, data in seen if key == "b"] == [b"1", b"2"]
    rest = moving.switch(move.forwarder)
    move.run()
    assert rest.done()
    assert moving.state_of("b") == "switched"


def test_consumers_of_the_source_can_tell_a_barrier_or_filter_it(move: Move) -> None:
    plain = move.old.subscription("plain").create().result()
    filtered = move.old.subscription("filtered").create(filter="NOT attributes:inorder_barrier").result()
    moving = move.moving()
    moving.publish_message(b"placed", ordering_key="a")
    moving.switch(move.forwarder, "a")
    assert [is_barrier(message) for message in plain.pull(10).result()] == [False, True]
    assert [message.data for message in filtered.pull(10).result()] == [b"placed"]


def test_a_switch_can_be_given_up(move: Move) -> None:
    moving = move.moving()
    moving.publish_message(b"placed", ordering_key="order-7")
    switched = moving.switch(move.forwarder)
    held = moving.publish_message(b"paid", ordering_key="order-7")
    moving.stay()
    with pytest.raises(Aborted, match="publishers stay at the source"):
        switched.result(0)
    assert (held.done(), moving.state, move.published_at_source()) == (True, "copying", 2)
    moving.publish_message(b"shipped", ordering_key="order-7")
    move.run()
    assert (moving.state, move.read()) == ("copying", ["placed", "paid", "shipped"])
    moving.stay()  # nothing to give up


def test_a_switch_that_was_given_up_does_not_come_back_and_end_another_one(move: Move) -> None:
    """Its barrier is passed while the next switch waits for its own."""
    moving = move.moving()
    for key in "ab":
        moving.publish_message(b"1", ordering_key=key)
    given_up = moving.switch(move.forwarder, "a")
    moving.stay()
    slow = Forwarder(forwarding_subscription(move.old, "slow").result(), move.new)
    switched = moving.switch(slow, "b")
    held = moving.publish_message(b"2", ordering_key="b")
    move.run()  # passes the barrier of "a"
    assert isinstance(given_up.exception(), Aborted)
    assert (switched.done(), held.done(), moving.state_of("b")) == (False, False, "draining")
    slow.close()


def test_a_switch_waits_for_publishes_that_are_on_their_way(move: Move) -> None:
    """A thread that has decided for the source, and has not published there yet."""
    moving = move.moving()
    moving._entering["order-7"] = 1
    switched, held = moving.switch(move.forwarder), moving.publish_message(b"held", ordering_key="order-7")
    move.run()
    assert (switched.done(), held.done(), moving.state) == (False, False, "draining")
    move.old.publish_message(b"on its way", ordering_key="order-7").result()
    moving._entered("order-7")
    move.run()
    assert (switched.done(), moving.state) == (True, "switched")
    assert move.read() == ["on its way", "held"]


def test_a_switch_can_be_given_up_while_publishes_are_on_their_way(move: Move) -> None:
    moving = move.moving()
    moving._entering["order-7"] = 1
    holding = moving.hold()
    with pytest.raises(FailedPrecondition, match=r"still on their way to the source: wait for hold\(\)"):
        moving.go()
    moving.stay()
    assert isinstance(holding.exception(), Aborted)
    switched = moving.switch(move.forwarder)
    moving.stay()
    assert isinstance(switched.exception(), Aborted)
    moving._entered("order-7")
    assert moving.state == "copying"


def test_a_forwarder_that_closes_leaves_publishers_at_the_source(move: Move) -> None:
    moving = move.moving()
    moving.publish_message(b"placed", ordering_key="order-7")
    switched = moving.switch(move.forwarder)
    held = moving.publish_message(b"paid", ordering_key="order-7")
    move.forwarder.close()
    assert isinstance(switched.exception(), Aborted)
    assert (held.done(), moving.state, move.published_at_source()) == (True, "copying", 2)


def test_a_barrier_that_the_source_refuses_is_waited_for_by_nobody(move: Move) -> None:
    move.old.subscription("full").create(queue_limits={"max_messages": 1, "when_full": "error"}).result()
    moving = move.moving()
    moving.publish_message(b"1", ordering_key="a").result()
    with pytest.raises(ResourceExhausted):
        moving.switch(move.forwarder, "a").result(0)
    assert moving.state_of("a") == "copying"
    move.run()
    assert (move.forwarder.state, move.read()) == ("copying", ["1"])


def test_so_many_are_held_and_no_more(move: Move) -> None:
    moving = move.moving(max_held=2)
    moving.switch(move.forwarder)
    held = [moving.publish_message(b"x", ordering_key="k") for _ in range(3)]
    with pytest.raises(ResourceExhausted, match="2 messages are held until the switch, as many as may be"):
        held[2].result(0)
    move.run()
    assert all(answer.done() for answer in held)
    assert len(move.read()) == 2


def test_what_cannot_be_is_refused(move: Move) -> None:
    with pytest.raises(InvalidArgument, match="max_held: a whole number of at least 1, not 0"):
        move.moving(max_held=0)
    moving = move.moving()
    with pytest.raises(FailedPrecondition, match=r"nothing is held: call hold\(\) first"):
        moving.go()
    moving.publish_message(b"x", ordering_key="a")
    moving.switch(move.forwarder, "a")
    with pytest.raises(FailedPrecondition, match="nothing is held"):
        moving.go()  # the switch goes by itself
    with pytest.raises(FailedPrecondition, match="a switch of key 'a' is under way"):
        moving.switch(move.forwarder).result(0)
    move.run()
    with pytest.raises(FailedPrecondition, match="key 'a' is switched already"):
        moving.switch(move.forwarder, "a").result(0)
    moving.switch(move.forwarder)
    with pytest.raises(FailedPrecondition, match="a switch of all keys is under way"):
        moving.switch(move.forwarder).result(0)
    move.run()
    with pytest.raises(FailedPrecondition, match="the topic is switched already"):
        moving.switch(move.forwarder).result(0)


def test_a_message_that_was_held_and_is_wrong_fails_alone(move: Move) -> None:
    moving = move.moving()
    moving.switch(move.forwarder)
    wrong, right = moving.publish_message(b"", {"": "x"}, "k"), moving.publish_message(b"right", None, "k")
    move.run()
    assert isinstance(wrong.exception(), InvalidArgument)
    assert right.exception() is None


def test_what_was_switched_is_remembered(move: Move, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db")
    moving = move.moving(store=store)
    moving.switch(move.forwarder, "a")
    move.run()
    again = move.moving(store=store)
    assert [again.state_of(key) for key in ("a", "b", None)] == ["switched", "copying", "copying"]
    again.switch(move.forwarder)
    move.run()
    last = move.moving(store=store)
    assert (last.state, last.state_of("b")) == ("switched", "switched")
    last.publish_message(b"x", ordering_key="b").result()
    assert move.read() == ["x"]
    assert move.moving(store=store, name="another").state == "copying"
    store.close()


def test_a_store_that_fails_leaves_publishers_at_the_source(move: Move, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db")
    moving = move.moving(store=store)
    assert moving.state_of("order-7") == "copying"
    store.close()
    switched = moving.switch(move.forwarder)
    held = moving.publish_message(b"paid", ordering_key="order-7")
    move.run()
    assert "this store is closed" in str(switched.exception())
    assert (held.done(), move.published_at_source()) == (True, 1)


def test_who_publishes_within_a_transaction_of_the_store_waits_for_nobody(move: Move, tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db")
    moving = move.moving(store=store)
    with store.transaction():
        beside = threading.Thread(target=lambda: moving.publish_message(b"1", ordering_key="a").result(), daemon=True)
        beside.start()
        beside.join(10)
        assert not beside.is_alive()
        moving.publish_message(b"2", ordering_key="b").result(0)
        assert moving.state_of("never seen") == "copying"
    store.close()
    with pytest.raises(Closed):
        move.moving(store=store)


@pytest.mark.parametrize("remembers", [False, True])
def test_several_processes_are_held_before_the_drain_and_go_after_it(
    move: Move, tmp_path: Path, remembers: bool
) -> None:
    stores = [SqliteStore(tmp_path / "db") if remembers else None for _ in range(2)]
    processes = [move.moving(store=store) for store in stores]
    for number in range(4):
        processes[number % 2].publish_message(b"%d" % number, ordering_key="k")
    for process in processes:
        process.hold().result(0)
    answers = [
        processes[number % 2].publish_message(b"%d" % number, ordering_key=f"k{number % 2}") for number in (4, 5)
    ]
    drained = move.forwarder.drained()
    move.run()
    drained.result(0)
    for process in processes:
        process.go()
    assert all(answer.done() for answer in answers)
    assert [process.state for process in processes] == ["switched", "switched"]
    assert sorted(move.read()) == ["0", "1", "2", "3", "4", "5"]
    for store in stores:
        if store is not None:
            assert move.moving(store=store).state == "switched"
            store.close()


@pytest.mark.parametrize("key_by_key", [False, True])
def test_a_consumer_at_the_target_sees_each_key_in_order_across_a_switch_under_load(key_by_key: bool) -> None:
    """ordering-in-event-driven-systems Message broker migration: the switch comes while all are at work."""
    move, history = Move(), History()
    moving, keys = move.moving(), [f"order-{number}" for number in range(4)]
    started, done = threading.Event(), threading.Semaphore(0)

    def publish(key: str) -> None:
        for number in range(150):
            history.publishing(key, number)
            moving.publish_message(b"%d" % number, ordering_key=key).result(60)
            history.published(key, number)
            if number == 20:
                started.set()

    def handle(message: Any) -> None:
        message.ack()
        done.release()

    reader = move.new.subscription("reader")
    reader.on("message", history.handler(handle, value=lambda message: int(message.data)))
    reader.open()
    with move.forwarder:
        threads = [threading.Thread(target=publish, args=(key,)) for key in keys]
        for thread in threads:
            thread.start()
        started.wait(60)
        for key in keys if key_by_key else [None]:
            moving.switch(move.forwarder, key).result(60)
        assert {moving.state_of(key) for key in keys} == {"switched"}
        for thread in threads:
            thread.join()
        for _ in range(600):
            assert done.acquire(timeout=60)
    move.source.close().result()
    move.target.close().result()
    found = anomalies(history)
    assert not found, str(found)
    assert (found.messages, found.duplicates) == (600, 0)

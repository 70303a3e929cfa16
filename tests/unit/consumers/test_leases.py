"""Who has lost a lease writes nothing more, whoever knows of it: this client, the broker, or only the database."""

import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

from inorder import Message, PubSub
from inorder.client.connection import Connection
from inorder.client.subscription import Subscription
from inorder.consumers import Applied, Consumer
from inorder.errors import Unavailable
from inorder.patterns.step import RELEASED, Batch, Event, Step
from inorder.pending import Pending
from inorder.testing.clock import ManualClock
from inorder.transport.embedded import EmbeddedDeliveries, EmbeddedTransport

from .desk import PATIENCE_SECONDS, Database, desk, read, wait_until, write_down


class Everything:
    """Lets everything through, however often it comes: only leases are between it and doing things twice."""

    FIELDS: ClassVar = 1

    def on_message(self, state: int | None, event: Event, now_us: int) -> Step[int]:
        return Step((state or 0) + 1, ((RELEASED, event),))

    def on_messages(self, states: Mapping[str, int], events: Iterable[Event], now_us: int) -> Batch[int]:
        batch: Batch[int] = Batch()
        for event in events:
            batch.states[event[0]] = (batch.states.get(event[0]) or states.get(event[0]) or 0) + 1
            batch.emit.append((RELEASED, event))
        return batch

    def on_timer(self, state: int, now_us: int) -> Step[int]:
        return Step(state)

    def dump(self, state: int) -> bytes:
        return b"%d" % state

    def load(self, data: bytes) -> int:
        return int(data)


class CutDeliveries(EmbeddedDeliveries):
    """Cannot reach the broker to keep leases while `cut` is set: is told so, or hears nothing."""

    cut: threading.Event
    told: bool

    def extend(self, leases: Sequence[int], seconds: float) -> Pending[list[int]]:
        if self.cut.is_set():
            return Pending.failed(Unavailable("the network is down")) if self.told else Pending()
        return super().extend(leases, seconds)


class CutTransport(EmbeddedTransport):
    cut: threading.Event
    told = True

    def deliveries(self, *arguments: Any) -> Any:
        made = super().deliveries(*arguments)
        made.__class__ = CutDeliveries
        made.cut, made.told = self.cut, self.told  # type: ignore[attr-defined]
        return made


class Always:
    """Stands for a run that believes that everything is ours."""

    def keep(self, messages: object) -> bool:
        return True

    def look_by(self, when_us: int) -> None:
        pass


def test_a_lease_that_the_broker_has_ended_keeps_the_handler_from_writing(database: Database) -> None:
    """The client cannot know of the seek before it asks, and it asks before it commits."""
    calls: list[str] = []
    with desk(database) as here:

        def apply(event: Applied, raw: Any) -> None:
            write_down(event, raw)
            calls.append(event.message_id)
            if len(calls) == 1:
                here.subscription.seek(position=0).result()

        here.publish([("a", 1)])
        here.consume(Everything(), apply=apply)
    assert len(calls) == 2
    assert database.effects() == [("a", 1)]


def test_a_lease_that_has_expired_keeps_the_handler_from_writing(database: Database) -> None:
    """It is cut off for longer than its deadline, and somebody else does the work meanwhile."""
    clock = ManualClock()
    begun, go_on, cut = threading.Event(), threading.Event(), threading.Event()
    done_by: list[str] = []

    def slow(event: Applied, raw: Any) -> None:
        write_down(event, raw)
        begun.set()
        assert go_on.wait(30)
        done_by.append("slow")

    def quick(event: Applied, raw: Any) -> None:
        write_down(event, raw)
        done_by.append("quick")

    with desk(database, clock, enable_message_ordering=True, ack_deadline_seconds=10) as here:
        transport = CutTransport(here.queue, owned=False)
        transport.cut = cut
        cut_off = Subscription(Connection(transport), "worker")
        options: dict[str, Any] = {"read": read, "on_error": here.note}
        second = here.consumer(Everything(), apply=quick)
        first = Consumer(cut_off, Everything(), store=database.store(), apply=slow, **options).open()
        here.publish([("a", 1)])
        assert begun.wait(30)
        cut.set()
        clock.advance(11)
        second.open()
        # The second has got it, and waits for the first where one transaction waits for another.
        wait_until(lambda: done_by or here.queue.metrics("worker").outstanding_messages)
        cut.clear()
        go_on.set()
        here.drained()
        first.close()
        second.close()
    assert sorted(done_by) == ["quick", "slow"]
    assert database.effects() == [("a", 1)]


def test_a_broker_that_does_not_answer_does_not_keep_the_database_from_others(tmp_path: Path) -> None:
    """SQLite looks ten times a second whether it is free: of one transaction after the other it sees no end."""
    database, cut = Database(str(tmp_path / "store.db")), threading.Event()
    cut.set()
    begun = threading.Event()

    def apply(event: Applied, raw: Any) -> None:
        write_down(event, raw)
        begun.set()

    with desk(database, ack_deadline_seconds=0.1) as here:
        transport = CutTransport(here.queue, owned=False)
        transport.cut, transport.told = cut, False
        cut_off = Subscription(Connection(transport), "worker")
        with Consumer(cut_off, Everything(), store=database.store(), read=read, apply=apply, on_error=here.note):
            here.publish([("a", 1)])
            assert begun.wait(PATIENCE_SECONDS)
            with closing(sqlite3.connect(database.place, timeout=PATIENCE_SECONDS, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")
                assert other.execute("SELECT count(*) FROM effects").fetchone() == (0,)
                other.execute("ROLLBACK")
            cut.clear()
            here.drained()
        assert "does not answer" in str(here.errors[0])
    effects = database.effects()
    database.close()
    assert set(effects) == {("a", 1)}  # twice, should a busy machine take a tenth of a second for the ack


def deliver_twice(here: Any) -> tuple[Message, Message]:
    (old,) = here.subscription.pull(1).result()
    here.subscription.seek(position=0).result()
    (new,) = here.subscription.pull(1).result()
    assert new.fencing_token > old.fencing_token
    return old, new


def test_an_older_delivery_than_one_that_was_written_is_refused_by_its_fencing_token(database: Database) -> None:
    with desk(database, enable_message_ordering=True) as here:
        here.publish([("a", 1)])
        old, new = deliver_twice(here)
        consumer: Any = here.consumer(Everything())
        assert consumer.take([new], Always()).done == [new]
        assert consumer.take([old], Always())[:2] == ([], [])  # not ours: neither acked nor nacked
    assert database.effects() == [("a", 1)]


def test_only_where_a_key_has_one_delivery_at_a_time_is_an_older_one_over(database: Database) -> None:
    """Without order, several of an entity are out at once, and none of them is stale because it is slower."""
    with desk(database) as here:
        here.publish([("a", 1), ("a", 2)])
        first, second = here.subscription.pull(2).result()
        consumer: Any = here.consumer(Everything())
        assert consumer.take([second], Always()).done == [second]
        assert consumer.take([first], Always()).done == [first]
    assert sorted(database.effects()) == [("a", 1), ("a", 2)]


def test_an_entity_that_is_not_the_ordering_key_has_no_old_deliveries_either(database: Database) -> None:
    with desk(database, enable_message_ordering=True) as here:
        for key in ("x", "y"):
            here.publish([("a", 1)], ordering_key=key)
        first, second = here.subscription.pull(2).result()
        consumer: Any = here.consumer(Everything())
        assert consumer.take([second], Always()).done == [second]
        assert consumer.take([first], Always()).done == [first]


def test_tokens_of_another_broker_mean_nothing_here(database: Database) -> None:
    for count in (30, 1):  # the second broker counts from the beginning
        with desk(database, enable_message_ordering=True) as here:
            here.publish([("a", number) for number in range(count)])
            here.consume(Everything())
    assert len(database.effects()) == 31


def test_a_broker_is_asked_once_for_a_whole_list(database: Database) -> None:
    asked: list[int] = []

    class Counting(EmbeddedDeliveries):
        def extend(self, leases: Sequence[int], seconds: float) -> list[int]:
            asked.append(len(leases))
            return super().extend(leases, seconds)

        def settle(self, acks: Sequence[int], nacks: Sequence[int]) -> Any:
            asked.append(-len(acks))
            return super().settle(acks, nacks)

    class Transport(EmbeddedTransport):
        def deliveries(self, *arguments: Any) -> Any:
            made = super().deliveries(*arguments)
            made.__class__ = Counting
            return made

    with desk(database, ManualClock()) as here:
        here.publish([(f"k{number}", 1) for number in range(50)])
        subscription = Subscription(Connection(Transport(here.queue, owned=False)), "worker")
        with Consumer(subscription, Everything(), store=database.store(), read=read, apply=write_down):
            here.drained()
    assert asked == [50, -50]


def test_a_loop_may_ask_and_answer_for_its_lists() -> None:
    with PubSub("memory:") as pubsub:
        topic = pubsub.topic("orders").create().result()
        subscription = topic.subscription("worker").create(ack_deadline_seconds=600).result()
        topic.publish_many([Message(b"%d" % number) for number in range(4)]).result()
        batches = subscription.batches(4)
        assert not batches.closed
        for messages in batches:
            first, second, third, _ = messages
            assert all(map(batches.holds, messages))
            assert batches.keep(messages)
            (acked,) = batches.answer([first], [second])
            assert acked.result() is None
            assert not batches.holds(first)
            batches.give_back([third])
            assert not batches.holds(third)
            batches.close()
            assert batches.closed
        again = {message.data: message.delivery_attempt for message in subscription.pull(10).result()}
    assert again[b"1"] == 2  # nacked
    assert again[b"2"] == 1  # given back: it has not failed
    assert b"0" not in again


def test_a_loop_that_is_poked_before_it_begins_goes_round() -> None:
    with PubSub("memory:") as pubsub:
        subscription = pubsub.topic("orders").create().result().subscription("worker").create().result()
        batches = subscription.batches()
        batches.poke()
        assert next(iter(batches)) == []

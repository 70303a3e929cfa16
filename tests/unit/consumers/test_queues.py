"""The four kinds of queues: what each guarantees, side by side."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from inorder import Gap, Message, PubSub
from inorder.consumers import Queue, SqliteStore
from inorder.consumers.queues import STANDARD_RETRY
from inorder.errors import FailedPrecondition, InvalidArgument

PATIENCE_SECONDS = 30


@pytest.fixture
def pubsub() -> Iterator[PubSub]:
    with PubSub("memory:") as pubsub:
        yield pubsub


@pytest.fixture
def store() -> Iterator[SqliteStore]:
    store = SqliteStore(":memory:")
    yield store
    store.close()


def wait_until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.002)


class Slow:
    """Handlers that wait until they are let go, each message by its data."""

    def __init__(self) -> None:
        self.started: list[bytes] = []
        self.done: list[bytes] = []
        self.gates: dict[bytes, threading.Event] = {}

    def __call__(self, message: Message) -> None:
        self.started.append(message.data)
        assert self.gates.setdefault(message.data, threading.Event()).wait(PATIENCE_SECONDS)
        self.done.append(message.data)
        message.ack()

    def let_go(self, *data: bytes) -> None:
        for one in data:
            self.gates.setdefault(one, threading.Event()).set()


def test_a_standard_queue_handles_everything_at_once(pubsub: PubSub) -> None:
    """ordering-guarantees Comparison, How 2: no order, parallel consumers."""
    queue, handler = Queue.standard(pubsub, "mail"), Slow()
    queue.send_many([Message(b"1"), Message(b"2"), Message(b"3")]).result()
    consuming = queue.consume(handler)
    wait_until(lambda: len(handler.started) == 3)
    for data in (b"3", b"1", b"2"):
        handler.let_go(data)
        wait_until(lambda data=data: data in handler.done)  # type: ignore[misc]
    consuming.close().result()
    assert handler.done == [b"3", b"1", b"2"]


def handled_but(queue: Queue, fails: Callable[[Message], bool], *, until: int) -> list[bytes]:
    """Of three messages what was handled, in its order, when so many were."""
    done: list[bytes] = []

    def handle(message: Message) -> None:
        if fails(message):
            message.nack()
        else:
            done.append(message.data)
            message.ack()

    queue.send_many([Message(b"1"), Message(b"2"), Message(b"3")]).result()
    consuming = queue.consume(handle)
    wait_until(lambda: len(done) == until)
    consuming.close().result()
    return done


@pytest.mark.parametrize("options", [{}, {"flow_control": {"max_messages": 1}}], ids=["many", "one at a time"])
def test_a_message_that_fails_for_ever_keeps_no_other_of_a_standard_queue_waiting(
    pubsub: PubSub, options: dict[str, Any]
) -> None:
    """ordering-guarantees Comparison and How 7, ordering-in-event-driven-systems Trade-off: failures are isolated."""
    queue = Queue.standard(pubsub, "mail", **options)
    done = handled_but(queue, lambda message: message.data == b"1", until=2)
    assert sorted(done) == [b"2", b"3"]


def test_who_wants_a_standard_queue_to_retry_at_once_says_so(pubsub: PubSub) -> None:
    Queue.standard(pubsub, "a"), Queue.standard(pubsub, "b", retry_policy=None), Queue.fifo(pubsub, "c")
    found = [pubsub.subscription(name).metadata().result().options.retry_policy for name in "abc"]
    assert found == [STANDARD_RETRY, None, None]


def test_a_retry_on_a_standard_queue_is_overtaken(pubsub: PubSub) -> None:
    """ordering-guarantees How 7: without FIFO, what failed arrives late."""
    queue = Queue.standard(pubsub, "mail", retry_policy={"minimum_backoff": 0.05, "maximum_backoff": 0.05})
    done = handled_but(queue, lambda message: message.data == b"1" and message.delivery_attempt == 1, until=3)
    assert done[-1] == b"1"


def test_a_fifo_queue_handles_one_at_a_time_whoever_consumes_it(pubsub: PubSub) -> None:
    """ordering-guarantees Comparison, How 3 and Gotcha 1: two consumers, and still in the order of sending."""
    queue, handler = Queue.fifo(pubsub, "ledger"), Slow()
    for data in (b"1", b"2", b"3"):
        queue.send(data).result()
    consuming = [queue.consume(handler) for _ in range(2)]
    for number, data in enumerate((b"1", b"2", b"3")):
        wait_until(lambda number=number: len(handler.started) == number + 1)  # type: ignore[misc]
        assert handler.done == handler.started[:-1]
        handler.let_go(data)
    wait_until(lambda: len(handler.done) == 3)
    for one in consuming:
        one.close().result()
    assert handler.done == [b"1", b"2", b"3"]


def test_a_nack_blocks_a_fifo_queue(pubsub: PubSub) -> None:
    """ordering-guarantees Comparison, How 7: with FIFO, what failed blocks what is behind it."""
    queue = Queue.fifo(pubsub, "ledger")
    done: list[bytes] = []

    def handle(message: Message) -> None:
        if message.data == b"1" and (message.delivery_attempt or 0) < 3:
            message.nack()
        else:
            done.append(message.data)
            message.ack()

    queue.send_many([Message(b"1"), Message(b"2"), Message(b"3")]).result()
    consuming = queue.consume(handle)
    wait_until(lambda: len(done) == 3)
    consuming.close().result()
    assert done == [b"1", b"2", b"3"]


def test_a_dead_letter_of_a_fifo_queue_leaves_a_gap_that_is_told(pubsub: PubSub) -> None:
    """ordering-guarantees Comparison and Gotcha 4."""
    pubsub.topic("dead").create().result()
    policy = {"dead_letter_topic": "dead", "max_delivery_attempts": 1}
    Queue.fifo(pubsub, "ledger", dead_letter_policy=policy).send_many([Message(b"1"), Message(b"2")]).result()
    told: list[Gap | bytes] = []
    subscription = pubsub.subscription("ledger").on("gap", told.append)
    [message] = subscription.pull().result()
    message.nack().result()
    told += [message.data for message in subscription.pull().result()]
    assert isinstance(told[0], Gap)
    assert told[0].reason == "dead_lettered"
    assert told[1:] == [b"2"]


@pytest.mark.parametrize("kind", ["fifo", "fifo_groups", "partitioned", "partitioned, strict"])
def test_who_consumes_a_queue_is_told_in_its_place_of_a_dead_letter(
    kind: str, pubsub: PubSub, store: SqliteStore
) -> None:
    """ordering-guarantees Comparison and Gotcha 4."""
    pubsub.topic("dead").create().result()
    policy = {"dead_letter_topic": "dead", "max_delivery_attempts": 1}
    make, group = getattr(Queue, kind.partition(",")[0]), None if kind == "fifo" else "a"
    options = {"store": store, "partitions": 2, "strict": "strict" in kind} if "partitioned" in kind else {}
    queue = make(pubsub, "ledger", dead_letter_policy=policy, **options)
    told: list[str | bytes] = []

    def handle(message: Message) -> None:
        if message.data == b"2":
            message.nack()
        else:
            told.append(message.data)
            message.ack()

    consuming = queue.consume(handle, on_gap=lambda gap: told.append(gap.reason))
    for data in (b"1", b"2", b"3"):
        queue.send(data, group=group).result()
    wait_until(lambda: b"3" in told)
    consuming.close().result()  # of every kind
    assert told == [b"1", "dead_lettered", b"3"]


def test_message_groups_are_in_order_each_and_do_not_wait_for_each_other(pubsub: PubSub) -> None:
    """ordering-guarantees Comparison and How 3: per-group FIFO, parallel across groups."""
    queue, handler = Queue.fifo_groups(pubsub, "orders"), Slow()
    for data in (b"a1", b"a2", b"b1", b"b2"):
        queue.send(data, group=data[:1].decode()).result()
    consuming = queue.consume(handler)
    wait_until(lambda: len(handler.started) == 2)
    assert sorted(handler.started) == [b"a1", b"b1"]
    handler.let_go(b"b1", b"b2")
    wait_until(lambda: handler.done == [b"b1", b"b2"])
    handler.let_go(b"a1", b"a2")
    wait_until(lambda: len(handler.done) == 4)
    consuming.close().result()
    assert handler.done[2:] == [b"a1", b"a2"]


def test_a_partitioned_queue_keeps_groups_in_order_with_a_consumer_per_partition(
    pubsub: PubSub, store: SqliteStore
) -> None:
    """ordering-guarantees Comparison and How 4: strict per partition key, one consumer per partition."""
    queue = Queue.partitioned(pubsub, "orders", store=store, partitions=4)
    done: list[tuple[str | None, bytes]] = []

    def handle(message: Message) -> None:
        done.append((message.ordering_key, message.data))
        message.ack()

    consuming = [queue.consume(handle) for _ in range(2)]
    for number in range(5):
        queue.send_many([Message(str(number).encode(), None, group) for group in "abcdefgh"]).result()
    wait_until(lambda: len(done) == 40)
    for one in consuming:
        one.close()
    for group in "abcdefgh":
        assert [data for key, data in done if key == group] == [b"0", b"1", b"2", b"3", b"4"]
    queue.topic.close()


def test_kinds_with_groups_need_one_and_others_refuse_it(pubsub: PubSub, store: SqliteStore) -> None:
    for queue in (Queue.standard(pubsub, "a"), Queue.fifo(pubsub, "b")):
        with pytest.raises(InvalidArgument, match="has none, not 'g'"):
            queue.send(b"1", group="g").result()
    partitioned = Queue.partitioned(pubsub, "d", store=store, partitions=1)
    for queue in (Queue.fifo_groups(pubsub, "c"), partitioned):
        with pytest.raises(InvalidArgument, match="needs one for each message"):
            queue.send(b"1").result()
    with pytest.raises(InvalidArgument, match="not of bytes"):
        Queue.fifo(pubsub, "b").send_many([b"1"]).result()  # type: ignore[list-item]
    for several in (5, Message(b"1")):
        with pytest.raises(InvalidArgument, match=f"expected several of Message, not {type(several).__name__}"):
            Queue.fifo(pubsub, "b").send_many(several).result()  # type: ignore[arg-type]
    partitioned.topic.close()


def test_a_kind_of_queue_sets_the_order_itself(pubsub: PubSub) -> None:
    for make, other in ((Queue.fifo, False), (Queue.fifo_groups, False), (Queue.standard, True)):
        for option in ("enable_message_ordering", "message_ordering"):
            with pytest.raises(InvalidArgument, match=f"sets it itself, not to {other}"):
                make(pubsub, "ledger", **{option: other})
    assert not pubsub.topic("ledger").exists().result()
    Queue.fifo(pubsub, "ledger", enable_message_ordering=True)


def test_what_is_there_and_cannot_keep_the_guarantees_is_refused(pubsub: PubSub, store: SqliteStore) -> None:
    Queue.standard(pubsub, "free")
    for make in (Queue.fifo, Queue.fifo_groups):
        with pytest.raises(FailedPrecondition, match="'free' is there, but it has enable_message_ordering=False"):
            make(pubsub, "free")
    Queue.fifo(pubsub, "strict")
    with pytest.raises(FailedPrecondition, match="enable_message_ordering=True"):
        Queue.standard(pubsub, "strict")
    pubsub.topic("other").create().result().subscription("taken").create(enable_message_ordering=True).result()
    with pytest.raises(FailedPrecondition, match="'taken' is there, but it is one of the topic 'other'"):
        Queue.fifo(pubsub, "taken")
    pubsub.topic("strict").delete().result()
    with pytest.raises(FailedPrecondition, match="detached"):
        Queue.fifo(pubsub, "strict")
    Queue.partitioned(pubsub, "parts", store=store, partitions=1).topic.close()
    with pytest.raises(FailedPrecondition, match="they are there, and not strict"):
        Queue.partitioned(pubsub, "parts", store=store, partitions=1, strict=True)


def test_a_queue_that_is_there_is_found(pubsub: PubSub) -> None:
    Queue.fifo(pubsub, "ledger").send(b"1").result()
    assert Queue.fifo(pubsub, "ledger").send(b"2").result()
    assert [message.data for message in pubsub.subscription("ledger").pull(10).result()] == [b"1"]


def test_each_kind_says_what_it_guarantees(pubsub: PubSub, store: SqliteStore) -> None:
    """ordering-guarantees Comparison: the table."""
    queues = [
        Queue.standard(pubsub, "a"),
        Queue.fifo(pubsub, "b"),
        Queue.fifo_groups(pubsub, "c"),
        Queue.partitioned(pubsub, "d", store=store, partitions=2),
    ]
    assert [queue.guarantees.kind for queue in queues] == ["standard", "fifo", "fifo_groups", "partitioned"]
    assert [queue.guarantees.ordering.partition(",")[0] for queue in queues] == ["none", "strict", "strict", "strict"]

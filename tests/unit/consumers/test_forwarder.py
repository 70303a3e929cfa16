"""The forwarder: order, resume, a target that is away or refuses, dry run, progress, barriers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from inorder import Message, PubSub, QueueLimits, RetryPolicy
from inorder.broker import MessageQueue
from inorder.client.subscription import Subscription
from inorder.client.topic import Topic
from inorder.consumers import (
    Applied,
    Consumer,
    Forwarder,
    Origin,
    Progress,
    Refused,
    SqliteStore,
    forwarding_subscription,
    origin_of,
    read_forwarded,
)
from inorder.consumers.moving import receipts
from inorder.errors import (
    Aborted,
    FailedPrecondition,
    InvalidArgument,
    OrderingNotEnabled,
    ResourceExhausted,
    SubscriptionNotFound,
    TopicNotFound,
)
from inorder.patterns import VersionGate
from inorder.testing.clock import ManualClock

TOO_MANY = {f"attribute-{number}": "x" for number in range(98)}  # with those of the forwarder, more than 100


class Side:
    """A broker with a topic."""

    def __init__(self, clock: ManualClock) -> None:
        self.pubsub = PubSub(MessageQueue(clock=clock))
        self.topic = self.pubsub.topic("orders").create().result()

    def publish(self, *texts: str, key: str | None = "order-7") -> None:
        self.topic.publish_many([Message(text.encode(), ordering_key=key) for text in texts]).result()


class Move:
    """A source with the subscription to forward, and a target with a reader."""

    def __init__(self, **limits: Any) -> None:
        self.clock = ManualClock()
        self.source, self.target = Side(self.clock), Side(self.clock)
        self.mover: Subscription = forwarding_subscription(self.source.topic, "mover").result()
        self.reader: Subscription = self.target.topic.subscription("reader")
        self.reader.create(enable_message_ordering=True, max_outstanding_per_key=1_000, **limits).result()

    def forwarder(self, **options: Any) -> Forwarder:
        return Forwarder(self.mover, self.target.topic, **options)

    def read(self) -> list[str]:
        texts: list[str] = []
        while messages := self.reader.pull(1_000).result():
            for message in messages:
                message.ack().result()
            texts += [message.data.decode() for message in messages]
        return texts

    def lag(self) -> int:
        return self.mover.metrics().result().backlog_messages


@pytest.fixture
def move() -> Iterator[Move]:
    move = Move()
    yield move
    move.source.pubsub.close().result()
    move.target.pubsub.close().result()


def run(forwarder: Forwarder) -> Forwarder:
    while forwarder.step():
        pass
    return forwarder


def test_messages_arrive_in_order_with_all_they_had_and_where_they_came_from(move: Move) -> None:
    """ordering-in-event-driven-systems Message broker migration: message forwarding between brokers."""
    published = move.source.topic.publish_message(b"placed", {"by": "web"}, "order-7").result()
    move.source.publish("paid", "shipped")
    run(move.forwarder())
    first, *rest = move.reader.pull(10).result()
    assert (first.data, first.ordering_key, first.attributes["by"]) == (b"placed", "order-7", "web")
    assert origin_of(first) == Origin("orders", published, 0)
    assert [message.data for message in rest] == [b"paid", b"shipped"]
    assert move.lag() == 0


def test_a_message_without_a_key_stays_without(move: Move) -> None:
    move.source.publish("a", key=None)
    run(move.forwarder())
    [message] = move.reader.pull(10).result()
    assert message.ordering_key is None


def test_in_a_thread_of_its_own(move: Move) -> None:
    with move.forwarder() as forwarder:
        move.source.publish(*map(str, range(2_500)))
        forwarder.drained().result(20)
        assert forwarder.state == "drained"
        move.source.publish("more")
        forwarder.drained().result(20)
    assert forwarder.state == "closed"
    assert move.read() == [*map(str, range(2_500)), "more"]


def test_a_key_with_a_long_backlog_does_not_go_one_by_one(move: Move) -> None:
    move.source.publish(*map(str, range(1_000)))
    assert move.forwarder().step() == 1_000


def test_both_brokers_on_disk(tmp_path: Path) -> None:
    with PubSub(tmp_path / "a") as source, PubSub(tmp_path / "b") as target:
        orders, moved = source.topic("orders").create().result(), target.topic("orders").create().result()
        mover = forwarding_subscription(orders, "mover").result()
        reader = moved.subscription("reader").create(enable_message_ordering=True).result()
        with Forwarder(mover, moved) as forwarder:
            orders.publish_many([Message(b"%d" % number, ordering_key="k") for number in range(50)]).result()
            forwarder.drained().result(20)
        assert target.subscription("mover-receipts").metrics().result().backlog_messages == 0
        for number in range(50):
            [message] = reader.pull().result()
            assert message.data == b"%d" % number
            message.ack().result()


def test_it_can_be_chained(move: Move) -> None:
    further = Side(move.clock)
    second = forwarding_subscription(move.target.topic, "second").result()
    last = further.topic.subscription("last").create(enable_message_ordering=True).result()
    move.source.publish("placed")
    run(move.forwarder())
    run(Forwarder(second, further.topic))
    [message] = last.pull().result()
    assert message.data == b"placed"
    further.pubsub.close().result()


def test_what_others_forward_to_the_same_topic_is_not_among_its_receipts(move: Move) -> None:
    forwarder = run(move.forwarder())
    payments = move.source.pubsub.topic("payments").create().result()
    other = Forwarder(forwarding_subscription(payments, "other").result(), move.target.topic)
    payments.publish_message(b"paid", ordering_key="order-7").result()
    run(other)
    receipts = move.target.pubsub.subscription("mover-receipts")
    assert receipts.metrics().result().backlog_messages == 0
    move.source.publish("shipped")
    run(forwarder)
    assert move.read() == ["paid", "shipped"]


def test_receipts_of_another_forwarder_are_refused_as_they_would_not_tell_what_was_stored(move: Move) -> None:
    run(move.forwarder())
    with PubSub(MessageQueue(clock=move.clock)) as second:
        payments = second.topic("payments").create().result()
        mover = forwarding_subscription(payments, "mover").result()
        with pytest.raises(FailedPrecondition, match=r"'mover-receipts' has what .* another topic: .* a name"):
            Forwarder(mover, move.target.topic).open()
        elsewhere = move.target.pubsub.topic("elsewhere").create().result()
        orders = second.topic("orders").create().result()
        same_topic = forwarding_subscription(orders, "other").result()
        with pytest.raises(FailedPrecondition, match=r"'mover-receipts' is at topic 'orders': .* a name"):
            Forwarder(same_topic, elsewhere, name="mover").step()
        payments.publish_message(b"paid", ordering_key="order-7").result()
        publish_and_die(Forwarder(mover, move.target.topic, name="payments"))
        mover.seek(time=0).result()
        assert run(Forwarder(mover, move.target.topic, name="payments")).progress().repeated == 1
    assert move.read() == ["paid"]


def test_receipts_of_a_topic_that_was_deleted_are_refused(move: Move) -> None:
    run(move.forwarder())
    move.target.topic.delete().result()
    move.target.topic.create().result()
    with pytest.raises(FailedPrecondition, match="'mover-receipts' is detached"):
        move.forwarder().open()


def test_a_topic_may_have_a_long_name(move: Move) -> None:
    topic = move.source.pubsub.topic("o" * 255).create().result()
    topic_of_another = move.source.pubsub.topic("p" * 255).create().result()
    forwarders = [
        Forwarder(forwarding_subscription(one, name).result(), move.target.topic)
        for one, name in ((topic, "long"), (topic_of_another, "other"))
    ]
    for one in (topic, topic_of_another):
        one.publish_message(b"placed", ordering_key="order-7").result()
    publish_and_die(forwarders[0])
    move.source.pubsub.subscription("long").seek(time=0).result()
    again = Forwarder(move.source.pubsub.subscription("long"), move.target.topic)
    run(again)
    run(forwarders[1])
    assert again.progress().repeated == 1
    assert move.read() == ["placed", "placed"]
    assert move.target.pubsub.subscription("long-receipts").metrics().result().backlog_messages == 0


# -- resume ----------------------------------------------------------------------------------------


def publish_and_die(forwarder: Forwarder) -> None:
    """A step without its end: the target has answered, and nothing is acked."""
    forwarder._start()
    forwarder._fetch()
    assert forwarder._outlet.advance(forwarder._at_hand)


def test_what_the_target_has_is_not_sent_again(move: Move) -> None:
    """ordering-in-event-driven-systems Message broker migration: it goes on after a crash."""
    move.source.publish("placed", "paid")
    publish_and_die(move.forwarder())
    move.mover.seek(time=0).result()  # its leases are over
    move.source.publish("shipped")
    progress = run(move.forwarder()).progress()
    assert (progress.forwarded, progress.repeated, progress.lag) == (1, 2, 0)
    assert move.read() == ["placed", "paid", "shipped"]


def test_what_the_target_has_is_not_sent_again_however_much_it_retains(
    move: Move, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "MAX_HELD", 3)
    target = move.target.pubsub.topic("retaining").create(message_retention_duration=3600).result()
    reader = target.subscription("all").create().result()
    for text in ("1", "2", "3", "4"):
        move.source.publish(text)
        run(Forwarder(move.mover, target))
    move.source.publish("5")
    publish_and_die(Forwarder(move.mover, target))
    move.mover.seek(position=4).result()  # its leases are over
    run(Forwarder(move.mover, target))
    assert [message.data for message in reader.pull(10).result()] == [b"1", b"2", b"3", b"4", b"5"]


def test_without_receipts_it_is_sent_again_with_the_same_origin(move: Move) -> None:
    move.source.publish("placed")
    publish_and_die(move.forwarder(deduplicate=False))
    move.mover.seek(time=0).result()
    run(move.forwarder(deduplicate=False))
    first, second = move.reader.pull(10).result()
    assert origin_of(first) == origin_of(second)


def test_a_consumer_at_the_target_drops_repetitions_also_across_the_switch(move: Move, tmp_path: Path) -> None:
    topic, store, applied = move.target.topic, SqliteStore(tmp_path / "db"), []
    for position in (0, 1, 0, 1, 2):
        origin = {"inorder_source_topic": "orders", "inorder_source_id": f"a-{position}"}
        topic.publish_message(b"%d" % position, {**origin, "inorder_source_position": str(position)}, "k").result()
    for text in (b"direct", b"direct"):  # two messages, and no repetition
        topic.publish_message(text, None, "k").result()

    def apply(event: Applied, _: object) -> None:
        applied.append(event.data)

    pattern = VersionGate(mode="latest_only")
    with Consumer(move.reader, pattern, store=store, read=read_forwarded, apply=apply):
        while move.reader.metrics().result().backlog_messages:
            sleep(0.001)
    assert applied == [b"0", b"1", b"2", b"direct", b"direct"]
    store.close()


def test_messages_without_a_key_are_entities_of_their_own() -> None:
    forwarded = Message(b"", {"inorder_source_topic": "t", "inorder_source_id": "x-4", "inorder_source_position": "4"})
    assert read_forwarded(forwarded) == ("x-4", 5)


@pytest.mark.parametrize("position", ["", "-1", "x"])
def test_a_message_with_other_attributes_of_that_name_has_no_origin(position: str) -> None:
    attributes = {"inorder_source_topic": "t", "inorder_source_id": "x", "inorder_source_position": position}
    assert origin_of(Message(b"", attributes)) is None


# -- a target that is away -------------------------------------------------------------------------


def test_a_target_without_room_is_tried_again_with_backoff_and_order_stays() -> None:
    move = Move(queue_limits=QueueLimits(max_messages=2, when_full="error"))
    forwarder = move.forwarder(batch=2, retry=RetryPolicy(1, 8))
    move.source.publish("placed", "paid", "packed", "shipped")
    assert [forwarder.step(), forwarder.step()] == [2, 0]
    progress = forwarder.progress()
    assert (progress.state, progress.lag) == ("retrying", 2)
    assert isinstance(progress.error, ResourceExhausted)
    assert move.read() == ["placed", "paid"]
    assert forwarder.step() == 0, "it has not waited for its backoff"
    move.clock.advance(1)
    assert forwarder.step() == 2
    assert (forwarder.state, forwarder.progress().error) == ("copying", None)
    assert move.read() == ["packed", "shipped"]


def test_leases_are_kept_however_long_the_target_is_away() -> None:
    move = Move(queue_limits=QueueLimits(max_messages=1, when_full="error"))
    forwarder = move.forwarder(batch=1, retry=RetryPolicy(1, 60))
    move.source.publish("placed", "paid")
    forwarder.step()
    for _ in range(20):
        move.clock.advance(9)
        forwarder.step()
    assert move.mover.metrics().result().counters.expired == 0
    move.read()
    move.clock.advance(60)
    assert forwarder.step() == 1
    assert move.read() == ["paid"]


def test_a_target_that_blocks_is_waited_for() -> None:
    move = Move(queue_limits=QueueLimits(max_messages=2, when_full="block"))
    forwarder = move.forwarder(batch=2)
    move.source.publish("placed", "paid", "shipped", "refunded")
    assert [forwarder.step(), forwarder.step(), forwarder.step()] == [2, 0, 0]
    assert move.lag() == 2
    assert move.read() == ["placed", "paid", "shipped", "refunded"]
    assert (forwarder.step(), move.lag()) == (2, 0)


def test_closing_does_not_wait_for_a_target_that_blocks() -> None:
    move = Move(queue_limits=QueueLimits(max_messages=1, when_full="block"))
    forwarder = move.forwarder(batch=1).open()
    move.source.publish("placed", "paid")
    while forwarder.progress().forwarded < 1:
        pass
    forwarder.close()
    [message] = move.mover.pull(10).result()
    assert (message.data, message.delivery_attempt) == (b"paid", 1)


def test_a_lease_that_was_lost_is_not_forwarded_by_who_lost_it() -> None:
    move = Move(queue_limits=QueueLimits(max_messages=1, when_full="error"))
    forwarder = move.forwarder(batch=10, retry=RetryPolicy(1, 1))
    move.source.publish("placed", "paid")
    assert forwarder.step() == 0
    move.mover.seek(time=0).result()
    [*others] = move.mover.pull(10).result()
    move.clock.advance(1)
    move.clock.advance(8)
    forwarder.step()
    assert move.read() == []
    assert [message.data for message in others] == [b"placed", b"paid"]


# -- what is refused for good ----------------------------------------------------------------------


def with_one_that_is_refused(move: Move) -> None:
    move.source.publish(*(f"before {number}" for number in range(5)))
    move.source.topic.publish_message(b"refused", TOO_MANY, "order-7").result()
    move.source.publish(*(f"after {number}" for number in range(5)))


def test_it_stops_at_a_message_that_is_refused_and_that_stays_where_it_is(move: Move) -> None:
    with_one_that_is_refused(move)
    reports: list[Refused] = []
    forwarder = move.forwarder(report=reports.append)
    with pytest.raises(InvalidArgument, match="101 attributes exceed the maximum of 100"):
        run(forwarder)
    assert move.read() == [f"before {number}" for number in range(5)]
    assert (forwarder.state, move.lag()) == ("stopped", 6)
    assert [(report.message.data, report.fate) for report in reports] == [(b"refused", "stopped")]
    with pytest.raises(FailedPrecondition, match="is stopped; make another one"):
        forwarder.step()
    with pytest.raises(InvalidArgument):
        forwarder.drained().result(0)
    run_on = move.forwarder(on_refused="skip")
    run(run_on)
    assert move.read() == [f"after {number}" for number in range(5)]


def test_it_skips_a_message_that_is_refused_and_says_so(move: Move) -> None:
    with_one_that_is_refused(move)
    reports: list[Refused] = []
    progress = run(move.forwarder(on_refused="skip", report=reports.append)).progress()
    assert (progress.forwarded, progress.refused, progress.lag) == (10, 1, 0)
    assert [(report.message.data, report.fate) for report in reports] == [(b"refused", "skipped")]
    assert len(move.read()) == 10


def test_a_message_that_is_refused_goes_to_a_topic_for_dead_letters_as_it_was(move: Move) -> None:
    with_one_that_is_refused(move)
    dead = move.source.pubsub.topic("dead").create().result()
    letters = dead.subscription("letters").create().result()
    reports: list[Refused] = []
    progress = run(move.forwarder(on_refused=dead, report=reports.append)).progress()
    assert (progress.forwarded, progress.refused, progress.lag) == (10, 1, 0)
    [letter] = letters.pull(10).result()
    assert (letter.data, letter.attributes, letter.ordering_key) == (b"refused", TOO_MANY, "order-7")
    assert [report.fate for report in reports] == ["dead_lettered"]


def test_it_stops_if_the_dead_letters_are_refused_too(move: Move) -> None:
    with_one_that_is_refused(move)
    with pytest.raises(TopicNotFound):
        run(move.forwarder(on_refused=move.source.pubsub.topic("nowhere")))
    assert move.lag() == 6


def test_a_target_that_refuses_all_keys_stops_it(move: Move) -> None:
    move.target.topic.set_publish_options(message_ordering=False)
    move.source.publish("placed")
    with pytest.raises(OrderingNotEnabled):
        run(move.forwarder(on_refused="skip"))
    assert move.lag() == 1


def test_a_thread_that_stops_says_why(move: Move) -> None:
    with_one_that_is_refused(move)
    forwarder = move.forwarder().open()
    with pytest.raises(InvalidArgument, match="101 attributes"):
        forwarder.drained().result(20)
    forwarder.close()
    assert forwarder.progress().state == "stopped"


def test_what_the_source_cannot_deliver_is_counted(move: Move) -> None:
    move.mover.set_options(message_retention_duration=60).result()
    move.source.publish("placed", "paid")
    move.clock.advance(61)
    move.source.publish("shipped")
    assert run(move.forwarder()).progress().missing == 2
    assert move.read() == ["shipped"]


def test_a_circle_is_refused(move: Move) -> None:
    move.source.publish("placed")
    with pytest.raises(FailedPrecondition, match="the target of this forwarder is its source"):
        run(Forwarder(move.mover, move.source.topic))


# -- dry run ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_a_thread", [True, False])
def test_a_dry_run_says_what_would_be_refused_and_changes_nothing(move: Move, in_a_thread: bool) -> None:
    with_one_that_is_refused(move)
    reports: list[Refused] = []
    forwarder = move.forwarder(dry_run=True, report=reports.append)
    if in_a_thread:
        forwarder.open()._thread.join(20)  # type: ignore[union-attr]
    else:
        assert forwarder.step() == 11
    progress = forwarder.progress()
    forwarder.close()
    assert (progress.forwarded, progress.refused, progress.lag, progress.keys) == (10, 1, 11, 1)
    assert [(report.message.data, report.fate) for report in reports] == [(b"refused", "found")]
    assert (move.read(), move.lag()) == ([], 11)
    assert [subscription.name for subscription in move.target.topic.subscriptions().result()] == ["reader"]
    assert {message.delivery_attempt for message in move.mover.pull(100).result()} == {1}


def test_a_dry_run_without_messages_ends(move: Move) -> None:
    forwarder = move.forwarder(dry_run=True)
    assert (forwarder.step(), forwarder.progress().forwarded) == (0, 0)


# -- progress and barriers -------------------------------------------------------------------------


def test_progress_says_how_far_it_is(move: Move) -> None:
    move.source.publish("placed", "paid", key="order-1")
    move.source.publish("placed", "paid", key="order-2")
    forwarder = move.forwarder(batch=3)
    forwarder.step()
    move.clock.advance(2)
    assert forwarder.progress() == Progress("copying", 3, 0, 0, 0, 1, 2, 1.5, None)


def test_progress_is_told_now_and_then_and_at_the_end(move: Move) -> None:
    move.source.publish(*map(str, range(10)))
    told: list[Progress] = []
    forwarder = move.forwarder(batch=2, on_progress=told.append, progress_seconds=10)
    for _ in range(5):
        forwarder.step()
        move.clock.advance(6)
    forwarder.close()
    assert [(progress.state, progress.forwarded) for progress in told] == [
        *(("copying", forwarded) for forwarded in (2, 6, 10)),
        ("closed", 10),
    ]


def test_whoever_is_told_may_fail(move: Move) -> None:
    def fail(_: Progress) -> None:
        raise RuntimeError("not my day")

    move.source.publish("placed")
    assert run(move.forwarder(on_progress=fail)).progress().forwarded == 1


def test_it_is_drained_when_the_source_has_nothing_left(move: Move) -> None:
    move.source.publish("placed", "paid")
    forwarder = move.forwarder(batch=1)
    drained = forwarder.drained()
    assert forwarder.state == "draining"
    forwarder.step()
    assert not drained.done()
    forwarder.step()
    assert drained.done()
    assert forwarder.state == "drained"
    move.source.publish("shipped")
    forwarder.step()
    assert forwarder.state == "copying"
    again = forwarder.drained()
    forwarder.step()
    assert again.done()


def test_who_waits_for_a_drain_is_told_when_it_closes(move: Move) -> None:
    forwarder = move.forwarder()
    drained, passed = forwarder.drained(), forwarder.passed("token")
    forwarder.close()
    for waiting in (drained, passed):
        with pytest.raises(Aborted, match="closed before it was drained"):
            waiting.result(0)
    with pytest.raises(FailedPrecondition, match="is closed"):
        forwarder.drained().result(0)


def test_a_barrier_is_passed_behind_what_was_published_before_and_is_not_forwarded(move: Move) -> None:
    forwarder = move.forwarder(batch=1)
    passed = forwarder.passed("token")
    move.source.publish("placed")
    move.source.topic.publish_message(b"", {"inorder_barrier": "token"}, "order-7").result()
    forwarder.step()
    assert (forwarder.state, passed.done()) == ("draining", False)
    forwarder.step()
    assert (forwarder.state, passed.done()) == ("copying", True)
    assert move.read() == ["placed"]


# -- misuse ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"batch": 0}, "batch: a whole number of at least 1, not 0"),
        ({"batch": 1_001}, "batch: at most 1000, as many as one publish request has, not 1001"),
        ({"on_refused": "ignore"}, "on_refused: 'stop', 'skip' or the Topic for dead letters, not 'ignore'"),
        ({"deduplicate": 1}, "deduplicate: True or False, not 1"),
        ({"dry_run": "yes"}, "dry_run: True or False, not 'yes'"),
        ({"progress_seconds": -1}, "progress_seconds: at least 0, up to 3600, not -1"),
    ],
)
def test_an_option_that_is_wrong_is_named(move: Move, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        move.forwarder(**options)
    assert str(refusal.value) == problem


def test_a_subscription_that_would_reorder_or_drop_is_refused(move: Move) -> None:
    free = move.source.topic.subscription("free").create().result()
    with pytest.raises(InvalidArgument, match="'free' does not keep keys in order"):
        Forwarder(free, move.target.topic)
    leaky = forwarding_subscription(move.source.topic, "leaky", queue_limits=QueueLimits()).result()
    with pytest.raises(InvalidArgument, match="'leaky' drops messages when it is full"):
        Forwarder(leaky, move.target.topic)


def test_a_topic_or_subscription_that_is_not_there_is_named(move: Move) -> None:
    with pytest.raises(TopicNotFound):
        Forwarder(move.mover, move.target.pubsub.topic("nowhere"))
    with pytest.raises(SubscriptionNotFound):
        Forwarder(move.source.pubsub.subscription("nobody"), move.target.topic)


def test_it_is_opened_once(move: Move) -> None:
    with move.forwarder() as forwarder:
        with pytest.raises(FailedPrecondition, match="is open already"):
            forwarder.open()
        with forwarder as same:
            assert same is forwarder
    forwarder.close()


def test_a_source_that_is_deleted_stops_it(move: Move) -> None:
    forwarder = move.forwarder().open()
    move.mover.delete().result()
    thread = forwarder._thread
    assert thread is not None
    thread.join(20)
    assert forwarder.state == "stopped"


def test_many_publishers_and_a_forwarder_in_threads(move: Move) -> None:
    def publish(key: str) -> None:
        for number in range(200):
            move.source.topic.publish_message(b"%d" % number, ordering_key=key).result()

    with move.forwarder(batch=50) as forwarder:
        threads = [threading.Thread(target=publish, args=(f"order-{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        forwarder.drained().result(20)
    seen: dict[str | None, list[int]] = {}
    for message in move.reader.pull(1_000).result():
        seen.setdefault(message.ordering_key, []).append(int(message.data))
    assert seen == {f"order-{number}": [*range(200)] for number in range(4)}


def test_handles_of_topics_may_differ(move: Move) -> None:
    again: Topic = PubSub(MessageQueue(clock=move.clock)).topic("orders").create().result()
    assert Forwarder(move.mover, again).name == "mover"

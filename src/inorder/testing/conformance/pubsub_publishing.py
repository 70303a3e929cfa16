"""Publishing: what is collected and when it is sent, what waits for room, and what becomes of a key that fails."""

from __future__ import annotations

import asyncio
import json
import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from inorder.client.topic import Topic
from inorder.errors import (
    FailedPrecondition,
    InvalidArgument,
    InvalidOrderingKey,
    KeyPaused,
    OrderingNotEnabled,
    QueueFull,
    ResourceExhausted,
    TopicNotFound,
)
from inorder.message import Columns, Message
from inorder.options import Batching, FlowControl, PublishOptions
from inorder.pending import Pending
from inorder.testing.conformance.pubsub_case import PATIENCE_SECONDS, PubSubCase, Wait, result, text, texts

LONG = 60_000  # milliseconds: nothing is sent because of its age


class Publishing(PubSubCase):
    def test_a_message_arrives_as_it_was_published(self, wait: Wait) -> None:
        self.subscribe()
        topic = self.pubsub.topic("orders")
        message_id = wait(topic.publish_message(b"\0data", {"kind": "test", "ключ": "значение"}, "k"))
        [message] = self.pull()
        assert (message.id, message.data, message.length) == (message_id, b"\0data", 5)
        assert (dict(message.attributes), message.ordering_key) == ({"kind": "test", "ключ": "значение"}, "k")
        assert (message.delivery_attempt, message.position) == (1, 0)
        assert message.ack_id
        assert isinstance(message.publish_time, datetime)
        assert message.publish_time.tzinfo is UTC

    def test_a_message_may_be_empty(self, wait: Wait) -> None:
        self.subscribe()
        wait(self.pubsub.topic("orders").publish_message())
        [message] = self.pull()
        assert (message.data, dict(message.attributes), message.ordering_key) == (b"", {}, None)

    def test_an_object_is_published_as_json(self, wait: Wait) -> None:
        self.subscribe()
        value = {"type": "login", "user": "Zoë", "tags": [1, 2.5, None, True]}
        wait(self.pubsub.topic("orders").publish_json(value, attributes={"a": "b"}, ordering_key="k"))
        [message] = self.pull()
        assert json.loads(message.data) == value
        assert (dict(message.attributes), message.ordering_key) == ({"a": "b"}, "k")

    @pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), b"bytes", {"deep": [object()]}, "too deep"])
    def test_what_is_no_json_is_refused(self, wait: Wait, value: object) -> None:
        self.subscribe()
        if value == "too deep":
            for _ in range(100_000):
                value = [value]
        with pytest.raises(InvalidArgument, match="JSON"):
            wait(self.pubsub.topic("orders").publish_json(value, ordering_key="k"))
        assert self.pubsub.topic("orders").paused_keys() == []
        assert self.backlog() == 0

    def test_many_messages_are_published_in_their_order(self, wait: Wait) -> None:
        self.subscribe()
        messages = [Message(b"%d" % number, ordering_key=f"key-{number % 3}") for number in range(10)]
        ids = wait(self.pubsub.topic("orders").publish_many(messages))
        pulled = self.pull()
        assert [message.id for message in pulled] == ids
        assert texts(pulled) == [f"{number}" for number in range(10)]

    def test_more_messages_than_fit_into_one_request_keep_their_order(self) -> None:
        self.subscribe_ordered(max_outstanding_per_key=100)
        messages = [Message(b"%d" % number, ordering_key="k") for number in range(2_500)]
        ids = result(self.pubsub.topic("orders").publish_many(iter(messages)))
        assert len(set(ids)) == 2_500
        consumed = self.consume(2_500)
        assert [int(message.data) for message in consumed] == list(range(2_500))
        assert [message.id for message in consumed] == ids

    def test_columns_are_published_as_messages_are(self, wait: Wait) -> None:
        self.subscribe()
        columns = Columns(["a", None, "b"], [b"1", b"2", b"3"], [None, {"lang": "de"}, {}])
        ids = wait(self.pubsub.topic("orders").publish_many(columns))
        pulled = self.pull()
        assert [message.id for message in pulled] == ids
        assert [(text(m), dict(m.attributes), m.ordering_key) for m in pulled] == [
            ("1", {}, "a"),
            ("2", {"lang": "de"}, None),
            ("3", {}, "b"),
        ]

    def test_no_messages_are_published_at_once(self, wait: Wait) -> None:
        assert wait(self.topic().publish_many([])) == []

    def test_one_bad_message_refuses_them_all(self, wait: Wait) -> None:
        self.subscribe()
        bad: list[Any] = [Message(b"x", ordering_key=""), Message(b"x", {"goog-x": "y"}), Message("x"), b"x"]  # type: ignore[arg-type]
        for one in bad:
            with pytest.raises(InvalidArgument):
                wait(self.pubsub.topic("orders").publish_many([Message(b"fine", ordering_key="k"), one]))
        assert self.backlog() == 0
        assert self.pubsub.topic("orders").paused_keys() == []

    def test_delivered_messages_can_be_published_on(self) -> None:
        self.subscribe()
        self.subscribe("next", "next-orders")
        topic = self.pubsub.topic("orders")
        result(topic.publish_many([Message(b"keyed", {"a": "b"}, "k"), Message(b"free")]))
        result(self.pubsub.topic("next-orders").publish_many(self.pull()))
        forwarded = [(text(m), dict(m.attributes), m.ordering_key) for m in self.pull("next")]
        assert forwarded == [("keyed", {"a": "b"}, "k"), ("free", {}, None)]

    def test_what_is_published_in_different_ways_keeps_its_order(self) -> None:
        self.subscribe_ordered()
        topic = self.pubsub.topic("orders")
        topic.set_publish_options(batching=Batching(max_messages=3, max_milliseconds=LONG))
        topic.publish_message(b"0", ordering_key="k")
        topic.publish_many([Message(b"1", ordering_key="k"), Message(b"2", ordering_key="k")])
        topic.publish_json(3, ordering_key="k")
        topic.publish_message(b"4", ordering_key="k")
        topic.publish_many(Message(b"%d" % number, ordering_key="k") for number in range(5, 10))
        topic.publish_message(b"10", ordering_key="k")
        result(topic.flush())
        assert texts(self.consume(11)) == [f"{number}" for number in range(11)]

    def test_handles_of_one_topic_are_one_publisher(self) -> None:
        self.subscribe_ordered()
        one, other = self.pubsub.topic("orders"), self.pubsub.topic("orders")
        one.set_publish_options(batching=Batching(max_messages=4, max_milliseconds=LONG))
        for number in range(4):
            (one, other)[number % 2].publish_message(b"%d" % number, ordering_key="k")
        assert texts(self.consume(4)) == ["0", "1", "2", "3"]

    def test_threads_publish_to_different_keys_side_by_side(self) -> None:
        self.subscribe_ordered()
        topic = self.pubsub.topic("orders")
        topic.set_publish_options(batching=Batching(max_messages=7, max_milliseconds=1))

        def publish(key: str) -> None:
            for number in range(50):
                topic.publish_message(f"{key}{number}".encode(), ordering_key=key)

        for thread in [self.in_background(lambda key=key: publish(key)) for key in "abcd"]:  # type: ignore[misc]
            thread.result(PATIENCE_SECONDS)
        result(topic.flush())
        consumed = texts(self.consume(200))
        for key in "abcd":
            assert [name for name in consumed if name[0] == key] == [f"{key}{number}" for number in range(50)]

    def test_a_topic_that_does_not_exist_takes_nothing(self, wait: Wait) -> None:
        topic = self.pubsub.topic("nowhere")
        with pytest.raises(TopicNotFound, match="Topic not found: nowhere") as refused:
            wait(topic.publish_message(b"x"))
        assert refused.value.code == 5
        with pytest.raises(TopicNotFound):
            wait(topic.publish_many([Message(b"x")]))
        wait(topic.create())
        assert wait(topic.publish_message(b"x"))

    def test_keys_are_refused_where_ordering_is_off(self, wait: Wait) -> None:
        """message-ordering AC-009: the error of the specification, for who asks for it."""
        self.subscribe()
        topic = self.pubsub.topic("orders")
        topic.set_publish_options(message_ordering=False)
        words = "^Message ordering must be enabled on topic to use ordering keys$"
        with pytest.raises(OrderingNotEnabled, match=words) as refused:
            wait(topic.publish_message(b"x", ordering_key="k"))
        assert refused.value.code == 3
        with pytest.raises(OrderingNotEnabled, match=words):
            wait(topic.publish_many([Message(b"x"), Message(b"x", ordering_key="k")]))
        assert topic.paused_keys() == []
        wait(topic.publish_message(b"free"))
        topic.set_publish_options(message_ordering=True)
        wait(topic.publish_message(b"keyed", ordering_key="k"))
        assert texts(self.pull()) == ["free", "keyed"]


class BatchesOfAPublisher(PubSubCase):
    def collecting_topic(self, **limits: Any) -> Topic:
        """A topic that collects messages up to these limits, with a subscription."""
        self.subscribe()
        topic = self.pubsub.topic("orders")
        topic.set_publish_options(batching={"max_milliseconds": LONG, **limits})
        return topic

    def test_a_batch_is_sent_when_it_has_enough_messages(self) -> None:
        topic = self.collecting_topic(max_messages=3)
        pendings = [topic.publish_message(b"x") for _ in range(2)]
        self.assert_never(lambda: any(pending.done() for pending in pendings) or self.backlog())
        pendings.append(topic.publish_message(b"x"))
        assert len({result(pending) for pending in pendings}) == 3
        assert self.backlog() == 3

    def test_a_batch_is_sent_when_it_has_enough_bytes(self) -> None:
        topic = self.collecting_topic(max_bytes=100)
        topic.publish_message(bytes(60))
        assert self.backlog() == 0
        topic.publish_message(bytes(40))
        self.wait_until(lambda: self.backlog() == 2)

    def test_a_message_that_does_not_fit_begins_the_next_batch(self) -> None:
        topic = self.collecting_topic(max_bytes=100)
        topic.publish_message(b"a" * 60)
        second = topic.publish_message(b"b" * 60)
        self.wait_until(lambda: self.backlog() == 1)
        assert not second.done()
        result(topic.flush())
        assert [message.data[:1] for message in self.pull()] == [b"a", b"b"]

    def test_a_message_larger_than_a_batch_is_sent_alone(self) -> None:
        topic = self.collecting_topic(max_bytes=100)
        result(topic.publish_message(bytes(1000)))
        assert self.backlog() == 1

    def test_a_batch_is_sent_when_it_is_old_enough(self) -> None:
        topic = self.collecting_topic(max_milliseconds=20)
        first, second = topic.publish_message(b"1"), topic.publish_message(b"2")
        assert not first.done()
        self.wait_until(lambda: first.done() and second.done())
        assert texts(self.pull()) == ["1", "2"]

    def test_each_key_has_limits_of_its_own(self) -> None:
        topic = self.collecting_topic(max_messages=2)
        pendings = [topic.publish_message(key.encode(), ordering_key=key) for key in "abcd"]
        free = topic.publish_message(b"free")
        self.assert_never(lambda: self.backlog())
        topic.publish_message(b"c2", ordering_key="c")
        result(pendings[2])
        assert self.backlog() == 2
        result(topic.flush())
        assert all(pending.done() for pending in [*pendings, free])

    def test_without_a_time_nothing_is_collected(self) -> None:
        self.subscribe()
        topic = self.pubsub.topic("orders")
        topic.set_publish_options(batching=Batching(max_messages=100))
        result(topic.publish_message(b"x", ordering_key="k"))
        assert self.backlog() == 1

    def test_a_flush_sends_what_is_collected(self, wait: Wait) -> None:
        topic = self.collecting_topic()
        pendings = [topic.publish_message(b"x", ordering_key=key) for key in "aabbc"]
        pendings.append(topic.publish_message(b"x"))
        assert wait(topic.flush()) is None
        assert all(pending.done() for pending in pendings)
        assert self.backlog() == 6

    def test_a_flush_with_nothing_to_send_is_done(self, wait: Wait) -> None:
        topic = self.collecting_topic()
        assert wait(topic.flush()) is None
        topic.publish_message(b"x")
        wait(topic.flush())
        assert wait(topic.flush()) is None

    def test_a_flush_is_done_even_if_what_it_sends_fails(self, wait: Wait) -> None:
        topic = self.collecting_topic()
        failing = topic.publish_message(b"x", ordering_key="k")
        wait(topic.delete())
        assert wait(topic.flush()) is None
        assert isinstance(failing.exception(), TopicNotFound)

    def test_a_flush_waits_for_what_was_published_before_and_for_no_more(self) -> None:
        self.subscribe(queue_limits={"max_messages": 1, "when_full": "block"})
        topic = self.pubsub.topic("orders")
        result(topic.publish_message(b"0"))
        first = topic.publish_many([Message(b"1")])
        flushed = topic.flush()
        second = topic.publish_message(b"2")
        self.assert_never(lambda: first.done() or flushed.done() or second.done())
        self.consume(1)
        result(flushed)
        assert first.done()
        assert not second.done()
        self.consume(2)
        result(second)

    def test_new_limits_hold_at_once(self) -> None:
        topic = self.collecting_topic()
        first = topic.publish_message(b"1", ordering_key="k")
        topic.set_publish_options(batching=Batching(max_milliseconds=1))
        second = topic.publish_message(b"2", ordering_key="k")
        self.wait_until(lambda: first.done() and second.done())
        assert texts(self.pull()) == ["1", "2"]

    def test_options_are_changed_one_by_one(self) -> None:
        topic = self.collecting_topic()
        topic.set_publish_options(message_ordering=True)
        pending = topic.publish_message(b"1", ordering_key="k")
        assert not pending.done()
        result(topic.flush())

    @pytest.mark.parametrize(
        "options",
        [{"baching": Batching()}, {"batching": {"max_mesages": 1}}, {"batching": 7}, {"message_ordering": 1}],
    )
    def test_wrong_options_are_refused_and_change_nothing(self, options: dict[str, Any]) -> None:
        topic = self.collecting_topic()
        with pytest.raises(InvalidArgument):
            topic.set_publish_options(**options)
        assert not topic.publish_message(b"x").done()

    def test_options_may_be_mappings_or_objects(self) -> None:
        topic = self.topic()
        topic.set_publish_options(batching={"max_messages": 5}, flow_control=FlowControl(max_messages=7))
        topic.set_publish_options(batching=PublishOptions().batching)


class PublisherFlowControl(PubSubCase):
    """What is under way stays under way while the only subscription is full and says "block"."""

    def full_topic(self, **flow_control: int) -> Topic:
        self.subscribe(queue_limits={"max_messages": 1, "when_full": "block"})
        topic = self.pubsub.topic("orders")
        topic.set_publish_options(flow_control=flow_control)
        result(topic.publish_message(b"0"))
        return topic

    def test_a_thread_waits_for_room(self) -> None:
        topic = self.full_topic(max_messages=2)
        published: list[Pending[str]] = []

        def publish() -> None:
            published.extend(topic.publish_message(b"%d" % number) for number in range(1, 6))

        publisher = self.in_background(publish)
        self.wait_until(lambda: len(published) == 2)
        self.assert_never(lambda: len(published) > 2)
        self.consume(1)
        self.wait_until(lambda: len(published) == 3)
        assert texts(self.consume(5)) == ["1", "2", "3", "4", "5"]
        publisher.result(PATIENCE_SECONDS)
        assert len({result(pending) for pending in published}) == 5

    def test_a_thread_that_publishes_many_waits_for_room(self) -> None:
        topic = self.full_topic(max_messages=2)
        publisher = self.in_background(lambda: topic.publish_many(Message(b"%d" % number) for number in range(1, 6)))
        self.assert_never(publisher.done)
        assert texts(self.consume(6)) == ["0", "1", "2", "3", "4", "5"]
        assert len(result(publisher.result(PATIENCE_SECONDS))) == 5

    def test_bytes_are_limited_too(self) -> None:
        topic = self.full_topic(max_bytes=100)
        assert not topic.publish_message(bytes(60)).done()
        publisher = self.in_background(lambda: topic.publish_message(bytes(60)))
        self.assert_never(publisher.done)
        self.consume(1)
        publisher.result(PATIENCE_SECONDS)
        self.consume(2)

    def test_one_message_larger_than_the_limit_is_let_through_alone(self) -> None:
        topic = self.full_topic(max_bytes=100)
        assert not topic.publish_message(bytes(1000)).done()
        publisher = self.in_background(lambda: topic.publish_message(b"x"))
        self.assert_never(publisher.done)
        self.consume(3)
        publisher.result(PATIENCE_SECONDS)

    def test_a_task_waits_where_it_awaits(self) -> None:
        topic = self.full_topic(max_messages=2)

        async def publish() -> None:
            pendings = [topic.publish_message(b"%d" % number, ordering_key="k") for number in range(1, 6)]
            await asyncio.sleep(0.01)
            assert not any(pending.done() for pending in pendings)
            emptied = self.in_background(lambda: texts(self.consume(6)))
            for pending in pendings:
                await pending
            assert await asyncio.wrap_future(emptied) == ["0", "1", "2", "3", "4", "5"]

        asyncio.run(asyncio.wait_for(publish(), PATIENCE_SECONDS))

    def test_what_waited_for_room_is_not_collected_once_more(self) -> None:
        topic = self.full_topic(max_messages=1)
        topic.set_publish_options(batching=Batching(max_milliseconds=LONG))

        async def publish() -> list[Pending[str]]:
            return [topic.publish_message(b"%d" % number) for number in range(1, 4)]

        pendings = asyncio.run(publish())
        flushed = topic.flush()
        assert texts(self.consume(4)) == ["0", "1", "2", "3"]
        result(flushed)
        assert all(pending.done() for pending in pendings)

    def test_higher_limits_let_in_who_waits(self) -> None:
        topic = self.full_topic(max_messages=1)
        topic.publish_message(b"1")
        publisher = self.in_background(lambda: topic.publish_message(b"2"))
        self.assert_never(publisher.done)
        topic.set_publish_options(flow_control=FlowControl(max_messages=2))
        publisher.result(PATIENCE_SECONDS)
        assert texts(self.consume(3)) == ["0", "1", "2"]

    def test_thousands_may_wait_for_one_key(self) -> None:
        """They go one after the other, and none of them calls the next."""
        topic = self.full_topic(max_messages=1_000)

        async def publish() -> list[Pending[str]]:
            return [topic.publish_message(b"%d" % number, ordering_key="k") for number in range(1, 3_001)]

        pendings = asyncio.run(publish())
        result(self.pubsub.subscription("worker").set_options(queue_limits={"max_messages": 10_000}))
        assert [int(message.data) for message in self.consume(3_001)] == list(range(3_001))
        assert len({result(pending) for pending in pendings}) == 3_000


class KeysThatFail(PubSubCase):
    def test_a_key_is_paused_when_a_publish_of_it_fails(self, wait: Wait) -> None:
        topic = self.topic()
        wait(topic.delete())
        with pytest.raises(TopicNotFound):
            wait(topic.publish_message(b"a1", ordering_key="a"))
        wait(topic.create())
        wait(topic.subscription("worker").create())
        with pytest.raises(KeyPaused, match=r"ordering key 'a' is paused.*resume_publishing\('a'\)") as refused:
            wait(topic.publish_message(b"a2", ordering_key="a"))
        assert (refused.value.code, FailedPrecondition.code) == (9, 9)
        assert topic.paused_keys() == ["a"]
        wait(topic.publish_message(b"b1", ordering_key="b"))
        wait(topic.publish_message(b"free"))
        topic.resume_publishing("a")
        assert topic.paused_keys() == []
        wait(topic.publish_message(b"a3", ordering_key="a"))
        assert texts(self.pull()) == ["b1", "free", "a3"]

    def test_a_key_is_paused_when_a_full_subscription_refuses_it(self, wait: Wait) -> None:
        subscription = self.subscribe(queue_limits={"max_messages": 1, "when_full": "error"})
        topic = self.pubsub.topic("orders")
        wait(topic.publish_message(b"a1", ordering_key="a"))
        with pytest.raises(QueueFull, match="worker") as refused:
            wait(topic.publish_message(b"a2", ordering_key="a"))
        assert (refused.value.code, ResourceExhausted.code) == (8, 8)
        self.consume(1)
        with pytest.raises(KeyPaused):
            wait(topic.publish_message(b"a3", ordering_key="a"))
        wait(topic.publish_message(b"b1", ordering_key="b"))
        self.consume(1)
        topic.resume_publishing("a")
        wait(topic.publish_message(b"a2", ordering_key="a"))
        assert texts(wait(subscription.pull(10))) == ["a2"]

    def test_a_message_without_a_key_pauses_nothing(self, wait: Wait) -> None:
        topic = self.pubsub.topic("orders")
        for _ in range(2):
            with pytest.raises(TopicNotFound):
                wait(topic.publish_message(b"x"))
        assert topic.paused_keys() == []
        self.topic()
        wait(topic.publish_message(b"x"))

    def test_a_refused_message_pauses_nothing(self, wait: Wait) -> None:
        topic = self.topic()
        with pytest.raises(InvalidArgument):
            wait(topic.publish_message(b"x", {"": "bad"}, ordering_key="k"))
        assert topic.paused_keys() == []

    def test_all_keys_of_a_batch_that_fails_are_paused(self, wait: Wait) -> None:
        topic = self.pubsub.topic("orders")
        messages = [Message(b"1", ordering_key="b"), Message(b"2"), Message(b"3", ordering_key="a")]
        with pytest.raises(TopicNotFound):
            wait(topic.publish_many(messages))
        assert topic.paused_keys() == ["a", "b"]
        self.topic()
        with pytest.raises(KeyPaused):
            wait(topic.publish_many([Message(b"fine"), Message(b"4", ordering_key="a")]))
        wait(topic.publish_many([Message(b"5"), Message(b"6", ordering_key="c")]))

    def test_what_is_collected_behind_a_failure_fails_too(self) -> None:
        topic = self.topic()
        topic.set_publish_options(batching=Batching(max_messages=2, max_milliseconds=LONG))
        result(topic.delete())
        collected = [topic.publish_message(b"b1", ordering_key="b"), topic.publish_message(b"free")]
        failing = [topic.publish_message(data, ordering_key="a") for data in (b"a1", b"a2")]
        assert [type(pending.exception()) for pending in failing] == [TopicNotFound] * 2
        assert topic.paused_keys() == ["a"]
        result(topic.create())
        result(topic.flush())
        assert all(pending.exception() is None for pending in collected)

    def test_what_waits_behind_a_failure_fails_too(self) -> None:
        topic = self.blocked_topic()
        first = topic.publish_message(b"a1", ordering_key="a")
        behind = [topic.publish_message(data, ordering_key="a") for data in (b"a2", b"a3")]
        behind_many = topic.publish_many([Message(b"a4", ordering_key="a"), Message(b"a5", ordering_key="a")])
        self.assert_never(lambda: any(pending.done() for pending in [first, *behind]))
        result(topic.delete())
        assert isinstance(first.exception(PATIENCE_SECONDS), TopicNotFound)
        assert [type(pending.exception(PATIENCE_SECONDS)) for pending in behind] == [KeyPaused] * 2
        assert isinstance(behind_many.exception(PATIENCE_SECONDS), KeyPaused)
        assert topic.paused_keys() == ["a"]

    def test_what_waits_for_room_behind_a_failure_fails_too(self) -> None:
        topic = self.blocked_topic()
        topic.set_publish_options(flow_control=FlowControl(max_messages=1))
        first = topic.publish_message(b"a1", ordering_key="a")
        waiting = self.in_background(lambda: topic.publish_message(b"a2", ordering_key="a"))
        self.assert_never(waiting.done)
        result(topic.delete())
        result(topic.create())
        topic.resume_publishing("a")
        assert isinstance(first.exception(PATIENCE_SECONDS), TopicNotFound)
        assert isinstance(waiting.result(PATIENCE_SECONDS).exception(PATIENCE_SECONDS), KeyPaused)
        result(topic.publish_message(b"a3", ordering_key="a"))

    def test_a_key_waits_for_its_own_answers_only(self) -> None:
        """What is under way for one key keeps no other key from being collected and sent."""
        topic = self.blocked_topic()
        topic.publish_message(b"a1", ordering_key="a")
        topic.publish_message(b"a2", ordering_key="a")
        topic.publish_message(b"b1", ordering_key="b")
        assert sorted(texts(self.consume(4))) == ["0", "a1", "a2", "b1"]

    def test_resuming_a_key_that_is_not_paused_changes_nothing(self) -> None:
        topic = self.topic()
        topic.resume_publishing("never-used")
        assert topic.paused_keys() == []

    @pytest.mark.parametrize("key", [None, "", 5, "k" * 1_025])
    def test_what_is_no_key_cannot_be_resumed(self, key: Any) -> None:
        with pytest.raises(InvalidOrderingKey):
            self.topic().resume_publishing(key)

    def test_publishing_may_go_on_in_the_callback_of_an_answer(self) -> None:
        self.subscribe_ordered()
        topic = self.pubsub.topic("orders")
        topic.set_publish_options(batching=Batching(max_messages=2, max_milliseconds=LONG))
        answered = threading.Event()

        def publish_on(_: Pending[str]) -> None:
            topic.publish_message(b"3", ordering_key="k")
            topic.publish_message(b"4", ordering_key="k").add_done_callback(lambda _: answered.set())

        topic.publish_message(b"1", ordering_key="k").add_done_callback(publish_on)
        topic.publish_message(b"2", ordering_key="k")
        assert answered.wait(PATIENCE_SECONDS)
        assert texts(self.consume(4)) == ["1", "2", "3", "4"]

    def blocked_topic(self) -> Topic:
        """A topic to which publishing waits, until somebody consumes "0"."""
        self.subscribe(queue_limits={"max_messages": 1, "when_full": "block"})
        self.publish("0")
        return self.pubsub.topic("orders")

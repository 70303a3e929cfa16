"""Lists of messages with several of a key, acks in one go, and a loop that is poked before it begins."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from inorder import Message, PubSub
from inorder.broker import MessageQueue
from inorder.client.connection import Connection
from inorder.client.subscription import Subscription
from inorder.errors import FailedPrecondition, InvalidAckId, InvalidArgument, SubscriptionNotFound
from inorder.message import Gap, Source
from inorder.pending import Pending
from inorder.testing.clock import ManualClock
from inorder.transport.embedded import EmbeddedDeliveries, EmbeddedTransport


def three_of_each_key(pubsub: PubSub, window: int) -> None:
    topic = pubsub.topic("orders").create().result()
    topic.subscription("mover").create(enable_message_ordering=True, max_outstanding_per_key=window).result()
    topic.publish_many([Message(b"%d" % number, ordering_key=key) for number in range(3) for key in "ab"]).result()


def test_a_list_may_have_several_of_a_key_in_order() -> None:
    with PubSub("memory:") as pubsub:
        three_of_each_key(pubsub, window=2)
        batches = pubsub.subscription("mover").batches(100, one_per_key=False)
        lists = iter(batches)
        first = next(lists)
        assert sorted((message.ordering_key, message.data) for message in first) == [
            *(("a", b"0"), ("a", b"1")),
            *(("b", b"0"), ("b", b"1")),
        ]
        batches.ack(first).result(0)
        second = next(lists)
        assert {message.data for message in second} == {b"2"}


def test_acks_in_one_go_are_acks() -> None:
    with PubSub("memory:") as pubsub:
        three_of_each_key(pubsub, window=10)
        subscription = pubsub.subscription("mover")
        batches = subscription.batches(100, one_per_key=False)
        assert batches.ack([]).result(0) == []
        messages = next(iter(batches))
        batches.ack(messages).result(0)
        assert all(message.ack().exception() is None for message in messages)
        assert subscription.metrics().result().backlog_messages == 0


def test_an_ack_in_one_go_tells_of_a_lease_that_is_over() -> None:
    clock = ManualClock()
    with PubSub(MessageQueue(clock=clock)) as pubsub:
        three_of_each_key(pubsub, window=10)
        subscription = pubsub.subscription("mover")
        batches = subscription.batches(100, one_per_key=False)
        messages = next(iter(batches))
        subscription.seek(time=0).result()
        assert "Invalid ack ID" in str(batches.ack(messages).exception())


def test_of_messages_that_are_acked_as_one_each_has_its_own_answer() -> None:
    broker = MessageQueue()
    with PubSub(broker) as pubsub:
        three_of_each_key(pubsub, window=10)
        batches = pubsub.subscription("mover").batches(100, one_per_key=False)
        messages = next(iter(batches))
        lost = [message for message in messages if message.ordering_key == "a"]
        broker.nack(lost[0])  # with which the broker takes back what is out behind it
        together = batches.ack(messages)
        assert together.exception().ack_ids == (lost[0].ack_id,)  # type: ignore[union-attr]
        for message in messages:
            assert isinstance(message.ack().exception(), InvalidAckId if message in lost else type(None))


def test_what_was_answered_before_or_came_elsewhere_goes_its_own_way() -> None:
    with PubSub("memory:") as pubsub:
        three_of_each_key(pubsub, window=10)
        other = pubsub.topic("orders").subscription("other").create().result()
        pubsub.topic("orders").publish_message(b"elsewhere").result()
        (elsewhere,) = other.pull(10).result()
        batches = pubsub.subscription("mover").batches(100, one_per_key=False)
        messages = next(iter(batches))
        nacked = messages[0].nack()
        assert batches.ack([*messages, elsewhere]).exception() is not None  # what is out behind it was taken back
        assert nacked.exception() is None
        assert messages[0].ack() is nacked
        assert other.metrics().result().backlog_messages == 0
        with pytest.raises(FailedPrecondition):
            batches.ack([Message(b"never delivered")])


def test_a_loop_that_is_poked_before_it_begins_goes_round_once() -> None:
    with PubSub("memory:") as pubsub:
        topic = pubsub.topic("orders").create().result()
        batches = topic.subscription("mover").create().result().batches()
        batches.poke()
        assert next(iter(batches)) == []


@pytest.mark.parametrize("ahead", [-1, 1.5, True, "1", None])
def test_how_many_lists_come_ahead_is_a_whole_number(ahead: Any) -> None:
    with PubSub("memory:") as pubsub:
        topic = pubsub.topic("orders").create().result()
        subscription = topic.subscription("mover").create().result()
        with pytest.raises(InvalidArgument, match="ahead: a whole number of at least 0"):
            subscription.batches(ahead=ahead)


def test_a_list_at_hand_is_given_although_nothing_more_will_come() -> None:
    with PubSub("memory:") as pubsub:
        three_of_each_key(pubsub, window=1)
        subscription = pubsub.subscription("mover")
        lists = iter(subscription.batches(1, ahead=1))
        first = next(lists)
        subscription.delete().result()
        with pytest.raises(SubscriptionNotFound):
            next(lists)
        assert len(first) == 1


def test_no_more_come_ahead_than_were_asked_for_although_nothing_is_answered() -> None:
    with PubSub("memory:") as pubsub:
        topic = pubsub.topic("orders").create().result()
        subscription = topic.subscription("mover").create(ack_deadline_seconds=600).result()
        topic.publish_many([Message(b"%d" % number) for number in range(100)]).result()
        lists = iter(subscription.batches(2, ahead=1))
        for given in range(1, 11):
            assert len(next(lists)) == 2
            assert subscription.metrics().result().outstanding_messages == 2 * given + 2


def test_a_gap_that_came_too_early_is_not_remembered_as_given_out() -> None:
    with PubSub("memory:") as pubsub:
        topic = pubsub.topic("orders").create().result()
        limits = {"max_messages": 2, "when_full": "drop"}
        subscription = topic.subscription("mover")
        subscription.create(enable_message_ordering=True, max_outstanding_per_key=10, queue_limits=limits).result()
        told: list[object] = []
        subscription.on("gap", told.append)
        for number in range(3):  # the last one is dropped
            topic.publish_message(b"%d" % number, ordering_key="k").result()
        batches = subscription.batches(10, one_per_key=False)
        for messages in batches:
            batches.ack(messages).result(0)
            told += [message.data for message in messages]
            if messages and messages[-1].data == b"1":
                topic.publish_message(b"3", ordering_key="k").result()
            elif messages:
                break
        assert [one.count if isinstance(one, Gap) else one for one in told] == [b"0", b"1", 1, b"3"]
        assert [message.data for message in batches._iteration._intake._out.values()] == [b"3"]


def test_a_loop_whose_event_loop_was_closed_keeps_nothing_from_others() -> None:
    """Nobody goes on with it, and nothing ends it: neither a `finally` nor the garbage collector gets there."""
    clock = ManualClock()
    with PubSub(MessageQueue(clock=clock)) as pubsub:
        three_of_each_key(pubsub, window=1)
        subscription = pubsub.subscription("mover")
        begun: list[bytes] = []

        async def work() -> None:
            async for message in subscription:
                begun.append(message.data)
                await asyncio.sleep(3600)

        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # that the task never ended
        task = loop.create_task(work())
        while not begun:
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        clock.advance(60)
        pulled = subscription.pull(10).result(0)
        assert {(message.ordering_key, message.data) for message in pulled} == {("a", b"0"), ("b", b"0")}
        assert not subscription._iterations
        assert not task.done()


def test_a_subscription_with_a_loop_is_closed_when_the_broker_has_what_the_loop_never_got() -> None:
    returned: Pending[None] = Pending()

    class SlowDeliveries(EmbeddedDeliveries):
        def release(self, leases: Sequence[int], source: Source) -> Pending[None]:
            return super().release(leases, source).then(lambda _: returned)

    class SlowTransport(EmbeddedTransport):
        def deliveries(self, subscription: str, wake: Any, report: Any, eager: bool) -> EmbeddedDeliveries:
            return SlowDeliveries(self.broker, subscription, wake, report)

    broker = MessageQueue(clock=ManualClock())
    three_of_each_key(PubSub(broker), window=1)
    subscription = Subscription(Connection(SlowTransport(broker, owned=False)), "mover")
    messages = iter(subscription.batches(1, ahead=1))
    assert len(next(messages)) == 1
    closing = subscription.close()
    assert not closing.done()
    returned.set_result(None)
    assert closing.result(0) is None
    assert [*messages] == []


def a_gap_and_a_message(pubsub: PubSub) -> Subscription:
    """Both come with the first list."""
    topic = pubsub.topic("orders").create().result()
    limits = {"max_messages": 2, "when_full": "drop"}
    subscription = topic.subscription("mover").create(enable_message_ordering=True, queue_limits=limits).result()
    topic.publish_many([Message(b"first"), Message(b"second"), Message(b"dropped", ordering_key="k")]).result()
    return subscription


def test_messages_that_a_loop_never_got_as_a_listener_closed_it_come_again_at_once() -> None:
    with PubSub(MessageQueue(clock=ManualClock())) as pubsub:
        subscription = a_gap_and_a_message(pubsub)
        subscription.on("gap", lambda gap: subscription.close())
        assert [*subscription.batches(10)] == []
        assert [message.data for message in subscription.pull(10).result(0)] == [b"first", b"second"]


def test_messages_that_a_loop_never_got_as_it_was_cancelled_come_again_at_once() -> None:
    clock = ManualClock()
    broker = MessageQueue(clock=clock)

    async def cancelled() -> None:
        async with PubSub(broker) as pubsub:
            subscription = a_gap_and_a_message(pubsub)
            told = asyncio.Event()

            @subscription.on("gap")
            async def tell(gap: Gap) -> None:
                told.set()
                await asyncio.sleep(3600)

            lists = aiter(subscription.batches(10))
            getting = asyncio.ensure_future(anext(lists))
            await told.wait()
            getting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await getting
            clock.advance(0)  # which ends a loop that was left

    asyncio.run(cancelled())
    assert [message.data for message in broker.pull("mover", 10)] == [b"first", b"second"]


def keys_of(messages: Sequence[Message]) -> set[str | None]:
    return {message.ordering_key for message in messages}


def test_a_list_that_is_set_aside_stays_leased_while_the_loop_goes_on() -> None:
    clock = ManualClock()
    with PubSub(MessageQueue(clock=clock)) as pubsub:
        three_of_each_key(pubsub, window=1)
        subscription = pubsub.subscription("mover")
        batches = subscription.batches(1)
        lists = iter(batches)
        (first,) = next(lists)
        batches.set_aside()
        (second,) = next(lists)
        assert keys_of([first, second]) == {"a", "b"}  # the next of a key waits for the one before
        for _ in range(50):
            clock.advance(1)
        assert batches.held([first, second]) == [first, second]
        assert batches.keep([first])
        batches.ack([first]).result(0)
        batches.let_go()
        batches.set_aside()
        (third,) = next(lists)
        assert (third.ordering_key, third.data) == (first.ordering_key, b"1")
        batches.let_go()  # the second one, without an answer: its lease runs out
        for _ in range(50):
            clock.advance(1)
        assert batches.held([second, third]) == [third]


def test_a_list_that_is_set_aside_may_be_given_back_or_fail_in_its_place() -> None:
    with PubSub("memory:") as pubsub:
        three_of_each_key(pubsub, window=1)
        batches = pubsub.subscription("mover").batches(2)
        lists = iter(batches)
        first = next(lists)
        batches.set_aside()
        batches.poke()
        assert next(lists) == []
        batches.give_back(first[:1])
        batches.answer(failed=first[1:])
        batches.let_go()
        again = next(lists)
        assert [message.data for message in again] == [b"0", b"0"]
        assert sorted(message.delivery_attempt for message in again) == [1, 2]


@pytest.mark.parametrize("answer", ["ack", "give_back", None])
def test_a_loop_that_ends_goes_round_once_more_for_what_was_set_aside(answer: str | None) -> None:
    """So that it can still be answered or given back; whoever does nothing about it is not asked for ever."""
    with PubSub("memory:") as pubsub:
        three_of_each_key(pubsub, window=1)
        subscription = pubsub.subscription("mover")
        batches = subscription.batches(2)
        lists = iter(batches)
        first = next(lists)
        batches.set_aside()
        batches.close()
        assert next(lists) == []
        assert batches.held(first) == first
        if answer:
            getattr(batches, answer)(first)
            batches.let_go()
        assert list(lists) == []
        found = [(message.data, message.delivery_attempt) for message in subscription.pull(9).result()]
        assert found == {"ack": [(b"1", 1)] * 2, "give_back": [(b"0", 1)] * 2, None: []}[answer]


def test_who_has_left_a_loop_may_still_ack_what_was_set_aside() -> None:
    with PubSub("memory:") as pubsub:
        three_of_each_key(pubsub, window=1)
        batches = pubsub.subscription("mover").batches(2)
        lists = iter(batches)
        first = next(lists)
        batches.set_aside()
        batches.close()
        assert list(lists) == [[]]
        batches.ack(first).result(0)
        assert pubsub.subscription("mover").metrics().result().backlog_messages == 4

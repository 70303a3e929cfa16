"""One subscription, through the broker in memory: what goes out, in which order, and what keeps it waiting."""

from typing import Any

import pytest

from inorder.broker import MessageQueue
from inorder.message import Gap, Message
from inorder.options import FlowControl
from inorder.testing.clock import ManualClock


def keyed(*keys: str) -> list[Message]:
    return [Message(b"x", ordering_key=key) for key in keys]


def lengths(messages: list[Message]) -> list[int]:
    return [message.length for message in messages]


def test_a_consumer_gets_no_more_bytes_than_it_has_room_for_nor_than_flow_control_has() -> None:
    queue = MessageQueue(clock=ManualClock())
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders", {"flow_control": FlowControl(10, 100)})
    queue.publish("orders", [Message(bytes(40)) for _ in range(4)])
    assert len(queue.take("worker", 10, max_bytes=50)) == 1
    assert len(queue.take("worker", 10, max_bytes=1_000)) == 1


def test_what_is_given_back_of_a_key_waits_with_what_failed_of_it() -> None:
    queue = MessageQueue(clock=(clock := ManualClock()))
    queue.register_topic("orders")
    options = {"enable_message_ordering": True, "max_outstanding_per_key": 3, "retry_policy": {"minimum_backoff": 5}}
    queue.register_subscription("worker", "orders", options)
    queue.publish("orders", keyed("a", "a", "a"))
    first, second, _ = queue.pull("worker", 3)
    queue.nack(second)
    queue.release("worker", [first._lease])
    assert queue.pull("worker", 3) == []
    clock.advance(5)
    assert [message.position for message in queue.pull("worker", 3)] == [0, 1, 2]


def test_a_message_comes_until_it_is_older_than_the_retention() -> None:
    queue = MessageQueue(clock=(clock := ManualClock()))
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders", {"message_retention_duration": 60})
    for key, seconds in {"cleared away": 10, "too old": 0.001, "as old": 60}.items():
        queue.publish("orders", keyed(key))
        clock.advance(seconds)
    assert [message.ordering_key for message in queue.pull("worker", 10)] == ["as old"]


@pytest.mark.parametrize("to", ["a position", "a snapshot"])
def test_what_a_seek_brings_back_though_it_is_too_old_goes_if_nobody_pulls(to: str) -> None:
    queue = MessageQueue(clock=(clock := ManualClock()))
    queue.register_topic("orders", {"message_retention_duration": 3_600})
    queue.register_subscription("worker", "orders", {"message_retention_duration": 60})
    queue.publish("orders", keyed("a"))
    queue.create_snapshot("monday", "worker")
    queue.ack(queue.pull("worker", 1))
    clock.advance(600)
    if to == "a position":
        queue.seek("worker", position=0)
    else:
        queue.seek("worker", snapshot="monday")
    clock.advance(60)
    assert queue.metrics("worker").backlog_messages == 0


def test_a_gap_behind_a_message_of_its_key_is_told_by_the_pull_after_it() -> None:
    queue = MessageQueue(clock=ManualClock())
    queue.register_topic("orders")
    options = {"enable_message_ordering": True, "max_outstanding_per_key": 3, "queue_limits": {"max_messages": 1}}
    queue.register_subscription("worker", "orders", options)
    queue.publish("orders", keyed("a", "a"))
    gaps: list[Gap] = []
    pulled = queue.pull("worker", 10, gaps.append)
    assert ([message.position for message in pulled], gaps) == ([0], [])
    queue.ack(pulled)
    assert queue.pull("worker", 10, gaps.append) == []
    assert [gap.first_position for gap in gaps] == [1]


def test_after_a_seek_nothing_has_starved() -> None:
    queue = MessageQueue(clock=(clock := ManualClock()))
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders", {"flow_control": FlowControl(10, 100)})
    queue.publish("orders", [Message(bytes(size)) for size in (60, 90, 20)])
    assert lengths(queue.pull("worker", 10)) == [60, 20]
    clock.advance(9)
    queue.seek("worker", position=0)
    clock.advance(9)
    assert lengths(queue.pull("worker", 10)) == [60, 20]


def test_a_pull_that_passes_something_over_gives_no_more_than_was_asked_for() -> None:
    queue = MessageQueue(clock=ManualClock())
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders", {"flow_control": FlowControl(100, 100)})
    queue.publish("orders", [Message(bytes(50)), Message(bytes(90)), *(Message(bytes(5)) for _ in range(5))])
    assert len(queue.pull("worker", 1)) == 1
    assert lengths(queue.pull("worker", 2)) == [5, 5]


def test_a_gap_that_was_given_back_is_no_message_that_comes_again() -> None:
    queue = MessageQueue(clock=ManualClock())
    queue.register_topic("orders")
    queue.register_subscription(
        "worker", "orders", {"enable_message_ordering": True, "queue_limits": {"max_messages": 1}}
    )
    queue.publish("orders", keyed("a", "b"))
    taken = queue.take("worker", 2)
    queue.release("worker", [message._lease for message in taken])
    assert len(queue.take("worker", 2)) == 2
    assert queue.metrics("worker").counters.redelivered == 1


@pytest.mark.parametrize("retention", [None, 60])
def test_dead_letters_that_nobody_keeps_are_told(retention: int | None, caplog: pytest.LogCaptureFixture) -> None:
    queue = MessageQueue(clock=ManualClock())
    queue.register_topic("orders")
    queue.register_topic("dead", {"message_retention_duration": retention})
    policy = {"dead_letter_topic": "dead", "max_delivery_attempts": 1}
    queue.register_subscription("worker", "orders", {"dead_letter_policy": policy})
    queue.publish("orders", keyed("a"))
    queue.nack(queue.pull("worker", 1))
    assert ("has no subscription" in caplog.text) == (retention is None)


def test_dead_letters_that_every_subscription_filters_out_are_told(caplog: pytest.LogCaptureFixture) -> None:
    queue = MessageQueue(clock=ManualClock())
    queue.register_topic("orders")
    queue.register_topic("dead")
    queue.register_subscription("european", "dead", {"filter": 'attributes.region = "eu"'})
    queue.register_subscription("large", "dead", {"filter": "attributes:large"})
    policy = {"dead_letter_topic": "dead", "max_delivery_attempts": 1}
    queue.register_subscription("worker", "orders", {"dead_letter_policy": policy})
    queue.publish("orders", [Message(b"a", {"region": "eu"}), Message(b"b", {"large": "1"})])
    queue.nack(queue.pull("worker", 2))
    assert not caplog.text
    queue.publish("orders", [Message(b"c", {"region": "us"}), Message(b"d", {"region": "eu"})])
    queue.nack(queue.pull("worker", 2))
    assert "'dead' has no subscription whose filter they match: nobody keeps 1 message(s)" in caplog.text


def test_dead_letters_that_a_snapshot_keeps_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    queue = MessageQueue(clock=ManualClock())
    queue.register_topic("orders")
    queue.register_topic("dead")
    queue.register_subscription("european", "dead", {"filter": 'attributes.region = "eu"'})
    queue.create_snapshot("before", "european")
    policy = {"dead_letter_topic": "dead", "max_delivery_attempts": 1}
    queue.register_subscription("worker", "orders", {"dead_letter_policy": policy})
    queue.publish("orders", [Message(b"a")])
    queue.nack(queue.pull("worker", 1))
    assert not caplog.text
    queue.register_subscription("all", "dead")
    queue.seek("all", snapshot="before")
    assert [message.data for message in queue.pull("all", 1)] == [b"a"]


def test_what_a_consumer_has_no_room_for_is_not_starved_without_flow_control_either() -> None:
    queue = MessageQueue(clock=(clock := ManualClock()))
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders")
    queue.publish("orders", [Message(bytes(50)), Message(bytes(5)), Message(bytes(6))])
    assert lengths(queue.take("worker", 1, max_bytes=10, alone=False)) == [5]
    clock.advance(9)
    assert lengths(queue.take("worker", 1, max_bytes=10, alone=False)) == [6]
    queue.publish("orders", [Message(bytes(7))])
    clock.advance(1)
    assert queue.take("worker", 1, max_bytes=10, alone=False) == []
    assert lengths(queue.take("worker", 10, max_bytes=60)) == [50, 5]


@pytest.mark.parametrize("max_messages", [1, 10])
def test_behind_a_large_message_that_went_the_next_one_is_not_starved(max_messages: int) -> None:
    queue = MessageQueue(clock=(clock := ManualClock()))
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders")
    queue.publish("orders", [Message(bytes(50))])
    assert queue.take("worker", 1, max_bytes=10, alone=False) == []
    clock.advance(1)
    queue.publish("orders", [Message(bytes(40)), Message(bytes(5))])
    taken = queue.take("worker", max_messages, max_bytes=50) + queue.take("worker", 1, max_bytes=10, alone=False)
    assert lengths(taken) == [50, 5]
    queue.ack(taken)
    clock.advance(10)
    queue.publish("orders", [Message(bytes(6))])
    assert queue.take("worker", 1, max_bytes=10, alone=False) == []


@pytest.mark.parametrize("max_messages", [1, 10])
def test_a_message_that_starves_does_not_overtake_what_came_back_before_it_in_its_key(max_messages: int) -> None:
    queue = MessageQueue(clock=(clock := ManualClock()))
    queue.register_topic("orders")
    options = {"enable_message_ordering": True, "max_outstanding_per_key": 3, "flow_control": FlowControl(10, 100)}
    queue.register_subscription("worker", "orders", options)
    queue.publish("orders", [Message(bytes(size), ordering_key="a") for size in (60, 90)])
    first = queue.pull("worker", 10)
    assert lengths(first) == [60]
    queue.modify_ack_deadline(first, 60)
    clock.advance(11)
    queue.nack(first)
    assert lengths(queue.pull("worker", max_messages)) == [60]


def test_behind_a_large_message_that_became_too_old_the_next_one_is_not_starved() -> None:
    queue = MessageQueue(clock=(clock := ManualClock()))
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders", {"message_retention_duration": 60})
    queue.publish("orders", [Message(bytes(50))])
    assert queue.take("worker", 1, max_bytes=10, alone=False) == []
    clock.advance(61)
    queue.publish("orders", [Message(bytes(40)), Message(bytes(5))])
    queue.ack(queue.take("worker", 1, max_bytes=10, alone=False))
    clock.advance(10)
    queue.publish("orders", [Message(bytes(6))])
    assert queue.take("worker", 1, max_bytes=10, alone=False) == []


def test_a_parked_key_knows_for_what_it_waits_also_if_all_of_it_is_too_old() -> None:
    queue = MessageQueue(clock=(clock := ManualClock()))
    queue.register_topic("orders")
    options: dict[str, Any] = {"enable_message_ordering": True, "max_outstanding_per_key": 2, "on_poison": "park_key"}
    options |= {"dead_letter_policy": {"dead_letter_topic": "dead", "max_delivery_attempts": 1}}
    queue.register_subscription("worker", "orders", {**options, "message_retention_duration": 60})
    queue.publish("orders", keyed("a", "a"))
    first, second = queue.pull("worker", 2)
    queue.nack(second)
    queue.release("worker", [first._lease])
    clock.advance(200)
    assert [(key.reason, key.position) for key in queue.blocked_keys("worker")] == [("parked", 1)]


def test_acks_of_some_that_are_out_do_not_free_the_keys_of_the_others() -> None:
    queue = MessageQueue(clock=ManualClock())
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders", {"enable_message_ordering": True})
    queue.publish("orders", keyed("a", "b", "c", "d", "a", "b", "c", "d"))
    first, second = queue.pull("worker", 2), queue.pull("worker", 2)
    assert [message.ordering_key for message in (*first, *second)] == ["a", "b", "c", "d"]
    queue.ack(first)
    assert [message.position for message in queue.pull("worker", 9)] == [4, 5]
    queue.ack(second)
    assert [message.position for message in queue.pull("worker", 9)] == [6, 7]


def test_acks_of_all_that_is_out_do_not_free_a_key_that_is_parked_for_something_too_old() -> None:
    queue = MessageQueue(clock=(clock := ManualClock()))
    queue.register_topic("orders")
    options: dict[str, Any] = {"enable_message_ordering": True, "on_poison": "park_key"}
    options |= {"dead_letter_policy": {"dead_letter_topic": "dead", "max_delivery_attempts": 1}}
    queue.register_subscription("worker", "orders", {**options, "message_retention_duration": 600})
    queue.publish("orders", keyed("a"))
    queue.nack(queue.pull("worker", 1))
    clock.advance(590)
    queue.publish("orders", keyed("a", "a", "b", "c", "d", "e"))
    clock.advance(20)  # what it was parked for is gone
    while messages := queue.pull("worker", 9):
        assert "a" not in [message.ordering_key for message in messages]
        queue.ack(messages)
    assert [(key.ordering_key, key.reason) for key in queue.blocked_keys("worker")] == [("a", "parked")]
    queue.resume_key("worker", "a")
    assert [message.position for message in queue.pull("worker", 9)] == [1]


def test_messages_without_a_key_go_oldest_first_also_if_one_of_them_waited_when_the_rules_changed() -> None:
    queue = MessageQueue(clock=(clock := ManualClock()))
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders", {"retry_policy": {"minimum_backoff": 5}})
    queue.publish("orders", [Message(b"x") for _ in range(3)])
    queue.nack(queue.pull("worker", 3)[1])
    queue.update_subscription("worker", {"enable_message_ordering": True})
    clock.advance(5)
    assert [message.position for message in queue.pull("worker", 3)] == [0, 1, 2]


def test_a_seek_brings_back_only_what_is_still_retained() -> None:
    queue = MessageQueue(clock=(clock := ManualClock()))
    queue.register_topic("orders", {"message_retention_duration": 60})
    queue.register_subscription("worker", "orders")
    for key in ("too old", "retained"):
        queue.publish("orders", keyed(key))
        queue.ack(queue.pull("worker", 1))
        clock.advance(50)
    queue.seek("worker", time=0)
    assert [message.ordering_key for message in queue.pull("worker", 10)] == ["retained"]


def test_a_key_of_which_several_failed_waits_for_the_longest_of_their_backoffs() -> None:
    queue = MessageQueue(clock=(clock := ManualClock()))
    queue.register_topic("orders")
    options = {"enable_message_ordering": True, "max_outstanding_per_key": 2, "retry_policy": {"minimum_backoff": 5}}
    queue.register_subscription("worker", "orders", options)
    queue.publish("orders", keyed("a", "a"))
    for backoff in (5, 10):
        queue.nack(queue.pull("worker", 2)[0])
        clock.advance(backoff)
    queue.nack(queue.pull("worker", 2))  # the third failure of the one, and the first of the other
    clock.advance(19)
    assert queue.pull("worker", 2) == []
    clock.advance(1)
    assert [message.delivery_attempt for message in queue.pull("worker", 2)] == [4, 2]


def test_holes_of_two_reasons_are_told_as_two() -> None:
    queue = MessageQueue(clock=(clock := ManualClock()))
    queue.register_topic("orders")
    options = {"enable_message_ordering": True, "message_retention_duration": 60, "queue_limits": {"max_messages": 2}}
    queue.register_subscription("worker", "orders", options)
    queue.publish("orders", keyed("a", "a", "a"))
    first = queue.pull("worker", 1)
    queue.modify_ack_deadline(first, 600)
    clock.advance(200)
    queue.ack(first)
    gaps: list[Gap] = []
    assert queue.pull("worker", 10, gaps.append) == []
    assert [(gap.first_position, gap.reason) for gap in gaps] == [(1, "expired"), (2, "dropped")]


def test_flow_control_counts_what_was_out_before_it_was_set() -> None:
    queue = MessageQueue(clock=ManualClock())
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders")
    queue.publish("orders", [Message(bytes(40)) for _ in range(3)])
    out = queue.pull("worker", 2)
    queue.update_subscription("worker", {"flow_control": FlowControl(10, 100)})
    assert queue.pull("worker", 1) == []
    queue.ack(out[0])
    assert len(queue.pull("worker", 1)) == 1


def test_when_all_holes_are_told_the_subscription_has_none() -> None:
    queue = MessageQueue(clock=(clock := ManualClock()))
    queue.register_topic("orders")
    options = {"enable_message_ordering": True, "message_retention_duration": 60}
    queue.register_subscription("worker", "orders", options)
    queue.publish("orders", keyed("a", "a", "a"))
    first = queue.pull("worker", 1)
    queue.modify_ack_deadline(first, 600)
    clock.advance(200)  # the other two have become one hole
    queue.ack(first)
    gaps: list[Gap] = []
    assert queue.pull("worker", 10, gaps.append) == []
    assert [gap.count for gap in gaps] == [2]
    assert not queue._state.subscriptions["worker"].any_gaps()


def test_what_a_dead_letter_tells_of_where_it_came_from_counts_as_bytes_of_it() -> None:
    queue = MessageQueue(clock=ManualClock())
    for topic in ("orders", "dead"):
        queue.register_topic(topic)
    policy = {"dead_letter_topic": "dead", "max_delivery_attempts": 1, "source": "projects/p/subscriptions/worker"}
    queue.register_subscription("worker", "orders", {"dead_letter_policy": policy})
    queue.register_subscription("undertaker", "dead")
    queue.publish("orders", keyed("a"))
    queue.nack(queue.pull("worker", 1))
    size = queue.metrics("undertaker").backlog_bytes
    [letter] = queue.pull("undertaker", 1)
    assert size == len("a") + letter.length + sum(map(len, [*letter.attributes, *letter.attributes.values()]))

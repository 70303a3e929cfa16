"""What only the broker in memory can show: what a call costs, and when those who wait are woken."""

import contextlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from inorder.broker import MessageQueue
from inorder.clock import Timer
from inorder.errors import InorderError
from inorder.message import ATTRIBUTES, Gap, Message, batch_of
from inorder.options import FlowControl
from inorder.testing.clock import ManualClock

PATIENCE_SECONDS = 30


def keyed(*keys: str) -> list[Message]:
    return [Message(b"x", ordering_key=key) for key in keys]


def count_calls(call: Callable[[], object]) -> int:
    """How many Python functions `call` runs."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return calls


def test_a_pull_costs_what_it_finds_however_many_gaps_are_among_it() -> None:
    queue = MessageQueue(clock=ManualClock())
    queue.register_topic("orders")
    count = 300
    options = {"enable_message_ordering": True, "queue_limits": {"max_messages": count}}
    queue.register_subscription("worker", "orders", options)
    queue.publish("orders", keyed(*(f"stored-{number}" for number in range(count))))
    queue.publish("orders", keyed(*(f"missed-{number}" for number in range(count))))
    pulled: list[Message] = []
    gaps: list[Gap] = []
    assert count_calls(lambda: pulled.extend(queue.pull("worker", 2 * count, gaps.append))) < 20 * count
    assert (len(pulled), len(gaps)) == (count, count)


@pytest.mark.parametrize("gone", ["topic", "detached", "subscription"])
def test_a_subscription_that_was_full_costs_nothing_once_it_gets_nothing_any_more(gone: str) -> None:
    queue = MessageQueue(clock=ManualClock())
    for topic in ("orders", "others"):
        queue.register_topic(topic)
    queue.register_subscription("worker", "orders", {"queue_limits": {"max_messages": 1}})

    def publish() -> None:
        queue.publish("others", keyed("a"))

    publish()
    costs = count_calls(publish)
    queue.publish("orders", keyed("a", "b"))
    if gone == "topic":
        queue.unregister_topic("orders")
    elif gone == "detached":
        queue.detach_subscription("worker")
    else:
        queue.unregister_subscription("worker")
    assert count_calls(publish) == costs


@pytest.mark.parametrize(("messages", "words"), [(11, "reached its queue capacity"), (1, "cannot be dead-lettered")])
def test_what_is_logged_may_be_published_by_who_reads_the_log(messages: int, words: str) -> None:
    queue = MessageQueue(clock=ManualClock())
    for topic in ("orders", "logs"):
        queue.register_topic(topic)
        queue.register_subscription(topic, topic, {"queue_limits": {"max_messages": 10}})
    queue.update_subscription(
        "orders", {"dead_letter_policy": {"dead_letter_topic": "gone", "max_delivery_attempts": 1}}
    )

    class Publisher(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            queue.publish("logs", [Message(record.getMessage().encode())])
            return True

    def get_into_trouble() -> None:
        queue.publish("orders", keyed(*map(str, range(messages))))
        queue.nack(queue.pull("orders", 1))

    logging.getLogger("inorder").addHandler(publisher := Publisher())
    try:
        thread = threading.Thread(target=get_into_trouble, daemon=True)
        thread.start()
        thread.join(PATIENCE_SECONDS)
    finally:
        logging.getLogger("inorder").removeHandler(publisher)
    assert not thread.is_alive()
    assert words in queue.pull("logs", 1)[0].data.decode()


def with_a_message_and_gaps_behind_it(queue: MessageQueue) -> None:
    queue.register_topic("orders")
    options = {"enable_message_ordering": True, "queue_limits": {"max_messages": 1}}
    queue.register_subscription("worker", "orders", options)
    queue.publish("orders", keyed("stored", "missed", "missed too"))


@pytest.mark.parametrize("before", ["attached", "detached"])
def test_a_deleted_topic_keeps_no_messages_in_memory_whoever_subscribed_to_it(before: str) -> None:
    queue = MessageQueue(clock=ManualClock())
    queue.register_topic("orders", {"message_retention_duration": 3600})
    queue.register_subscription("worker", "orders")
    data = bytes(1000)
    references = sys.getrefcount(data)
    queue.publish("orders", [Message(data)])
    queue.create_snapshot("monday", "worker")
    if before == "detached":
        queue.detach_subscription("worker")
    assert sys.getrefcount(data) > references
    queue.unregister_topic("orders")
    assert sys.getrefcount(data) == references
    assert queue.subscription_exists("worker")


def test_a_gap_that_could_not_be_told_is_told_again_and_so_are_those_behind_it() -> None:
    queue = MessageQueue(clock=ManualClock())
    with_a_message_and_gaps_behind_it(queue)
    told: list[str] = []

    def tell(gap: Gap) -> None:
        told.append(gap.ordering_key)
        if len(told) == 1:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        queue.pull("worker", 10, tell)
    [message] = queue.pull("worker", 10, tell)  # which nobody had got
    assert (message.ordering_key, message.delivery_attempt) == ("stored", 1)
    assert told == ["missed", "missed", "missed too"]
    assert queue.pull("worker", 10, tell) == []


def test_a_gap_is_no_message_also_if_somebody_seeks_while_it_is_pulled() -> None:
    class SoughtMeanwhile(MessageQueue):
        def _end_turn(self) -> Any:
            ended = super()._end_turn()
            if self._state.subscriptions and self._state.subscription("worker").leases.count:
                ended = [*ended, lambda: self.seek("worker", position=3)]
            return ended

    queue = SoughtMeanwhile(clock=ManualClock())
    with_a_message_and_gaps_behind_it(queue)
    gaps: list[Gap] = []
    assert [message.ordering_key for message in queue.pull("worker", 10, gaps.append)] == ["stored"]
    assert [gap.ordering_key for gap in gaps] == ["missed", "missed too"]


def test_what_has_expired_is_one_gap_of_its_key_however_much_it_is() -> None:
    """Where nobody reads, that is all that is left of the messages: a gap for each would be more and more."""
    queue = MessageQueue(clock=(clock := ManualClock()))
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders", {"enable_message_ordering": True, "message_retention_duration": 60})
    queue.publish("orders", keyed("a", "b"))
    for _ in range(5):
        queue.publish("orders", keyed("a", "a", "b"))
        clock.advance(200)
    queue.publish("orders", keyed("a"))
    gaps: list[Gap] = []
    assert [message.position for message in queue.pull("worker", 10, gaps.append)] == [17]
    told = sorted((gap.ordering_key, gap.first_position, gap.last_position, gap.count) for gap in gaps)
    assert told == [("a", 0, 0, 1), ("a", 2, 15, 10), ("b", 1, 1, 1), ("b", 4, 16, 5)]
    assert queue.metrics("worker").counters.outdated == 17
    assert queue.pull("worker", 10, gaps.append) == []
    assert len(gaps) == 4


def test_a_key_whose_message_has_expired_stays_parked_when_the_rules_change() -> None:
    queue = MessageQueue(clock=(clock := ManualClock()))
    for topic in ("orders", "dead"):
        queue.register_topic(topic)
    options = {
        "enable_message_ordering": True,
        "message_retention_duration": 600,
        "on_poison": "park_key",
        "dead_letter_policy": {"dead_letter_topic": "dead", "max_delivery_attempts": 5},
    }
    queue.register_subscription("worker", "orders", options)
    queue.publish("orders", keyed("a", "a"))
    for _ in range(5):
        queue.nack(queue.pull("worker", 10))
    clock.advance(1_200)
    queue.update_subscription("worker", {"max_outstanding_per_key": 2})
    assert [(key.ordering_key, key.reason) for key in queue.blocked_keys("worker")] == [("a", "parked")]
    gaps: list[Gap] = []
    assert queue.pull("worker", 10, gaps.append) == []
    assert gaps == []
    queue.resume_key("worker", "a")
    queue.pull("worker", 10, gaps.append)
    assert sum(gap.count for gap in gaps) == 2


class TimersNeverRun(ManualClock):
    """So that it is a call that finds out what time has brought about."""

    def call_at(self, when_us: int, callback: Callable[[], None]) -> Timer:
        return super().call_at(when_us + 10**18, callback)


REFUSED: dict[str, Callable[[MessageQueue], object]] = {
    "submit": lambda queue: queue.submit("nowhere", batch_of([Message(b"x")])),
    "take": lambda queue: queue.take("nobody", 1),
    "settle": lambda queue: queue.settle("nobody", [1], []),
    "extend": lambda queue: queue.extend("nobody", [1], 10),
    "resume_key": lambda queue: queue.resume_key("worker", "nothing waits"),
    "update": lambda queue: queue.update_subscription("worker", {"ack_deadline_seconds": -1}),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED.keys())
def test_a_call_that_is_refused_wakes_those_whom_time_has_something_for(call: Callable[[MessageQueue], object]) -> None:
    queue = MessageQueue(clock=(clock := TimersNeverRun()))
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders", {"ack_deadline_seconds": 10})
    queue.publish("orders", keyed("k"))
    queue.pull("worker", 1)
    woken: list[bool] = []
    queue.watch("worker", lambda: woken.append(queue._lock.locked()), print)
    clock.advance(10)
    with contextlib.suppress(InorderError):
        call(queue)
    assert woken == [False]


FORK = """
import os, sys, time
from inorder.broker import MessageQueue
from inorder.errors import Closed
from inorder.message import Message

queue = MessageQueue.get_instance()
queue.register_topic("orders")
queue.register_subscription("worker", "orders", {"ack_deadline": 600})
queue.publish("orders", [Message(b"parent")])
queue.pull("worker", 1)
with queue._lock:  # as another thread may, which the child does not have
    child = os.fork()
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert MessageQueue.get_instance() is queue
    queue.publish("orders", [Message(b"parent")])
    assert len(queue.pull("worker", 10)) == 1
    sys.exit()
try:
    queue.publish("orders", [Message(b"child")])
except Closed as error:
    assert "fork" in str(error), error
else:
    os._exit(1)
queue.close()
own = MessageQueue.get_instance()
own.register_topic("orders")
own.register_subscription("worker", "orders", {"ack_deadline": 0.01})
own.publish("orders", [Message(b"child")])
own.pull("worker", 1)
while not own.metrics("worker").counters.expired:
    time.sleep(0.001)
os._exit(own.get_all_topics()[0].published - 1)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_is_told_that_the_broker_is_not_its_own_and_has_another() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK]
    ended = subprocess.run(command, timeout=PATIENCE_SECONDS, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_what_is_out_of_a_key_is_taken_back_each_time_that_one_of_it_fails() -> None:
    queue = MessageQueue(clock=ManualClock())
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders", {"enable_message_ordering": True, "max_outstanding_per_key": 4})
    for failing in (1, 2, 1):  # in between nothing has failed, and nobody knows what is out of which key
        queue.publish("orders", [Message(b"%d" % number, ordering_key=key) for number in range(4) for key in "ab"])
        pulled = queue.pull("worker", 100)
        of_a = [message for message in pulled if message.ordering_key == "a"]
        queue.nack(of_a[failing])
        again = queue.pull("worker", 100)
        assert [message.data for message in again] == [message.data for message in of_a[failing:]]
        queue.ack([message for message in pulled if message.ordering_key == "b"])
        queue.ack([*of_a[:failing], *again])
        assert queue.metrics("worker").backlog_messages == 0


def test_only_the_message_that_starves_makes_others_wait() -> None:
    """It is another consumer's, because of its key: one that did not fit just now has not waited long."""
    clock = ManualClock()
    queue = MessageQueue(clock=clock)
    queue.register_topic("orders")
    options = {"enable_message_ordering": True, "max_outstanding_per_key": 3, "flow_control": FlowControl(10, 100)}
    queue.register_subscription("worker", "orders", options)
    one, two = queue.consumer("worker"), queue.consumer("worker")
    queue.publish("orders", [Message(b"1" * 60, ordering_key="b"), Message(b"2" * 60, ordering_key="b")])
    [first] = queue.take("worker", 5, one)
    queue.modify_ack_deadline(first, 60)
    clock.advance(11)  # the second of the key starves
    queue.publish("orders", [Message(b"3" * 60, ordering_key="c"), Message(b"4", ordering_key="a")])
    assert [message.data for message in queue.take("worker", 5, two)] == [b"4"]


@pytest.mark.parametrize("ordered", [True, False])
def test_what_is_too_old_for_a_subscription_does_not_come_again_though_its_topic_has_it(ordered: bool) -> None:
    queue = MessageQueue(clock=(clock := ManualClock()))
    queue.register_topic("orders", {"message_retention_duration": 3_600})
    queue.register_subscription(
        "billing", "orders", {"enable_message_ordering": ordered, "message_retention_duration": 60}
    )
    queue.publish("orders", keyed("old"))
    clock.advance(61)
    queue.publish("orders", keyed("new"))
    queue.seek("billing", position=0)
    gaps: list[Gap] = []
    assert [message.ordering_key for message in queue.pull("billing", 10, gaps.append)] == ["new"]
    assert [(gap.ordering_key, gap.reason) for gap in gaps] == [("old", "expired")] * ordered


def test_one_gap_stands_for_all_that_a_key_has_missed_and_grows_in_place() -> None:
    """To copy the positions for each message made a full subscription slower and slower, for everybody."""
    queue = MessageQueue(clock=ManualClock())
    queue.register_topic("orders")
    options = {"enable_message_ordering": True, "queue_limits": {"max_messages": 2}}
    queue.register_subscription("billing", "orders", options)
    queue.publish("orders", keyed("k", "k"))
    queue.publish("orders", keyed("k", "k"))
    lanes = queue._state.subscription("billing")._lanes
    positions = lanes.waiting("k")[-1][ATTRIBUTES]
    queue.publish("orders", keyed(*["k"] * 1_000))
    assert lanes.waiting("k")[-1][ATTRIBUTES] is positions
    gaps: list[Gap] = []
    for _ in range(3):
        for message in queue.pull("billing", 10, gaps.append):
            queue.ack(message)
    assert [(gap.first_position, gap.last_position, gap.count) for gap in gaps] == [(2, 1_003, 1_002)]


def test_a_snapshot_whose_time_is_over_keeps_nothing_in_memory() -> None:
    queue = MessageQueue(clock=(clock := ManualClock()))
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders")
    queue.create_snapshot("monday", "worker")
    data = bytes(1000)
    references = sys.getrefcount(data)
    for _ in range(2):
        queue.publish("orders", [Message(data)])
        queue.ack(queue.pull("worker", 1))
        clock.advance(7 * 86_400)
    assert sys.getrefcount(data) == references


def test_what_a_topic_retains_is_forgotten_with_time() -> None:
    queue = MessageQueue(clock=(clock := ManualClock()))
    queue.register_topic("orders", {"message_retention_duration": 60})
    data = bytes(1000)
    references = sys.getrefcount(data)
    queue.publish("orders", [Message(data)])
    clock.advance(60.001)
    queue.publish("orders", keyed("next"))
    assert sys.getrefcount(data) == references


def test_of_a_subscription_that_is_deleted_nothing_stays() -> None:
    queue = MessageQueue(clock=ManualClock())
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders")
    queue.publish("orders", keyed("a"))
    queue.pull("worker", 1)
    queue.unregister_subscription("worker")
    assert not queue._sources
    assert not queue._state._by_ack_prefix


def test_whoever_waits_is_woken_each_time_that_something_comes_again() -> None:
    queue = MessageQueue(clock=(clock := ManualClock()))
    queue.register_topic("orders")
    queue.register_subscription("worker", "orders", {"retry_policy": {"minimum_backoff": 5}})
    queue.publish("orders", keyed("a"))
    woken: list[int] = []
    queue.watch("worker", lambda: woken.append(clock.now_us()), lambda _: None)
    for backoff in (5, 10, 20):
        queue.nack(queue.pull("worker", 1))
        before = len(woken)
        clock.advance(backoff)
        assert len(woken) == before + 1

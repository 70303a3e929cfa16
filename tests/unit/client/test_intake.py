"""An intake and its broker: no call is made while the lock is held, and nothing falls between two calls."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from inorder import Message, SubscriptionOptions
from inorder.broker import MessageQueue
from inorder.client.intake import TAKE_AT_ONCE, Intake
from inorder.clock import MICROSECONDS
from inorder.errors import InvalidAckId, SubscriptionNotFound, Unavailable
from inorder.message import DATA, Gap, Source
from inorder.options import MAX_ACK_DEADLINE_SECONDS
from inorder.pending import Pending
from inorder.testing.clock import ManualClock
from inorder.transport import Taken
from inorder.transport.embedded import EmbeddedDeliveries, EmbeddedTransport
from inorder.transport.grpc.plain_stream import From

OPTIONS = SubscriptionOptions(enable_message_ordering=True, max_outstanding_per_key=10)


class WatchedDeliveries(EmbeddedDeliveries):
    """Calls `before` ahead of each call to the broker."""

    before: Callable[[str], None]
    reached: Callable[[], bool]  # else the broker hears of no deadline, and nobody of that
    refused: Callable[[], bool]  # or nobody can be asked for another one, and that is told

    def take(self, max_messages: int, max_bytes: int, alone: bool, source: Source, room: int) -> Taken:
        self.before("take")
        taken = super().take(max_messages, max_bytes, alone, source, room)
        self.before("taken")
        return taken

    def settle(self, acks: Sequence[int], nacks: Sequence[int]) -> Pending[list[int]]:
        self.before("settle")
        return super().settle(acks, nacks)

    def extend(self, leases: Sequence[int], seconds: float) -> Pending[list[int]]:
        self.before("extend")
        if self.refused():
            return Pending.failed(Unavailable("nobody is there"))
        return super().extend(leases, seconds) if self.reached() else Pending()

    def release(self, leases: Sequence[int], source: Source) -> Pending[None]:
        self.before("release")
        return super().release(leases, source)

    def close(self) -> Pending[None]:
        self.before("close")
        return super().close()


class Consumer:
    """An intake on a broker of its own, with a window of ten messages of a key."""

    def __init__(self, *, one_per_key: bool = True) -> None:
        self.clock = ManualClock()
        self.queue = MessageQueue(clock=self.clock)
        self.queue.register_topic("orders")
        self.queue.register_subscription("worker", "orders", OPTIONS)
        self.calls: list[str] = []
        self.on_call: Callable[[str], None] = lambda _: None
        self.woken = 0
        self.cut_off = False
        self.refusing = False
        self.intake: Intake | None = None
        consumer = self

        class Transport(EmbeddedTransport):
            def deliveries(self, subscription: str, wake: Any, report: Any, eager: bool) -> WatchedDeliveries:
                deliveries = WatchedDeliveries(self.broker, subscription, wake, report)
                deliveries.before, deliveries.reached = consumer.called, lambda: not consumer.cut_off
                deliveries.refused = lambda: consumer.refusing
                return deliveries

        transport = Transport(self.queue, owned=True)
        self.intake = Intake(transport, "worker", self.wake, print, one_per_key=one_per_key)

    def wake(self) -> None:
        self.woken += 1

    def called(self, name: str) -> None:
        self.calls.append(name)
        if self.intake is not None:
            assert not self.intake._lock.locked()
        self.on_call(name)

    def publish(self, *texts: str, key: str = "k") -> None:
        self.queue.publish("orders", [Message(text.encode(), ordering_key=key) for text in texts])

    def meanwhile(self, name: str, call: Callable[[], object]) -> None:
        """Have `call` made in the middle of the next call to the broker of this name."""

        def called(other: str) -> None:
            if other == name:
                self.on_call = lambda _: None
                call()

        self.on_call = called

    def next(self) -> Message:
        assert self.intake is not None
        message = self.intake.next()
        assert message is not None
        return message


@pytest.fixture
def consumer() -> Consumer:
    return Consumer()


@pytest.fixture
def intake(consumer: Consumer) -> Intake:
    assert consumer.intake is not None
    return consumer.intake


def test_no_lock_is_held_while_the_broker_is_called(consumer: Consumer, intake: Intake) -> None:
    consumer.publish("1", "2", "3", "4")
    first = consumer.next()
    first.modify_ack_deadline(20)
    consumer.clock.advance(8)
    first.ack()
    intake.finished(first)
    second = consumer.next()
    second.nack()
    intake.finished(second)
    assert consumer.next().data == b"2"
    intake.stop()
    intake.close()
    assert set(consumer.calls) == {"take", "taken", "settle", "extend", "release", "close"}


def test_the_next_of_a_key_waits_for_handler_and_answer(consumer: Consumer, intake: Intake) -> None:
    consumer.publish("1", "2", "3")
    first = consumer.next()
    first.ack()
    assert intake.next() is None
    intake.finished(first)
    second = consumer.next()
    assert second.data == b"2"
    intake.finished(second)
    assert intake.next() is None
    woken = consumer.woken
    second.ack()
    assert consumer.woken > woken
    assert consumer.next().data == b"3"


def test_what_comes_while_a_nack_is_on_its_way_is_taken_back_with_the_rest(consumer: Consumer, intake: Intake) -> None:
    """It is leased before the broker hears of the nack, and lost when it does."""
    consumer.publish("1", "2")
    first = consumer.next()
    intake.finished(first)

    def take_meanwhile() -> None:
        consumer.publish("3")
        assert intake.next() is None

    consumer.meanwhile("settle", take_meanwhile)
    first.nack()
    received: list[bytes] = []
    while (message := intake.next()) is not None:
        received.append(message.data)
        message.ack()
        intake.finished(message)
    assert received == [b"1", b"2", b"3"]


@pytest.mark.parametrize("one_per_key", [True, False])
def test_what_was_taken_back_with_a_nack_is_let_go_in_one_go(one_per_key: bool) -> None:
    """One by one, each of a window of thousands would ask the broker for all the others."""
    consumer = Consumer(one_per_key=one_per_key)
    intake = consumer.intake
    assert intake is not None
    consumer.publish(*"0123456789")
    first = consumer.next()
    consumer.calls.clear()
    first.nack()
    intake.finished(first)
    assert [*intake._line.messages()] == []
    assert not intake.doubts
    received = []
    while (message := intake.next()) is not None:
        received.append(message.data)
        message.ack()
        intake.finished(message)
    assert b"".join(received) == b"0123456789"
    assert consumer.calls.count("extend") == 1
    assert consumer.calls.count("release") == 1


def test_what_is_behind_a_nack_goes_back_with_it_if_nobody_says_whether_it_is_ours(
    consumer: Consumer, intake: Intake
) -> None:
    consumer.publish("1", "2", "3")
    first = consumer.next()
    intake.finished(first)
    consumer.meanwhile("settle", lambda: setattr(consumer, "refusing", True))
    first.nack()
    assert not intake._held
    consumer.refusing = False
    again = []
    while (message := intake.next()) is not None:
        again.append(message.data)
        message.ack()
        intake.finished(message)
    assert again == [b"1", b"2", b"3"]


def test_leases_are_asked_for_when_nobody_says_what_became_of_an_ack(
    consumer: Consumer, intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been over, and what waits behind it, too."""
    consumer.publish("1", key="a")
    consumer.publish("2", key="b")
    first, second = consumer.next(), consumer.next()
    consumer.queue.nack([second.ack_id])
    monkeypatch.setattr(WatchedDeliveries, "settle", lambda *_: Pending.failed(Unavailable("nobody is there")))
    assert isinstance(first.ack().exception(0), Unavailable)
    assert not intake.holds(second)


def test_what_was_lost_by_our_own_clock_goes_back_to_the_broker_that_has_it_out(
    consumer: Consumer, intake: Intake
) -> None:
    """Two deliveries of one message, the first over, and both held up for longer than their leases."""
    consumer.publish("1", "2")
    intake._take(1)
    consumer.queue.nack([message.ack_id for message in intake._line.messages()][:1])
    intake._take(1, ahead=True)
    waiting = [*intake._line.messages()]
    assert [message.data for message in waiting] == [b"1", b"2", b"1", b"2"]
    intake._sure_until_us = 0
    for message in waiting:
        message._until_us = 0
    again = [consumer.next()]
    again[0].ack()
    intake.finished(again[0])
    again.append(consumer.next())
    assert [message.data for message in again] == [b"1", b"2"]
    assert not {message._lease for message in again} & {message._lease for message in waiting}
    assert not intake.doubts


def test_what_comes_while_it_is_stopped_goes_back(consumer: Consumer, intake: Intake) -> None:
    consumer.publish("1", "2")
    consumer.on_call = lambda name: intake.stop() if name == "taken" else None
    assert intake.next() is None
    intake.close()
    messages = consumer.queue.pull("worker", 10)
    assert [(message.data, message.delivery_attempt) for message in messages] == [(b"1", 1), (b"2", 1)]


def test_an_ack_that_comes_too_late_makes_it_ask_for_the_others(consumer: Consumer, intake: Intake) -> None:
    """Our timer did not run in time: the broker has taken all of the key back."""
    consumer.publish("1", "2", "3")
    first = consumer.next()
    assert intake._timer is not None
    intake._timer.cancel()
    consumer.clock.advance(11)
    with pytest.raises(InvalidAckId):
        first.ack().result(0)
    intake.finished(first)
    received: list[tuple[bytes, int]] = []
    while (message := intake.next()) is not None:
        received.append((message.data, message.delivery_attempt))
        message.ack()
        intake.finished(message)
    assert [data for data, _ in received] == [b"1", b"2", b"3"]


def test_a_subscription_that_is_gone_ends_it(consumer: Consumer, intake: Intake) -> None:
    consumer.publish("1", "2")
    first = consumer.next()
    consumer.queue.unregister_subscription("worker")
    woken = consumer.woken
    consumer.clock.advance(5)
    assert consumer.woken > woken
    with pytest.raises(SubscriptionNotFound):
        intake.next()
    with pytest.raises(InvalidAckId):
        first.ack().result(0)
    intake.finished(first)
    intake.stop()
    intake.close()
    assert intake._timer is None


def lose_the_lease(consumer: Consumer, intake: Intake) -> None:
    assert intake._timer is not None
    intake._timer.cancel()
    consumer.clock.advance(11)
    assert not intake.keep(list(intake._out.values()))


def change_the_rules(consumer: Consumer, intake: Intake) -> None:
    consumer.queue.update_subscription("worker", {"max_outstanding_per_key": 1})


@pytest.mark.parametrize("happens", [lose_the_lease, change_the_rules])
def test_what_was_given_out_and_may_not_be_handled_is_doubted_until_it_has_ended(
    consumer: Consumer, intake: Intake, happens: Callable[[Consumer, Intake], None]
) -> None:
    consumer.publish("1", "2")
    first = consumer.next()
    assert not intake.doubts
    assert intake.begin(first)
    happens(consumer, intake)
    assert intake.doubts
    assert not intake.begin(first)
    again = consumer.next()
    assert not intake.doubts
    assert again.data == b"1"
    assert intake.begin(again)


def before_a_gap(consumer: Consumer) -> Message:
    """A message that was given out, while a gap record of another key waits at the intake."""
    consumer.queue.update_subscription("worker", {"queue_limits": {"max_messages": 1, "when_full": "drop"}})
    consumer.publish("1", key="another")
    consumer.publish("dropped")
    first = consumer.next()
    assert first.data == b"1"
    return first


def test_a_gap_record_is_doubted_until_it_was_told(consumer: Consumer, intake: Intake) -> None:
    before_a_gap(consumer)
    gap = consumer.next()
    assert isinstance(gap._record[DATA], Gap)
    assert intake.doubts == {gap._lease}
    assert intake.begin(gap)
    gap.ack()
    intake.finished(gap)
    intake.flush()
    assert not intake.doubts


def test_a_gap_record_that_waits_is_no_doubt_once_it_was_taken_back(consumer: Consumer, intake: Intake) -> None:
    first = before_a_gap(consumer)
    assert intake.doubts
    change_the_rules(consumer, intake)
    assert not intake.holds(first)
    assert intake.doubts == {first._lease}


def test_what_was_lost_while_it_waited_is_no_doubt_once_it_was_passed_over(consumer: Consumer, intake: Intake) -> None:
    consumer.publish("1", "2")
    first = consumer.next()
    assert intake._timer is not None
    intake._timer.cancel()
    consumer.clock.advance(11)
    assert not intake.keep(list(intake._held.values()))
    intake.finished(first)
    received: list[bytes] = []
    while (message := intake.next()) is not None:
        received.append(message.data)
        message.ack()
        intake.finished(message)
    assert received == [b"1", b"2"]
    assert not intake.doubts


def test_an_ack_that_comes_too_late_leaves_another_message_as_it_is(consumer: Consumer, intake: Intake) -> None:
    consumer.publish("1", key="a")
    consumer.publish("2", key="b")
    late, other = intake.next_ones(2)
    lose(consumer, intake, late.data.decode())
    late.ack()
    intake.flush()
    assert intake._held == {other._lease: other}  # as many as were acked
    assert intake._out.keys() == {late._lease, other._lease}
    intake.finished(other)
    intake.flush()
    assert intake._out == {late._lease: late}


def test_what_is_acked_in_one_go_leaves_room_for_as_many_bytes(consumer: Consumer, intake: Intake) -> None:
    consumer.queue.update_subscription("worker", {"flow_control": {"max_messages": 100, "max_bytes": 10}})
    for _ in range(5):
        for key in "ab":
            consumer.publish("four", key=key)
        messages = intake.next_ones(10)
        assert [message.data for message in messages] == [b"four", b"four"]
        for message in messages:
            message.ack()
            intake.note_end(message)


def lose(consumer: Consumer, intake: Intake, text: str) -> None:
    """The broker takes back a message and all behind it, and the intake is told of that one alone."""
    [lost] = [message for message in intake._held.values() if message.data == text.encode()]
    consumer.queue.nack(lost.ack_id)
    assert intake._extend([lost._lease], 10).result() == [lost._lease]


def test_what_is_behind_a_message_that_was_lost_while_it_waited_does_not_go_before_it(
    consumer: Consumer, intake: Intake
) -> None:
    consumer.publish("1", "2", "3")
    first = consumer.next()
    lose(consumer, intake, "2")
    first.ack()
    intake.finished(first)
    assert consumer.next().data == b"2"


def test_what_is_behind_a_message_that_was_lost_before_its_handler_does_not_go_before_it(
    consumer: Consumer, intake: Intake
) -> None:
    consumer.publish("1", "2", "3")
    first = consumer.next()
    lose(consumer, intake, "1")
    assert not intake.begin(first)
    assert consumer.next().data == b"1"


def test_a_list_ends_before_what_is_behind_a_message_that_was_lost() -> None:
    consumer = Consumer(one_per_key=False)
    assert consumer.intake is not None
    consumer.publish("1", "2", "3", "4")
    consumer.publish("5", key="other")
    [first] = consumer.intake.next_ones(1)
    lose(consumer, consumer.intake, "2")
    first.ack()
    consumer.intake.finished(first)
    assert [message.data for message in consumer.intake.next_ones(10)] == [b"5"]
    assert [message.data for message in consumer.intake.next_ones(10)] == [b"2", b"3", b"4"]


def test_what_is_behind_a_message_that_was_given_back_does_not_go_before_it(consumer: Consumer, intake: Intake) -> None:
    consumer.publish("1", "2", "3")
    first = consumer.next()
    intake.give_back([first])
    intake.finished(first)
    again = consumer.next()
    assert (again.data, again.delivery_attempt) == (b"1", 1)


def test_what_waits_is_not_given_out_once_its_lease_is_over_by_our_own_clock(
    consumer: Consumer, intake: Intake
) -> None:
    """Nobody has said that it was extended: by now somebody else may have had it, and what comes after it."""
    consumer.publish("1", "2", "3")
    consumer.publish("4", key="other")
    first = consumer.next()
    consumer.cut_off = True
    consumer.clock.advance(11)
    assert {message.data for message in consumer.queue.pull("worker", 10)} == {b"1", b"2", b"3", b"4"}
    first.ack()
    intake.finished(first)
    assert intake.next() is None


def test_what_was_given_out_is_not_begun_once_its_lease_is_over_by_our_own_clock(
    consumer: Consumer, intake: Intake
) -> None:
    consumer.publish("1")
    consumer.publish("2", key="other")
    first, second = intake.next_ones(2)
    assert intake.begin(first)
    consumer.cut_off = True
    consumer.clock.advance(11)
    assert intake.doubts
    assert not intake.begin(second)
    assert intake.holds(first)  # it runs, and may be answered: perhaps the broker has extended it


def test_what_took_long_to_come_is_extended_at_once(consumer: Consumer, intake: Intake) -> None:
    consumer.publish("1")
    consumer.meanwhile("taken", lambda: consumer.clock.advance(4))
    consumer.next()
    assert consumer.calls[-2:] == ["taken", "extend"]
    consumer.clock.advance(7)  # now its first lease would be over
    assert not intake.doubts
    assert not consumer.queue.pull("worker", 1)


def test_what_took_longer_to_come_than_its_lease_lasts_is_not_given_out(consumer: Consumer, intake: Intake) -> None:
    consumer.publish("1", "2")
    consumer.cut_off = True  # nobody says that it is over
    consumer.meanwhile("taken", lambda: consumer.clock.advance(11))
    again = consumer.next()
    assert (again.data, again.delivery_attempt) == (b"1", 2)


def test_what_was_in_doubt_goes_on_when_the_broker_is_reached_again(consumer: Consumer, intake: Intake) -> None:
    consumer.publish("1", "2", "3")
    first = consumer.next()
    consumer.cut_off = True
    consumer.clock.advance(11)
    consumer.cut_off = False
    first.ack()
    intake.finished(first)
    received: list[bytes] = []
    while (message := intake.next()) is not None:
        received.append(message.data)
        message.ack()
        intake.finished(message)
    assert received == [b"1", b"2", b"3"]
    consumer.publish("4")
    consumer.next()
    consumer.clock.advance(5)
    assert not intake.doubts


def test_a_lease_is_kept_though_the_clock_was_set_back(consumer: Consumer, intake: Intake) -> None:
    consumer.publish("1")
    first = consumer.next()
    first.modify_ack_deadline(MAX_ACK_DEADLINE_SECONDS).result(0)
    consumer.clock._now_us -= 60 * MICROSECONDS
    assert intake._keep_leases().exception(0) is None
    assert intake.holds(first)


def test_a_lease_that_was_lost_after_its_handler_is_no_doubt(consumer: Consumer, intake: Intake) -> None:
    consumer.publish("1")
    first = consumer.next()
    intake.finished(first)
    assert intake._timer is not None
    intake._timer.cancel()
    consumer.clock.advance(11)
    with pytest.raises(InvalidAckId):
        first.modify_ack_deadline(20).result(0)
    assert not intake.doubts


@pytest.mark.parametrize("happens", ["stopped", "deleted"])
def test_what_was_given_out_before_the_end_is_doubted(consumer: Consumer, intake: Intake, happens: str) -> None:
    consumer.publish("1")
    first = consumer.next()
    if happens == "stopped":
        intake.stop()
    else:
        consumer.queue.unregister_subscription("worker")
    assert intake.doubts
    assert not intake.begin(first)


def test_threads_that_take_at_once_keep_a_key_in_order(consumer: Consumer, intake: Intake) -> None:
    consumer.intake = None  # whose lock another thread may hold at any time
    lock = threading.Lock()
    received: list[int] = []

    def work() -> None:
        while len(received) < 300:
            message = intake.next()
            if message is not None:
                with lock:
                    received.append(int(message.data))
                message.ack()
                intake.finished(message)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(300):
        consumer.publish(f"{number}")
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert received == list(range(300))


def in_another_thread(call: Callable[[], Any]) -> Any:
    """What it returns, or raises: it must not wait for this thread."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(call).result(30)


def test_who_comes_while_another_one_takes_leaves_it_to_that_one(consumer: Consumer, intake: Intake) -> None:
    def come_meanwhile() -> None:
        consumer.publish("1")
        assert in_another_thread(intake.next) is None

    consumer.meanwhile("taken", come_meanwhile)  # which found nothing
    assert consumer.next().data == b"1"


def test_what_comes_while_something_is_taken_is_looked_for(consumer: Consumer, intake: Intake) -> None:
    """Who has found something may be busy with it for long."""
    consumer.publish("1", key="a")

    def come_meanwhile() -> None:
        consumer.publish("2", key="b")
        assert in_another_thread(intake.next) is None

    consumer.meanwhile("taken", come_meanwhile)
    assert consumer.next().data == b"1"
    assert intake.more()
    assert consumer.next().data == b"2"
    assert intake.next() is None
    assert not intake.more()


@pytest.mark.parametrize("is_ready", [True, False])
def test_what_comes_while_a_key_goes_on_is_looked_for(consumer: Consumer, intake: Intake, is_ready: bool) -> None:
    """The next message of the key is ready here already, or the look for more makes it so: it is found first."""
    consumer.publish("1", "2", key="a")
    first = consumer.next()
    if is_ready:
        assert intake.next() is None
    else:
        intake.collect_answers(lambda: None)
    first.ack()
    intake.finished(first)
    consumer.publish("x", key="b")
    assert consumer.next().data == b"2"
    assert intake.more()
    assert consumer.next().data == b"x"


def test_what_is_left_when_as_much_was_taken_as_may_be_is_looked_for(consumer: Consumer, intake: Intake) -> None:
    for number in range(TAKE_AT_ONCE + 1):
        consumer.publish("x", key=f"{number}")
    assert len(intake.next_ones(TAKE_AT_ONCE)) == TAKE_AT_ONCE
    assert intake.more()
    assert len(intake.next_ones(TAKE_AT_ONCE)) == 1
    assert not intake.more()


class Interrupted:
    """A lock; whoever gets it first loses the interpreter to `meanwhile`."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._lock = threading.Lock()
        self._meanwhile: Callable[[], object] | None = meanwhile

    def acquire(self, *, blocking: bool = True) -> bool:
        taken = self._lock.acquire(blocking=blocking)
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return taken

    def release(self) -> None:
        self._lock.release()


@pytest.mark.parametrize("moment", ["begins", "sends"])
def test_a_key_that_goes_on_by_a_flush_of_another_thread_is_told(
    consumer: Consumer, intake: Intake, moment: str
) -> None:
    """Its own thread comes when the other one has begun to flush, or sends, and looks for more too early."""
    consumer.publish("1", "2", key="a")
    consumer.publish("x", key="b")
    first, other = consumer.next(), consumer.next()

    def end_and_look() -> Message | None:
        first.ack()
        intake.finished(first)
        return intake.next()

    found: list[Message | None] = []

    def meanwhile() -> None:
        found.append(in_another_thread(end_and_look))

    if moment == "begins":
        lock: Any = Interrupted(meanwhile)
        intake._flushing = lock
    else:
        consumer.meanwhile("settle", meanwhile)
    woken = consumer.woken
    other.ack()
    assert found == [None]
    assert consumer.woken > woken
    assert consumer.next().data == b"2"


def test_an_answer_that_comes_while_it_is_closed_is_sent(consumer: Consumer, intake: Intake) -> None:
    consumer.publish("1", key="a")
    consumer.publish("2", key="b")
    first, second = consumer.next(), consumer.next()
    intake.collect_answers(lambda: None)
    first.ack()
    answers: list[Pending[None]] = []
    intake.stop()
    consumer.meanwhile("settle", lambda: answers.append(in_another_thread(second.ack)))
    intake.close()
    assert [answer.done() for answer in answers] == [True]
    assert consumer.queue.metrics("worker").backlog_messages == 0


def test_who_is_told_of_an_answer_keeps_nobody_from_answering(consumer: Consumer, intake: Intake) -> None:
    consumer.publish("1", key="a")
    consumer.publish("2", key="b")
    first, second = consumer.next(), consumer.next()
    message_answered: list[bool] = []
    first._settled = answer = Pending[None]()
    answer.add_done_callback(lambda _: message_answered.append(in_another_thread(lambda: second.ack().done())))
    intake.ack(first, answer)
    assert message_answered == [True]


def test_an_answer_that_comes_while_others_are_sent_is_sent_by_the_same_thread(
    consumer: Consumer, intake: Intake
) -> None:
    consumer.publish("1", key="a")
    consumer.publish("2", key="b")
    first, second = consumer.next(), consumer.next()
    answers: list[Pending[None]] = []

    def answer_meanwhile() -> None:
        answers.append(in_another_thread(second.ack))
        assert not answers[0].done()

    consumer.meanwhile("settle", answer_meanwhile)
    assert first.ack().done()
    assert [answer.done() for answer in answers] == [True]
    intake.finished_together([first, second])
    assert consumer.queue.metrics("worker").backlog_messages == 0


def test_who_is_told_of_an_answer_may_close_it(consumer: Consumer, intake: Intake) -> None:
    consumer.publish("1")
    message = consumer.next()
    message._settled = answer = Pending[None]()
    answer.add_done_callback(lambda _: (intake.stop(), intake.close()))
    intake.ack(message, answer)
    assert answer.done()
    assert intake.next() is None


def test_messages_whose_ids_have_nothing_in_common_are_acked_in_one_call_too(
    consumer: Consumer, intake: Intake
) -> None:
    for key in "abc":
        consumer.publish("1", key=key)
    messages = intake.next_ones(3)
    for number, message in enumerate(messages):
        message._source = From(f"{number}-", intake)
    consumer.calls.clear()
    acked = intake.ack_together(messages)
    assert consumer.calls == ["settle"]
    assert acked.result(0) == [None, None, None]

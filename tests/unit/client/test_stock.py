"""Lists that wait go back when the broker has taken something back. It answers when the test says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from inorder.client.stock import Stock
from inorder.errors import Closed, InvalidAckId, SubscriptionNotFound, Unavailable
from inorder.message import Leased, Recipient
from inorder.options import SubscriptionOptions
from inorder.pending import Pending
from inorder.testing import ManualClock
from inorder.transport import TakenLists

OPTIONS = SubscriptionOptions(enable_message_ordering=True, max_outstanding_per_key=10, ack_deadline_seconds=60)


class Broker:
    """Its side of a stream: what was sent and not taken, and what was said and not answered."""

    id_prefix = ack_id_prefix = "e-0-"

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.terms: Any = SimpleNamespace(options=OPTIONS)
        self.sent: list[Leased] = []
        self.on_lease: Callable[[], None] = lambda: None
        self.said: list[tuple[str, list[int], Pending[Any]]] = []
        self.wakes = self.holds = 0
        self._next = 1

    def deliveries(self, *_: object) -> Broker:
        return self

    def send(self, *texts: str) -> None:
        leases = range(self._next, self._next + len(texts))
        self._next = leases.stop
        records = [
            (lease, text[0], text.encode(), None, 0, len(text), 0) for lease, text in zip(leases, texts, strict=True)
        ]
        self.sent.append(Leased(leases, [1] * len(texts), records, self.ack_id_prefix))

    def lease(self, max_messages: int, max_bytes: int, alone: bool, recipient: Recipient, room: int) -> TakenLists:
        batches, self.sent = self.sent, []
        options, now_us = self.terms.options, self.clock.now_us()
        on_lease, self.on_lease = self.on_lease, lambda: None
        on_lease()
        return TakenLists(batches, options, now_us)

    def hold(self) -> None:
        self.holds += 1

    def settle(self, acks: Sequence[int], nacks: Sequence[int]) -> Pending[list[int]]:
        return self._hear("ack" if acks else "nack", acks or nacks)

    def extend(self, leases: Sequence[int], seconds: float) -> Pending[list[int]]:
        return self._hear("keep", leases)

    def release(self, leases: Sequence[int], recipient: Recipient) -> Pending[None]:
        return self._hear("release", leases) if leases else Pending.of(None)

    def close(self) -> Pending[None]:
        return Pending.of(None)

    def _hear(self, word: str, leases: Sequence[int]) -> Pending[Any]:
        answer: Pending[Any] = Pending()
        self.said.append((word, [*leases], answer))
        return answer

    def answer(self, word: str, over: Sequence[int] | Exception = ()) -> list[int]:
        """Answer what was said first; returns the leases that were named."""
        said, leases, answer = self.said.pop(0)
        assert said == word
        if isinstance(over, Exception):
            answer.set_exception(over)
        else:
            answer.set_result([*over] if word != "release" else None)
        return leases

    def wake(self) -> None:
        self.wakes += 1


@pytest.fixture
def broker() -> Broker:
    return Broker()


def stock(broker: Broker, size: int = 2, ahead: int = 6) -> Stock:
    return Stock(broker, "worker", broker.wake, print, size, ahead)  # type: ignore[arg-type]


def texts(leased: Leased | None) -> list[str] | None:
    return None if leased is None else [data.decode() for data in leased.data]


def test_nothing_is_given_out_until_all_has_come_that_was_sent_before_a_failure_was_heard(broker: Broker) -> None:
    lists = stock(broker)
    broker.send("a1", "a2")
    broker.send("a3", "a4")
    at_hand = lists.next()
    assert texts(at_hand) == ["a1", "a2"]
    assert at_hand is not None
    failed = lists.nack(at_hand)
    assert broker.holds == 1, "or what is given back would be sent again at once, and again"
    assert lists.next() is None, "the broker has not heard it"
    broker.send("a5", "a6")  # before it did
    broker.answer("nack")
    assert failed.result() is None
    assert lists.next() is None, "with what goes back now, more of what is on its way may be taken back"
    broker.send("a7")
    assert broker.answer("release") == [3, 4, 5, 6]
    assert lists.next() is None
    wakes = broker.wakes
    assert broker.answer("release") == [7]
    assert broker.wakes > wakes
    broker.send("a1", "a2")
    assert texts(lists.next()) == ["a1", "a2"]


def with_one_acked_and_one_waiting(broker: Broker) -> tuple[Stock, Pending[None]]:
    lists = stock(broker, size=1)
    broker.send("a1")
    broker.send("a2")
    at_hand = lists.next()
    assert at_hand is not None
    return lists, lists.ack(at_hand)


def test_what_waits_goes_back_when_the_broker_says_that_an_ack_came_too_late(broker: Broker) -> None:
    lists, acked = with_one_acked_and_one_waiting(broker)
    assert texts(lists.next()) == ["a2"], "an ack that is on its way keeps nobody waiting"
    broker.send("a3")
    broker.answer("ack", [1])
    with pytest.raises(InvalidAckId) as caught:
        acked.result()
    assert caught.value.ack_ids == ("e-0-1",)
    assert broker.answer("release") == [3]
    assert broker.said == []


def test_what_waits_goes_back_when_nobody_says_what_became_of_an_ack(broker: Broker) -> None:
    lists, acked = with_one_acked_and_one_waiting(broker)
    broker.answer("ack", Unavailable("nobody is there"))
    assert isinstance(acked.exception(), Unavailable)
    assert lists.next() is None
    assert broker.answer("release") == [2]


def test_nothing_more_is_said_to_a_broker_that_was_closed(broker: Broker) -> None:
    lists = stock(broker, size=1)
    broker.send("a1")
    at_hand = lists.next()
    assert at_hand is not None
    lists.ack(at_hand)
    holds = broker.holds
    broker.answer("ack", Closed("this PubSub is closed"))
    assert broker.holds == holds
    assert broker.said == []


def test_what_waits_goes_back_when_a_lease_could_not_be_kept(broker: Broker) -> None:
    lists = stock(broker)
    broker.send("a1", "a2")
    broker.send("a3")
    at_hand = lists.next()
    assert at_hand is not None
    broker.clock.advance(31)
    assert broker.answer("keep", [1, 2]) == [1, 2, 3]
    assert broker.answer("release") == [3]
    with pytest.raises(InvalidAckId) as caught:
        lists.ack(at_hand).result()
    assert caught.value.ack_ids == ("e-0-1", "e-0-2"), "it is known here, and nobody is asked"
    assert broker.said == []


def test_what_waited_for_too_long_goes_back(broker: Broker) -> None:
    lists = stock(broker, size=1)
    broker.send("a1")
    broker.send("a2")
    at_hand = lists.next()
    assert at_hand is not None
    lists.ack(at_hand)
    broker.answer("ack")
    broker.clock.advance(31)
    broker.answer("keep", Unavailable("nobody is there"))
    broker.clock.advance(30)
    broker.said.clear()  # another try to keep them
    assert lists.next() is None
    assert broker.answer("release") == [2]
    broker.send("a2")
    assert texts(lists.next()) == ["a2"]


def test_what_was_kept_is_given_out(broker: Broker) -> None:
    lists = stock(broker)
    broker.send("a1")
    broker.send("a2", "a3")
    at_hand = lists.next()
    assert at_hand is not None
    for _ in range(4):
        broker.clock.advance(30)
        assert broker.answer("keep") == [1, 2, 3]
    lists.ack(at_hand)
    broker.answer("ack")
    assert texts(lists.next()) == ["a2", "a3"]


def test_what_was_taken_while_something_was_taken_back_goes_back(broker: Broker) -> None:
    lists = stock(broker)
    broker.send("a1", "a2")
    at_hand = lists.next()
    assert at_hand is not None
    acked = lists.ack(at_hand)
    broker.send("a3")  # sent before the broker heard that ack, which comes too late
    broker.on_lease = lambda: broker.answer("ack", [1, 2]) and None
    assert lists.next() is None
    assert acked.exception() is not None
    assert broker.answer("release") == [3]
    broker.send("a1")
    assert texts(lists.next()) == ["a1"]


def test_when_the_rules_of_order_change_what_waits_goes_back(broker: Broker) -> None:
    lists = stock(broker, size=1)
    broker.send("a1")
    broker.send("a2")
    at_hand = lists.next()
    assert at_hand is not None
    lists.ack(at_hand)
    broker.answer("ack")
    broker.terms.options = SubscriptionOptions(enable_message_ordering=True, ack_deadline_seconds=60)
    assert lists.next() is None
    assert broker.answer("release") == [2]
    broker.send("a2")
    assert texts(lists.next()) == ["a2"]


def test_other_options_change_nothing_for_what_waits(broker: Broker) -> None:
    lists = stock(broker, size=1)
    broker.send("a1")
    broker.send("a2")
    at_hand = lists.next()
    assert at_hand is not None
    lists.ack(at_hand)
    broker.terms.options = SubscriptionOptions(
        enable_message_ordering=True, max_outstanding_per_key=10, ack_deadline_seconds=20
    )
    assert texts(lists.next()) == ["a2"]
    assert broker.answer("ack") == [1]
    assert broker.answer("keep") == [2], "by the deadline that is in force by now"
    broker.clock.advance(10)
    assert broker.answer("keep") == [2]


def test_a_subscription_that_is_gone_is_told(broker: Broker) -> None:
    lists = stock(broker)
    broker.terms.options = None
    with pytest.raises(SubscriptionNotFound, match="worker"):
        lists.next()


def test_lists_are_cut_and_put_together(broker: Broker) -> None:
    lists = stock(broker, size=3, ahead=9)
    broker.send("a1", "a2", "a3", "a4", "a5")
    broker.send("b1")
    broker.send("b2")
    given = []
    while (leased := lists.next()) is not None:
        given.append((texts(leased), [*leased.leases]))
        lists.ack(leased)
    assert given == [(["a1", "a2", "a3"], [1, 2, 3]), (["a4", "a5", "b1"], [4, 5, 6]), (["b2"], [7])]
    assert [leases for _, leases, _ in broker.said] == [[1, 2, 3], [4, 5, 6], [7]]


def test_what_waits_goes_back_at_the_end_and_nobody_keeps_what_is_at_hand(broker: Broker) -> None:
    lists = stock(broker, size=1)
    broker.send("a1")
    broker.send("a2")
    at_hand = lists.next()
    assert at_hand is not None
    gone_back = lists.stop()
    assert not gone_back.done()
    assert broker.answer("release") == [2]
    assert gone_back.done()
    lists.leave(given=True)
    broker.clock.advance(120)
    assert broker.said == []
    lists.ack(at_hand)
    assert broker.answer("ack") == [1]
    assert lists.next() is None

"""A producer that numbers its attempts may repeat them: each is stored once, in its place."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from inorder import Message
from inorder.broker import MessageQueue
from inorder.core import producers
from inorder.core.producers import Attempt
from inorder.errors import InvalidArgument, OutOfSequence, ProducerFenced, TooLongAgo, TopicNotFound
from inorder.message import batch_of
from inorder.options import QueueLimits, SubscriptionOptions
from inorder.testing.clock import ManualClock

DAY_SECONDS = 24 * 3600


@pytest.fixture(params=["memory", "segments", "sqlite"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MessageQueue]:
    clock = ManualClock()
    if request.param == "memory":
        queue = MessageQueue(clock=clock)
    else:
        queue = MessageQueue.open(tmp_path, clock=clock, journal=request.param)
    queue.register_topic("orders")
    queue.register_subscription("all", "orders")
    yield queue
    queue.close()


def publish(queue: MessageQueue, attempt: Attempt, *texts: str) -> list[str]:
    return queue.submit(
        "orders", batch_of([Message(text.encode(), ordering_key="k") for text in texts]), attempt
    ).result()


def stored(queue: MessageQueue) -> list[str]:
    found: list[str] = []
    while messages := queue.pull("all", 1000):
        found += [message.data.decode() for message in messages]
        queue.ack(messages)
    return found


def test_a_repeated_attempt_is_stored_once_and_answered_alike(queue: MessageQueue) -> None:
    first = publish(queue, Attempt("p", 0, 0), "a", "b")
    second = publish(queue, Attempt("p", 0, 1), "c")
    assert publish(queue, Attempt("p", 0, 0), "a", "b") == first
    assert publish(queue, Attempt("p", 0, 1), "c") == second
    assert stored(queue) == ["a", "b", "c"]


def test_an_attempt_waits_for_the_one_before_it(queue: MessageQueue) -> None:
    publish(queue, Attempt("p", 0, 0), "a")
    with pytest.raises(OutOfSequence, match="attempt 2 of producer 'p': the next one is 1"):
        publish(queue, Attempt("p", 0, 2), "c")
    publish(queue, Attempt("p", 0, 1), "b")
    publish(queue, Attempt("p", 0, 2), "c")
    assert stored(queue) == ["a", "b", "c"]


def test_producers_do_not_know_each_other(queue: MessageQueue) -> None:
    publish(queue, Attempt("p", 0, 0), "a")
    publish(queue, Attempt("q", 0, 0), "b")
    assert stored(queue) == ["a", "b"]


def test_a_producer_that_starts_again_fences_its_earlier_life(queue: MessageQueue) -> None:
    first = queue.open_producer("orders", "p")
    publish(queue, Attempt("p", first, 0), "a")
    second = queue.open_producer("orders", "p")
    assert second > first
    with pytest.raises(ProducerFenced, match=f"it is in epoch {second}, and attempts of epoch {first} are refused"):
        publish(queue, Attempt("p", first, 1), "late")
    publish(queue, Attempt("p", second, 0), "b")
    assert stored(queue) == ["a", "b"]


def test_a_producer_that_was_away_goes_on_unless_somebody_has_its_name_now(queue: MessageQueue) -> None:
    first = queue.open_producer("orders", "p")
    second = queue.open_producer("orders", "p", first)
    publish(queue, Attempt("p", second, 0), "a")
    with pytest.raises(ProducerFenced):
        publish(queue, Attempt("p", first, 0), "late")
    other = queue.open_producer("orders", "p")
    with pytest.raises(ProducerFenced, match=f"it is in epoch {other}, and attempts of epoch {second} are refused"):
        queue.open_producer("orders", "p", second)
    publish(queue, Attempt("p", other, 0), "b")
    assert stored(queue) == ["a", "b"]


def test_going_on_may_be_asked_for_again_when_the_answer_was_lost(queue: MessageQueue) -> None:
    first = queue.open_producer("orders", "p")
    assert queue.open_producer("orders", "p", first) == queue.open_producer("orders", "p", first) > first
    queue.clock.advance(DAY_SECONDS + 1)  # type: ignore[attr-defined]
    publish(queue, Attempt("q", 0, 0), "a")  # and with that p is forgotten
    assert queue.open_producer("orders", "p", first) == queue.open_producer("orders", "p", first) > first


@pytest.mark.parametrize("held", [-1, 2**53 + 1, 2**64 - 1, "1"])
def test_an_epoch_that_nobody_can_have_had_is_refused(queue: MessageQueue, held: int) -> None:
    with pytest.raises(InvalidArgument, match="held_epoch"):
        queue.open_producer("orders", "p", held)


def test_an_epoch_that_nobody_opened_is_refused(queue: MessageQueue) -> None:
    with pytest.raises(OutOfSequence, match="was not opened in epoch 7"):
        publish(queue, Attempt("p", 7, 0), "a")


@pytest.mark.parametrize(
    ("attempt", "said"),
    [
        (Attempt("", 0, 0), "producer: a string of 1 to 200 characters, not ''"),
        (Attempt("p" * 201, 0, 0), "producer: a string of 1 to 200 characters"),
        (Attempt("\ud800", 0, 0), "producer: not valid UTF-8"),
        (Attempt("p", -1, 0), "epoch"),
        (Attempt("p", 0, -1), "number"),
    ],
)
def test_a_bad_attempt_is_refused(queue: MessageQueue, attempt: Attempt, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        publish(queue, attempt, "a")
    assert stored(queue) == []


def test_an_attempt_does_not_change_its_size(queue: MessageQueue) -> None:
    publish(queue, Attempt("p", 0, 0), "a", "b")
    with pytest.raises(InvalidArgument, match="attempt 0 of producer 'p' had 2 messages, and now it has 1"):
        publish(queue, Attempt("p", 0, 0), "a")
    with pytest.raises(InvalidArgument, match="one message at least"):
        publish(queue, Attempt("p", 0, 1))


def test_a_topic_that_is_not_there(queue: MessageQueue) -> None:
    with pytest.raises(TopicNotFound):
        queue.open_producer("nowhere", "p")
    with pytest.raises(TopicNotFound):
        queue.submit("nowhere", batch_of([Message(b"a")]), Attempt("p", 0, 0)).result()


def test_ids_of_the_last_attempts_are_known(queue: MessageQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "REMEMBERED_ATTEMPTS", 3)
    ids = [publish(queue, Attempt("p", 0, number), str(number)) for number in range(5)]
    assert [publish(queue, Attempt("p", 0, number), str(number)) for number in (2, 3, 4)] == ids[2:]
    with pytest.raises(TooLongAgo, match="attempt 1 of producer 'p' was stored too long ago: ids are known from 2 on"):
        publish(queue, Attempt("p", 0, 1), "1")


def test_a_silent_producer_is_forgotten(queue: MessageQueue) -> None:
    publish(queue, Attempt("p", 0, 0), "a")
    queue.clock.advance(DAY_SECONDS + 1)  # type: ignore[attr-defined]
    publish(queue, Attempt("q", 0, 0), "b")
    with pytest.raises(OutOfSequence, match="attempt 1 of producer 'p': the next one is 0"):
        publish(queue, Attempt("p", 0, 1), "c")
    publish(queue, Attempt("p", 0, 0), "a")  # as of a new producer, since it was not opened
    assert queue.get_topic("orders").next_position == 3  # type: ignore[union-attr]


def test_a_producer_that_goes_on_is_not_forgotten(queue: MessageQueue) -> None:
    for number in range(4):
        publish(queue, Attempt("p", 0, number), f"{number}")
        queue.clock.advance(DAY_SECONDS / 2 + 1)  # type: ignore[attr-defined]
        publish(queue, Attempt("q", 0, number), f"{number}")  # others look who is silent
    assert queue.get_topic("orders").next_position == 8  # type: ignore[union-attr]


def test_a_producer_that_was_opened_again_is_not_the_next_to_be_forgotten(
    queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "MAX_PRODUCERS", 2)
    for name in "pq":
        queue.open_producer("orders", name)
    epoch = queue.open_producer("orders", "p")
    queue.open_producer("orders", "r")
    publish(queue, Attempt("p", epoch, 0), "a")


def test_the_letters_of_a_name_are_counted_and_not_its_bytes(queue: MessageQueue) -> None:
    publish(queue, Attempt("é" * 200, 0, 0), "a")
    with pytest.raises(InvalidArgument, match="producer: a string of 1 to 200 characters"):
        publish(queue, Attempt("é" * 201, 0, 0), "a")


def test_an_epoch_is_never_used_again(queue: MessageQueue) -> None:
    first = queue.open_producer("orders", "p")
    queue.clock.advance(DAY_SECONDS + 1)  # type: ignore[attr-defined]
    publish(queue, Attempt("q", 0, 0), "a")
    assert queue.open_producer("orders", "p") > first
    with pytest.raises(ProducerFenced):
        publish(queue, Attempt("p", first, 0), "zombie")


def test_there_are_not_more_producers_than_a_topic_can_remember(
    queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producers, "MAX_PRODUCERS", 3)
    for name in "pqrs":
        publish(queue, Attempt(name, 0, 0), name)
    publish(queue, Attempt("s", 0, 1), "t")
    with pytest.raises(OutOfSequence):
        publish(queue, Attempt("p", 0, 1), "u")


def test_what_is_known_survives_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for journal in ("segments", "sqlite"):
        folder = tmp_path / journal
        queue = MessageQueue.open(folder, journal=journal)
        queue.register_topic("orders")
        queue.register_subscription("all", "orders")
        epoch = queue.open_producer("orders", "named")
        ids = publish(queue, Attempt("p", 0, 0), "a", "b")
        publish(queue, Attempt("named", epoch, 0), "c")
        queue.close()
        queue = MessageQueue.open(folder, journal=journal)
        assert publish(queue, Attempt("p", 0, 0), "a", "b") == ids
        publish(queue, Attempt("p", 0, 1), "d")
        publish(queue, Attempt("named", epoch, 1), "e")
        assert queue.open_producer("orders", "named") > epoch
        assert stored(queue) == ["a", "b", "c", "d", "e"]
        queue.close()


def test_attempts_that_wait_for_room_keep_their_turn_and_are_stored_once() -> None:
    queue = MessageQueue(clock=ManualClock())
    queue.register_topic("orders")
    full = SubscriptionOptions(queue_limits=QueueLimits(max_messages=1, when_full="block"))
    queue.register_subscription("all", "orders", full)
    publish(queue, Attempt("p", 0, 0), "a")
    batches = [batch_of([Message(text.encode())]) for text in "bbc"]
    answers = [
        queue.submit("orders", batch, Attempt("p", 0, number)) for batch, number in zip(batches, (1, 1, 2), strict=True)
    ]
    assert not any(answer.done() for answer in answers)
    assert stored(queue) == ["a", "b", "c"]
    assert answers[0].result() == answers[1].result() != answers[2].result()

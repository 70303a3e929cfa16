"""The checker says nothing of what is legal, and names what is not."""

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from inorder.pending import Pending
from inorder.testing.history import Anomalies, Anomaly, Event, History, Kind, Name, anomalies, merged

Events = list[Event]


def published(*values: Hashable, key: Hashable = "k") -> Events:
    return [Event("published", key, value) for value in values]


def events(kinds: str, value: Hashable, consumer: str = "", key: Hashable = "k") -> Events:
    """The events of one message, such as "started finished acked"."""
    return [Event(_kind(kind), key, value, consumer) for kind in kinds.split()]


def _kind(kind: Any) -> Kind:
    return kind  # type: ignore[no-any-return]


def delivered(*values: Hashable, key: Hashable = "k") -> Events:
    return [event for value in values for event in events("started finished acking acked", value, key=key)]


def said(found: Anomalies) -> list[tuple[Name, tuple[Hashable, ...]]]:
    return [(anomaly.name, anomaly.values) for anomaly in found]


class TestAnomalies:
    def test_a_message_that_never_comes_is_lost(self) -> None:
        found = anomalies(published(1, 2, 3) + delivered(1, 3))
        assert said(found) == [("lost", (2,))]
        assert found.lost[0].sentence == "key 'k': 2 was published, but never delivered"
        assert found.lost[0].order == 1

    def test_a_message_that_only_ever_fails_is_lost(self) -> None:
        found = anomalies(published(1) + events("started failed started failed", 1))
        assert said(found) == [("lost", (1,))]
        assert str(found.lost[0]) == ("lost: key 'k': 1 was published and started 2 times, but no handler finished it")

    def test_a_message_without_a_key_can_be_lost_too(self) -> None:
        found = anomalies(published(1, key=None))
        assert said(found) == [("lost", (1,))]
        assert found.lost[0].sentence == "no key: 1 was published, but never delivered"

    def test_nothing_is_lost_while_more_may_come(self) -> None:
        assert not anomalies(published(1, 2) + delivered(1), complete=False)

    def test_two_messages_in_the_wrong_order_are_reordered(self) -> None:
        found = anomalies(published(1, 2) + delivered(2, 1))
        assert said(found) == [("reordered", (1, 2))]
        assert found.reordered[0].sentence == ("key 'k': 2 was started before 1 was done, and 1 was published first")
        assert found.reordered[0].order == 2

    def test_a_message_that_passes_a_failed_one_reorders_it(self) -> None:
        found = anomalies(published(1, 2) + events("started failed", 1) + delivered(2, 1))
        assert said(found) == [("reordered", (1, 2))]

    def test_a_message_is_said_to_be_overtaken_once_by_the_first_that_did(self) -> None:
        found = anomalies(published(1, 2, 3, 4) + delivered(3, 4, 2, 1))
        assert said(found) == [("reordered", (1, 3)), ("reordered", (2, 3))]

    def test_a_message_that_comes_again_unacked_after_a_later_ack_is_reordered(self) -> None:
        found = anomalies(published(1, 2) + events("started finished", 1) + delivered(2, 1))
        assert said(found) == [("reordered", (1, 2))]
        assert found.reordered[0].sentence == ("key 'k': 1 was started after 2 was acked, and 1 was published first")
        assert found.reordered[0].order == 7

    def test_a_message_overtaken_in_both_ways_is_said_to_be_so_once(self) -> None:
        first = events("started failed", 1) + events("started finished", 2) + events("started finished", 1)
        found = anomalies(published(1, 2, 3) + first + delivered(3) + events("started", 1))
        assert said(found) == [("reordered", (1, 2))]

    def test_a_gap_told_too_late_is_reordered(self) -> None:
        found = anomalies(published(1, 2) + delivered(2) + events("gap", 1))
        assert said(found) == [("reordered", (1, 2))]

    def test_a_message_that_is_passed_is_reordered_even_before_it_comes(self) -> None:
        found = anomalies(published(1, 2) + delivered(2), complete=False)
        assert said(found) == [("reordered", (1, 2))]

    def test_two_runs_at_once_of_different_messages_overlap(self) -> None:
        starts = events("started", 1, "a") + events("started", 2, "b")
        ends = events("finished", 1, "a") + events("finished", 2, "b")
        found = anomalies(published(1, 2) + starts + ends)
        assert said(found) == [("reordered", (1, 2)), ("overlapping", (1, 2))]
        assert found.overlapping[0].sentence == "key 'k': a run of 2 by b started during one of 1 by a"

    def test_two_runs_at_once_of_one_message_overlap(self) -> None:
        found = anomalies(published(1) + events("started started finished finished", 1))
        assert said(found) == [("overlapping", (1, 1))]

    def test_every_run_that_starts_during_a_long_one_overlaps(self) -> None:
        again = events("started finished", 1, "b")
        found = anomalies(published(1) + events("started", 1, "a") + again * 3 + events("failed", 1, "a"))
        assert said(found) == [("overlapping", (1, 1))] * 3

    def test_a_run_without_an_end_that_starts_during_another_overlaps(self) -> None:
        runs = events("started", 1, "a") + events("started", 1, "b") + events("finished", 1, "a")
        assert said(anomalies(published(1) + runs)) == [("overlapping", (1, 1))]

    def test_a_message_nobody_published_is_a_phantom(self) -> None:
        found = anomalies(published(1) + delivered(1, "ghost"))
        assert said(found) == [("phantom", ("ghost",))]
        assert found.phantom[0].sentence == "key 'k': 'ghost' was delivered, but never published"

    def test_a_message_under_another_key_is_lost_and_a_phantom(self) -> None:
        found = anomalies(published(1) + delivered(1, key="other"))
        assert [(anomaly.name, anomaly.key) for anomaly in found] == [("lost", "k"), ("phantom", "other")]

    def test_all_of_them_at_once(self) -> None:
        runs = events("started started finished finished", 3) + delivered(2, "ghost")
        found = anomalies(published(1, 2, 3) + runs)
        assert found.names == {"lost", "reordered", "overlapping", "phantom"}
        assert len(found) == 4

    def test_an_unknown_kind_of_event_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no event is of the kind 'pubished'"):
            anomalies([("pubished", "k", 1)])


class TestLegalHistories:
    def test_plain_tuples_in_order(self) -> None:
        assert not anomalies([("published", "k", 1), ("started", "k", 1), ("acked", "k", 1)])

    def test_an_empty_history(self) -> None:
        assert not anomalies([])

    def test_a_redelivery_before_the_ack(self) -> None:
        failures = events("started failed started started finished", 1)
        found = anomalies(published(1, 2) + failures + delivered(1, 2))
        assert not found
        assert (found.redeliveries, found.duplicates) == (3, 0)

    def test_a_duplicate_after_its_ack_even_behind_later_messages(self) -> None:
        found = anomalies(published(1, 2) + delivered(1, 2, 1))
        assert not found
        assert (found.redeliveries, found.duplicates) == (0, 1)

    def test_a_duplicate_of_a_message_whose_ack_was_late(self) -> None:
        late = events("started finished", 1, "slow") + events("started failed", 1, "quick")
        found = anomalies(published(1, 2) + late + events("acked", 1, "slow") + delivered(2, 1))
        assert not found
        assert (found.redeliveries, found.duplicates) == (1, 1)

    def test_a_stale_delivery_whose_ack_was_sent_and_never_answered(self) -> None:
        assert not anomalies(published(1, 2) + events("started acking", 1) + delivered(2, 1))

    def test_a_window_of_messages_that_comes_again_because_no_ack_arrived(self) -> None:
        finished = events("started finished", 1) + events("started finished", 2)
        assert not anomalies(published(1, 2) + finished + delivered(1, 2))

    def test_an_unanswered_publish_that_never_comes(self) -> None:
        assert not anomalies([Event("publishing", "k", 0), *published(1), *delivered(1)])

    @pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (1, 2, 0)])
    def test_an_unanswered_publish_that_comes_at_any_time(self, order: tuple[int, ...]) -> None:
        assert not anomalies([Event("publishing", "k", 0), *published(1, 2), *delivered(*order)])

    def test_a_delivery_before_the_publisher_recorded_its_answer(self) -> None:
        assert not anomalies([*delivered(1), *published(1, 2), *delivered(2)])

    def test_a_publish_answered_twice(self) -> None:
        found = anomalies(published(1, 2, 1) + delivered(1, 2))
        assert not found
        assert found.messages == 2

    def test_a_gap_in_the_place_of_its_message(self) -> None:
        assert not anomalies(published(1, 2, 3) + delivered(1) + events("gap", 2) + delivered(3))

    def test_a_message_that_comes_although_a_gap_was_told(self) -> None:
        assert not anomalies(published(1, 2) + events("started failed gap", 1) + delivered(2, 1))

    def test_a_gap_without_names_stands_for_the_next_messages(self) -> None:
        gap = [Event("missing", "k", 2)]
        assert not anomalies(published(1, 2, 3, 4) + delivered(1) + gap + delivered(4))
        assert said(anomalies(published(1, 2, 3, 4) + gap + delivered(4))) == [("lost", (3,))]

    def test_a_gap_without_names_at_the_end_of_its_key(self) -> None:
        assert not anomalies([*published(1), Event("missing", "k", 2)])

    def test_keys_in_any_order_and_at_once(self) -> None:
        starts = events("started", 1, "a", key="x") + events("started", 2, "b", key="y")
        ends = events("acking", 1, "a", key="x") + events("acking", 2, "b", key="y")
        assert not anomalies(published(2, key="y") + published(1, key="x") + starts + ends)

    @pytest.mark.parametrize("key", [None, ""])
    def test_messages_without_a_key_in_any_order_and_at_once(self, key: str | None) -> None:
        starts = events("started", 3, key=key) + events("started", 1, key=key)
        ends = events("finished", 3, key=key) + events("finished", 1, key=key)
        found = anomalies(published(1, 2, 3, key=key) + starts + ends + delivered(2, key=key))
        assert not found
        assert (found.unordered, found.keys) == (3, 0)

    def test_the_next_message_while_a_handler_that_acked_is_still_returning(self) -> None:
        first = events("started acking", 1, "a")
        found = anomalies(published(1, 2) + first + delivered(2) + events("acked finished", 1, "a"))
        assert not found

    def test_a_late_ack_does_not_end_an_earlier_run_of_a_consumer_that_died(self) -> None:
        assert not anomalies(published(1) + events("started started finished acked", 1))
        assert not anomalies(published(1) + events("started started acking finished", 1))


class TestVerdict:
    def test_a_good_history(self) -> None:
        history: Events = []
        for key in range(40):
            history += published(*range(30), key=key) + delivered(*range(30), key=key)
        history += delivered(29, 29, key=0) + published("again", key=0) + events("started failed", "again", key=0)
        history += delivered("again", key=0)
        assert str(anomalies(history)) == ("1,201 messages of 40 keys: in order, none lost; 1 redelivery, 2 duplicates")

    def test_an_unfinished_history(self) -> None:
        found = anomalies(published(1), complete=False)
        assert str(found) == "1 message of 1 key: nothing wrong so far; 0 redeliveries, 0 duplicates"

    def test_messages_without_a_key(self) -> None:
        unordered = published(1, key=None) + delivered(1, key=None)
        assert str(anomalies(unordered)) == ("1 message without a key: none lost; 0 redeliveries, 0 duplicates")
        assert str(anomalies(unordered + published(1) + delivered(1))) == (
            "2 messages of 1 key (1 without a key): in order, none lost; 0 redeliveries, 0 duplicates"
        )

    def test_a_bad_history_shows_the_first_few_of_each_kind(self) -> None:
        assert str(anomalies(published(*range(1200)) + delivered("ghost"))).splitlines() == [
            "1,200 messages of 1 key: 1,200 lost, 1 phantom; 0 redeliveries, 0 duplicates",
            "  lost: key 'k': 0 was published, but never delivered",
            "  lost: key 'k': 1 was published, but never delivered",
            "  lost: key 'k': 2 was published, but never delivered",
            "  lost: and 1,197 more",
            "  phantom: key 'k': 'ghost' was delivered, but never published",
        ]

    def test_a_large_value_is_shortened(self) -> None:
        (anomaly,) = anomalies(published(b"x" * 10_000))
        assert len(str(anomaly)) < 200

    def test_a_hundred_thousand_anomalies_of_one_key_are_found_in_no_time(self) -> None:
        values = range(50_000)
        at_once = [Event("started", "k", value) for value in reversed(values)]
        at_once += [Event("finished", "k", value) for value in values]
        assert len(anomalies([*published(*values), *at_once])) == 2 * 49_999


class TestHistory:
    def test_it_keeps_what_was_recorded_in_order(self) -> None:
        history = History()
        history.publishing("k", 1)
        history.published("k", 1)
        history.started("k", 1, "a")
        history.failed("k", 1, "a")
        history.started("k", 1, "b")
        history.finished("k", 1, "b")
        history.acking("k", 1, "b")
        history.acked("k", 1, "b")
        history.gap("k", 2)
        history.missing("k", 3)
        kinds = "publishing published started failed started finished acking acked gap missing"
        assert [event.kind for event in history] == kinds.split()
        assert [event.order for event in history] == list(range(10))
        assert len(history) == 10
        assert not anomalies(history)

    def test_iterating_is_not_disturbed_by_what_comes_later(self) -> None:
        history = History()
        history.published("k", 1)
        for event in history:
            history.published("k", event.order)
        assert len(history) == 2

    def test_threads_share_it(self) -> None:
        moments = itertools.count()

        def now_us() -> int:
            now_us = next(moments)
            time.sleep(0)  # lets another thread in, where the lock does
            return now_us

        history = History(now_us)

        def consume(key: int) -> None:
            for value in range(500):
                history.published(key, value)
                history.started(key, value)
                history.finished(key, value)

        threads = [threading.Thread(target=consume, args=(key,)) for key in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [event.order for event in history] == list(range(6000))
        assert [event.time_us for event in history] == list(range(6000))
        assert not anomalies(history)


class TestMerged:
    def test_parts_are_sorted_by_time(self) -> None:
        now_us = iter([1, 3, 5, 2, 4, 6]).__next__
        publisher, consumer = History(now_us), History(now_us)
        for value in range(3):
            publisher.published("k", value)
        for value in range(3):
            consumer.started("k", value)
        events = merged(publisher, consumer)
        assert [(event.kind, event.value) for event in events] == [
            (kind, value) for value in range(3) for kind in ("published", "started")
        ]
        assert [event.order for event in events] == list(range(6))

    def test_a_part_without_times_is_refused(self) -> None:
        history = History()
        history.published("k", 1)
        with pytest.raises(ValueError, match="every event needs a time"):
            merged(history)


class FakeMessage(SimpleNamespace):
    ordering_key = "k"
    data = b"1"
    length = 1

    def ack(self) -> Any:
        return self.answer

    nack = ack

    def modify_ack_deadline(self, seconds: float) -> Any:
        return self.answer


def recorded(fn: Callable[[Any], Any] | None, answer: Any = None) -> str:
    """What is recorded of one message handled by `fn`."""
    history = History()
    history.handler(fn, consumer="me")(FakeMessage(answer=answer))
    assert all(event[1:4] == ("k", b"1", "me") for event in history)
    return " ".join(event.kind for event in history)


class TestHandler:
    def test_without_a_function_it_acks(self) -> None:
        assert recorded(None) == "started acking acked finished"

    def test_a_handler_that_does_not_answer_only_finishes(self) -> None:
        assert recorded(lambda message: message.length) == "started finished"

    def test_an_ack_is_recorded_once_it_is_answered(self) -> None:
        history = History()
        answer: Pending[None] = Pending()
        history.handler()(FakeMessage(answer=answer))
        assert [event.kind for event in history] == ["started", "acking", "finished"]
        answer.set_result(None)
        assert [event.kind for event in history][3:] == ["acked"]

    def test_a_refused_ack_is_not_recorded_as_answered(self) -> None:
        assert recorded(None, Pending.failed(RuntimeError())) == "started acking finished"

    def test_a_nack_is_a_failure(self) -> None:
        assert recorded(lambda message: message.nack()) == "started failed"
        assert recorded(lambda message: message.modify_ack_deadline(0)) == "started failed"

    def test_more_time_is_not(self) -> None:
        assert recorded(lambda message: message.modify_ack_deadline(10)) == "started finished"

    def test_an_ack_after_a_nack_is_none(self) -> None:
        assert recorded(lambda message: (message.nack(), message.ack())) == "started failed"

    def test_an_exception_is_a_failure_and_goes_on(self) -> None:
        history = History()
        with pytest.raises(ZeroDivisionError):
            history.handler(lambda message: 1 // 0)(FakeMessage())
        assert [event.kind for event in history] == ["started", "failed"]

    def test_a_coroutine_is_awaited(self) -> None:
        history = History()

        async def handle(message: Any) -> str:
            await asyncio.sleep(0)
            message.ack()
            return "done"

        handler = history.handler(handle, value=lambda message: message.length)
        assert asyncio.run(handler(FakeMessage(answer=None))) == "done"
        assert [event.kind for event in history] == ["started", "acking", "acked", "finished"]
        assert {event.value for event in history} == {1}

    @pytest.mark.parametrize("kind", ["an object", "a def"])
    def test_whatever_else_is_awaited_ends_when_it_has_been(self, kind: str) -> None:
        class Handler:
            async def __call__(self, message: Any) -> None:
                await asyncio.sleep(0)

        async def two_at_once(handler: Callable[[Any], Any]) -> None:
            await asyncio.gather(*(handler(FakeMessage(answer=None)) for _ in range(2)))

        history = History()
        history.published("k", b"1")
        called = Handler()
        handler = history.handler(called if kind == "an object" else lambda message: called(message))
        assert asyncio.iscoroutinefunction(handler) == (kind == "an object")
        asyncio.run(two_at_once(handler))
        assert anomalies(history).names == {"overlapping"}


# A publisher, a broker and its consumers, who do all that they may and nothing else.


def legal_history(random: Random) -> Events:
    sources = [legal_key(random, key) for key in ("a", "b", "c")]
    sources.append([event._replace(key=None) for event in shuffled(random, legal_key(random, "d"))])
    turns = [source for source in sources for _ in source]
    rest = {id(source): iter(source) for source in sources}
    return [next(rest[id(source)]) for source in shuffled(random, turns)]


def shuffled(random: Random, items: list[Any]) -> list[Any]:
    return random.sample(items, len(items))


def legal_key(random: Random, key: str) -> Events:
    log: deque[int] = deque()
    publisher, consumers = publishes(random, key, log), deliveries(random, key, log)
    history: Events = []
    publishing = True
    while True:
        if publishing and random.random() < 0.5:
            event = next(publisher, None)
            publishing = event is not None
        else:
            event = next(consumers)
            if event is None and not publishing:
                return history
        if event is not None:
            history.append(event)


def publishes(random: Random, key: str, log: deque[int]) -> Iterator[Event]:
    for value in range(random.randrange(1, 8)):
        yield Event("publishing", key, value)
        if random.random() < 0.9:
            log.append(value)
            if random.random() < 0.9:
                yield Event("published", key, value)


def deliveries(random: Random, key: str, log: deque[int]) -> Iterator[Event | None]:
    """Events without end; None whenever all that was published is acked."""
    acked: list[int] = []
    late: deque[Event] = deque()
    for attempt in itertools.count():
        consumer = f"consumer {attempt}"
        if late and (not log or random.random() < 0.5):
            yield late.popleft()
        elif acked and random.random() < 0.1:
            yield from events("started finished", random.choice(acked), consumer, key)
        elif not log:
            yield None
        elif random.random() < 0.1:
            yield Event("gap", key, log.popleft(), consumer)
        else:
            arrives = random.random() < 0.5
            now, later = random.choice(ACKED if arrives else NOT_ACKED)
            yield from events(now, log[0], consumer, key)
            if arrives:
                late += events(later, log[0], consumer, key)
                acked.append(log.popleft())


# What is recorded before anything else of the key can happen, and what may be recorded later.
ACKED = [
    ("started finished acking acked", ""),
    ("started acking acked", ""),
    ("started finished acking", "acked"),
    ("started acking", "acked finished"),
    ("started finished acking", ""),
]
# The last of these did send an ack, which did not arrive.
NOT_ACKED = [
    ("started", ""),
    ("started failed", ""),
    ("started finished", ""),
    ("started finished acking", ""),
]

seeds = st.integers(0, 2**32 - 1)


def of_one_message(event: Event, key: Hashable, value: Hashable) -> bool:
    return (event.key, event.value) == (key, value)


def is_publish(event: Event) -> bool:
    return event.kind in ("publishing", "published")


def answered_and_delivered(history: Events) -> list[tuple[Hashable, Hashable]]:
    """The messages that must be done, and were not given up by a gap, in order of publishing."""
    gaps = {(event.key, event.value) for event in history if event.kind == "gap"}
    answered = [(event.key, event.value) for event in history if event.kind == "published"]
    return [message for message in answered if message not in gaps]


class TestGeneratedHistories:
    @given(seeds)
    def test_nothing_is_said_of_a_legal_history(self, seed: int) -> None:
        found = anomalies(legal_history(Random(seed)))
        assert not found, str(found)

    @given(seeds, st.integers(0))
    def test_nothing_is_said_of_its_beginning(self, seed: int, length: int) -> None:
        history = legal_history(Random(seed))
        beginning = history[: length % len(history)]
        # Without a key, events are in no order at all: a delivery may come ahead of its publish.
        found = anomalies([event for event in beginning if event.key is not None], complete=False)
        assert not found, str(found)

    @given(seeds)
    def test_a_message_taken_out_is_lost(self, seed: int) -> None:
        random = Random(seed)
        history = legal_history(random)
        messages = answered_and_delivered(history)
        assume(messages)
        key, value = random.choice(messages)
        history = [event for event in history if is_publish(event) or not of_one_message(event, key, value)]
        assert [(anomaly.name, anomaly.key, anomaly.values) for anomaly in anomalies(history)] == [
            ("lost", key, (value,))
        ]

    @given(seeds)
    def test_two_messages_swapped_are_reordered(self, seed: int) -> None:
        random = Random(seed)
        history = legal_history(random)
        by_key: dict[Hashable, list[Hashable]] = {"a": [], "b": [], "c": [], None: []}
        for key, value in answered_and_delivered(history):
            by_key[key].append(value)
        pairs = [(key, pair) for key in "abc" for pair in itertools.pairwise(by_key[key])]
        assume(pairs)
        key, (earlier, later) = random.choice(pairs)
        other = {earlier: later, later: earlier}
        history = [
            event
            if is_publish(event) or event.key != key
            else event._replace(value=other.get(event.value, event.value))
            for event in history
        ]
        found = anomalies(history)
        assert found.names == {"reordered"}, str(found)
        assert (key, (earlier, later)) in [(anomaly.key, anomaly.values) for anomaly in found]

    @given(seeds)
    def test_a_run_put_into_another_overlaps(self, seed: int) -> None:
        random = Random(seed)
        history = legal_history(random)
        ended = {event[1:4] for event in history if event.kind in ("finished", "failed", "acking")}
        starts = [
            index
            for index, event in enumerate(history)
            if event.kind == "started" and event.key is not None and event[1:4] in ended
        ]
        assume(starts)
        index = random.choice(starts)
        _, key, value, *_ = history[index]
        history[index + 1 : index + 1] = events("started finished", value, "intruder", key)
        assert [(anomaly.name, anomaly.key, anomaly.values) for anomaly in anomalies(history)] == [
            ("overlapping", key, (value, value))
        ]

    @given(seeds)
    def test_a_message_invented_is_a_phantom(self, seed: int) -> None:
        random = Random(seed)
        history = legal_history(random)
        key = random.choice(["a", "b", "c", None])
        history += events("started finished acked", "invented", key=key)
        assert [(anomaly.name, anomaly.key, anomaly.values) for anomaly in anomalies(history)] == [
            ("phantom", key, ("invented",))
        ]


# The definitions again, word by word and however slow, for events in any order, sensible or not.

DONE = ("finished", "acking", "acked", "gap")
ACK_SENT = ("acking", "acked", "gap")
KINDS: list[Kind] = [
    "publishing", "published", "started", "finished", "failed", "acking", "acked", "gap", "missing",
]  # fmt: skip


class Model:
    """One key of a history; moments are indexes, and what never happens is at NEVER."""

    NEVER = 10**9

    def __init__(self, history: Events, key: Hashable) -> None:
        self.key = key
        self.events = [(index, event) for index, event in enumerate(history) if event.key == key]
        self.values = {event.value for _, event in self.events if event.kind != "missing"}
        answered = [event.value for _, event in self.events if event.kind == "published"]
        self.answered = sorted(set(answered), key=answered.index)
        self.given_up: dict[Hashable, int] = {}
        for index in self.all("missing"):
            opened = [value for value in self.answered if self.first(value, *DONE) > index]
            self.given_up |= dict.fromkeys(opened[: int(str(history[index].value))], index)

    def all(self, *kinds: str, value: Hashable = None) -> list[int]:
        return [i for i, event in self.events if event.kind in kinds and value in (None, event.value)]

    def first(self, value: Hashable, *kinds: str) -> int:
        given_up = [self.given_up[value]] if "gap" in kinds and value in self.given_up else []
        return min([*self.all(*kinds, value=value), *given_up], default=self.NEVER)

    def lost(self) -> set[Hashable]:
        return {value for value in self.answered if self.first(value, *DONE) == self.NEVER}

    def phantoms(self) -> set[Hashable]:
        delivered = {v for v in self.values if self.all("started", "finished", "failed", "acking", "acked", value=v)}
        return {value for value in delivered if not self.all("publishing", "published", value=value)}

    def reordered(self) -> set[Hashable]:
        return {
            earlier
            for place, earlier in enumerate(self.answered)
            for later in self.answered[place + 1 :]
            if self.key is not None and (self.passed(earlier, later) or self.fell_back(earlier, later))
        }

    def passed(self, earlier: Hashable, later: Hashable) -> bool:
        return self.first(later, "started") < self.first(earlier, *DONE)

    def fell_back(self, earlier: Hashable, later: Hashable) -> bool:
        return any(
            self.first(later, "acked") < start < self.first(earlier, *ACK_SENT)
            for start in self.all("started", value=earlier)
        )

    def overlapping(self) -> set[int]:
        starts = self.all("started") if self.key is not None else []
        return {start for start in starts for other in starts if other < start < self.end(other)}

    def end(self, start: int) -> int:
        """Where a run ends: at the finished or failed that closes it as brackets do, or at its ack."""
        run = dict(self.events)[start][1:4]
        depth = 0
        acks_count = True
        for index, event in self.events:
            if index <= start or event[1:4] != run:
                continue
            if event.kind == "started":
                depth += 1
                acks_count = False
            elif event.kind in ("finished", "failed"):
                if depth == 0:
                    return index
                depth -= 1
            elif event.kind in ("acking", "acked") and acks_count:
                return index
        return start

    def repeats(self) -> tuple[int, int]:
        """Redeliveries and duplicates."""
        starts = [(i, event.value) for i, event in self.events if event.kind == "started"]
        duplicates = [i for i, value in starts if self.first(value, "acked") < i]
        again = [i for i, value in starts if self.first(value, "started") < i]
        return len(set(again) - set(duplicates)), len(duplicates)


@st.composite
def any_event(draw: st.DrawFn) -> Event:
    kind = draw(st.sampled_from(KINDS))
    return Event(kind, draw(st.sampled_from(["k", None])), draw(st.integers(1, 3)), draw(st.sampled_from("ab")))


class TestDefinitions:
    @given(st.lists(any_event(), max_size=25), st.booleans())
    def test_the_checker_agrees_with_the_definitions(self, history: Events, complete: bool) -> None:
        found = anomalies(history, complete=complete)
        redeliveries = duplicates = 0
        for model in (Model(history, "k"), Model(history, None)):
            lost = model.lost() if complete else set()
            assert values(found.lost, model.key) == lost
            assert values(found.phantom, model.key) == model.phantoms()
            assert values(found.reordered, model.key) == model.reordered() - lost
            assert {a.order for a in found.overlapping if a.key == model.key} == model.overlapping()
            redeliveries += model.repeats()[0]
            duplicates += model.repeats()[1]
        assert (found.redeliveries, found.duplicates) == (redeliveries, duplicates)

    @given(st.lists(any_event(), max_size=25))
    def test_the_later_of_two_was_published_later(self, history: Events) -> None:
        model = Model(history, "k")
        for anomaly in anomalies(history).reordered:
            earlier, later = anomaly.values
            assert model.answered.index(earlier) < model.answered.index(later)
            assert model.passed(earlier, later) or model.fell_back(earlier, later)


def values(found: tuple[Anomaly, ...], key: Hashable) -> set[Hashable]:
    mine = [anomaly.values[0] for anomaly in found if anomaly.key == key]
    assert len(mine) == len(set(mine)), "said more than once"
    return set(mine)

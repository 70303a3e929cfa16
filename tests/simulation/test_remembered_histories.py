"""What is remembered of a broker is enough: whenever it stops, it comes back as it was, without its leases."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from inorder.clock import MICROSECONDS
from inorder.core.events import PUBLISHED, Event
from inorder.core.ledger import Book, Ledger, positions_of
from inorder.core.ranges import Ranges
from inorder.core.state import State
from inorder.message import DATA, KEY, POSITION, SIZE, STORED_US, Gap, Record

from .broker_machine import BrokerMachine


class Everything:
    """All messages of a topic, as a disk would have them, without those that were dropped from it."""

    complete = True

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.dropped = 0  # so many of the first

    def missing(self, end: int) -> Ranges:
        return Ranges([(0, min(self.dropped, end))])

    def keep(self, records: Sequence[Record]) -> None: ...

    def forget_before(self, time_us: int) -> None: ...

    def read(self, first: int, end: int) -> list[Record]:
        first = max(first, self.dropped)
        return self.records[first : min(end, first + 3)]  # in small pieces

    def first_since(self, time_us: int) -> int | None:
        kept = self.records[self.dropped :]
        return next((record[POSITION] for record in kept if record[STORED_US] >= time_us), None)

    def size(self, first: int, end: int) -> int:
        return sum(record[SIZE] for record in self.records[first:end])


def book_of(state: State, now_us: int) -> Book:
    """The books of a broker that has read all that it may and forgotten all that is too old."""
    while due := state.due(now_us):
        State.apply(state, due[1][1])
    for subscription in state.subscriptions.values():
        while subscription._unread.any:
            subscription._take_in(subscription._unread.read_on())
        subscription._sweep(now_us)
    return state.book().at(now_us)


def tell_together(ledger: Ledger) -> None:
    """Whether one gap record tells what of a key is gone, or two in a row do, is a matter of when they were made."""
    heads: dict[str, int] = {}
    for position, lost in sorted(ledger.lost.items()):
        head = heads.setdefault(lost.key, position)
        before = ledger.lost[head]
        if head == position or before.reason != lost.reason:
            heads[lost.key] = position
            continue
        messages = before.messages + lost.messages
        ledger.lost[head] = before._replace(last=lost.last, messages=messages)
        ledger.done = ledger.done.union([(position, position + 1)])
        del ledger.lost[position]


class RememberingMachine(BrokerMachine):
    """Keeps books of all that happens, and after every step brings the broker back from them."""

    def __init__(self) -> None:
        super().__init__()
        self.book = Book()
        self.histories: dict[int, Everything] = {}
        state = self.broker._state
        apply = state.apply

        def remember(events: Iterable[Event]) -> None:
            self.book.apply(events)
            for event in events:
                if event[0] == PUBLISHED:
                    _, topic, records, *_ = event
                    self.histories.setdefault(state.topics[topic].serial, Everything()).records += records
            apply(events)

        state.apply = remember  # type: ignore[method-assign]

    @rule(all_of_it=st.booleans())
    def drop_what_is_too_old(self, all_of_it: bool) -> None:
        """As a journal does that saves the books: what subscriptions are still to be told of is in these then."""
        state = self.broker._state
        longest_us = {
            topic.name: max([topic.retention_us, *(one.retention_us for one in topic.subscriptions)])
            for topic in state.topics.values()
        }
        limited = any(one.options.queue_limits for one in state.subscriptions.values())
        if all_of_it and not limited:  # when outdated messages make room is not known
            self.wait(max(longest_us.values()) + MICROSECONDS)
        now_us = self.clock.now_us()
        for topic in state.topics.values():
            everything = self.histories.setdefault(topic.serial, Everything())
            retained_us = longest_us[topic.name]
            old = [record[STORED_US] < now_us - retained_us for record in everything.records[: topic.visible]]
            if not any(snapshot.ledger.topic == topic.name for snapshot in state.snapshots.values()):
                state.lose({topic.serial: sum(old)}, now_us)
                everything.dropped = max(everything.dropped, sum(old))
                topic.history.missing = everything.missing  # type: ignore[method-assign]
        self.book = copy.deepcopy(state.book())

    def untold(self, state: State) -> Counter[tuple[str, str, str]]:
        """How many messages that were dropped each subscription is still to be told of, by key and reason."""
        untold: Counter[tuple[str, str, str]] = Counter()
        for name, subscription in state.subscriptions.items():
            if not subscription.detached:
                serial = state.topics[subscription.topic].serial
                dropped = self.histories[serial].dropped if serial in self.histories else 0
                for record in subscription._unacked():
                    positions = [position for position in positions_of([record]) if position < dropped]
                    if isinstance(gap := record[DATA], Gap):
                        known = len(positions) if len(positions_of([record])) > 1 else gap.count
                        untold[name, gap.ordering_key, gap.reason] += known if positions else 0
                    elif subscription.ordered and record[KEY]:  # it is out, and will be too old when it is back
                        untold[name, record[KEY], "expired"] += len(positions)
        return +untold

    def forget_outdated(self, ledger: Ledger, now_us: int) -> None:
        """What is too old is nothing or a gap, by the rules of order of the moment in which that was noticed."""
        if not ledger.detached:
            oldest_us = now_us - ledger.options.message_retention_duration * MICROSECONDS
            serial = self.broker._state.topics[ledger.topic].serial
            records = self.histories[serial].records if serial in self.histories else []
            old = [record[POSITION] for record in records if record[STORED_US] < oldest_us]
            ledger.done = ledger.done.union((position, position + 1) for position in old)
            for position in old:
                ledger.gaps.pop(position, None)
                ledger.failures.pop(position, None)

    @invariant()
    def it_comes_back_as_it_was(self) -> None:
        now_us = self.clock.now_us()
        shared = {id(one): one for consumers in self.consumers.values() for one in consumers}
        state = copy.deepcopy(self.broker._state, shared)
        before = book_of(state, now_us)
        reborn = State("again-", copy.deepcopy(self.book), lambda serial: self.histories.get(serial, Everything()))
        again = book_of(reborn, now_us)
        assert self.untold(reborn) == self.untold(state)
        assert again.topics == before.topics
        for name, ledger in before.subscriptions.items():
            for one in (ledger, again.subscriptions[name]):
                self.forget_outdated(one, now_us)
                tell_together(one)
            for field in ("options", "detached", "done", "gaps", "lost", "failures", "holds", "waits"):
                assert getattr(again.subscriptions[name], field) == getattr(ledger, field), (name, field)
        assert again == before


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="inorder")


@pytest.mark.timeout(
    900
)  # it compares whole books, over and over: one and a half minutes on a machine with nothing else to do
def test_the_books_bring_a_broker_back_as_it_was() -> None:
    search = settings(max_examples=2 * settings().max_examples, stateful_step_count=30, report_multiple_bugs=False)
    run_state_machine_as_test(RememberingMachine, settings=search)
